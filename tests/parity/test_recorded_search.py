"""On a GPU: searches recorded as CUDA graphs against the same searches kernel by kernel."""

import pytest
import torch
from conftest import BOS, PAD, random_batch, talkative_translator

from anydepth.decoding.greedy import greedy
from anydepth.decoding.recorded import Marks, RecordedSearches
from anydepth.depth import DepthConfig
from anydepth.depth.latent import LatentConfig
from anydepth.depth.prefix import PrefixConfig
from anydepth.depth.recurrent import RecurrentConfig
from anydepth.depth.rezero import ReZeroConfig
from anydepth.depth.subnetwork import SubnetworkConfig
from anydepth.drafter import TranslatorDrafter, recordable
from anydepth.plan import Plan

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
END = 7


@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize(
    "depth",
    [PrefixConfig(), SubnetworkConfig(), RecurrentConfig(depth=5), LatentConfig(inference="soft"), ReZeroConfig()],
    ids=lambda depth: depth.type,
)
def test_recorded_searches_find_what_greedy_search_finds(depth: DepthConfig, drafts: int) -> None:
    model = talkative_translator(depth).cuda()
    plans, searches = model.plan(), RecordedSearches()
    assert recordable(model, plans, "")
    draft = Plan(plans.decoder.layers[:1]) if drafts else Plan(())
    seen = set()
    for batch, longest in ((5, 12), (8, 9), (1, 3), (7, 15), (30, 40), (6, 11)):
        source = random_batch([(n % longest + 1, 2) for n in range(batch)]).source.cuda()
        limits = torch.tensor([3 + n % 11 for n in range(batch)], device="cuda")
        with torch.no_grad():
            expected = greedy(model.start(source, plans), BOS, END, PAD, limits)
            found = searches.search(
                "x", lambda room: TranslatorDrafter(model, plans, draft, room), source, limits, Marks(BOS, END, PAD),
                drafts, 1.0, 45,
            )  # fmt: skip
        assert [one.tokens for one in found] == [one.tokens for one in expected]
        assert [one.score for one in found] == pytest.approx([one.score for one in expected], abs=1e-4)
        seen |= {tuple(one.tokens) for one in found}
    assert len(seen) > 20
    assert len({token for tokens in seen for token in tokens}) > 5
    assert len(searches.made) == 3
