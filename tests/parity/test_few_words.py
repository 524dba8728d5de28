"""Triton kernels for a few words of a decoder against plain PyTorch. Without a GPU they run in Triton's interpreter."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import EOS, PAD, random_batch, talkative_translator
from interpreted import INTERPRETED, interpreted, on_gpu, run_interpreted, without_gpu
from searches import MARKS, SEARCHES, assert_replayed_searches_find_the_same, batches_of_many_shapes
from torch import Tensor, nn

pytest.importorskip("triton", reason="needs Triton, which comes with PyTorch for CUDA only")

from anydepth.decoding import decoder, in_place, picking, rounds
from anydepth.decoding.picking import Next, Said
from anydepth.decoding.rounds import Heard, Round, restart
from anydepth.decoding.speculative import Rows, judge
from anydepth.depth import DepthConfig
from anydepth.depth.latent import LatentConfig
from anydepth.depth.prefix import PrefixConfig
from anydepth.depth.rezero import ReZeroConfig
from anydepth.models import Translator, TranslatorConfig
from anydepth.nn import few_words, folded_source, overlap, source_words, word_attention
from anydepth.nn.attention import CrossAttention
from anydepth.nn.cache import as_scores
from anydepth.nn.few_words import Vectors
from anydepth.nn.layers import LayerConfig
from anydepth.nn.multiplying import Tile, choose_tile
from anydepth.nn.stack_config import StackConfig
from anydepth.plan import Plan
from anydepth.translating import quick
from anydepth.translating.beams import TranslatorBeams
from anydepth.translating.drafter import TranslatorDrafter
from anydepth.translating.reading import Reader
from anydepth.translating.searching import Asked, Searcher

DEVICE = "cpu" if INTERPRETED else "cuda"
HALF = torch.float16  # the interpreter multiplies bfloat16 as if it were integers
kernels = interpreted if INTERPRETED else on_gpu


@without_gpu
@pytest.mark.timeout(900)
def test_kernels_in_the_interpreter() -> None:
    run_interpreted(__file__)


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=HALF, device=DEVICE)


def settle() -> None:
    """What was made last is there before kernels that read it without waiting."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def assert_close(found: Tensor, expected: Tensor) -> None:
    assert found.shape == expected.shape
    assert (found.float() - expected.float()).abs().max() <= 2e-3 * expected.float().abs().max()


@kernels
@pytest.mark.parametrize("activation", [None, F.relu, F.gelu], ids=["none", "relu", "gelu"])
@pytest.mark.parametrize(
    "tile", [None, Tile(16, 32, 4, 64), Tile(4, 2048, 1, 4, singly=3)], ids=["chosen", "small", "three by three"]
)
@pytest.mark.parametrize(
    ("rows", "width", "columns"),
    [(1, 48, 40), (2, 8, 16), (5, 64, 100), (6, 768, 40), (20, 96, 16), (33, 1040, 24), (65, 32, 24)],
)
def test_products(
    rows: int, width: int, columns: int, tile: Tile | None, activation: Callable[[Tensor], Tensor] | None
) -> None:
    x, weight, bias, residual = random(rows, width), random(columns, width) / 8, random(columns), random(rows, columns)
    norm = nn.LayerNorm(width, 1e-3).to(DEVICE, HALF).requires_grad_(False)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    gate = torch.tensor(0.3, device=DEVICE)
    for given in (
        (x, weight, bias, norm, activation, None, None),
        (x, weight, None, None, activation, residual, None),
        (x, weight, bias, norm, activation, residual, gate),
    ):
        exact = (each.float() if isinstance(each, Tensor) else each for each in given)
        with torch.autocast(DEVICE, enabled=False):
            as_single = nn.LayerNorm(width, 1e-3).to(DEVICE)
            as_single.load_state_dict(norm.state_dict())
            expected = few_words.by_single_kernels(*(as_single if each is norm else each for each in exact))
        assert_close(few_words.project(*given, tile=tile), expected)


@kernels
@pytest.mark.parametrize("tile", [None, Tile(16, 32, 4)], ids=["chosen", "in parts"])
@pytest.mark.parametrize("rows", [1, 3, 20])
def test_norms_of_states_far_from_0(rows: int, tile: Tile | None) -> None:
    """Kernels learn mean and spread at once."""
    x, weight, norm = random(rows, 96) + 20, random(16, 96), nn.LayerNorm(96).to(DEVICE, HALF).requires_grad_(False)
    expected = F.linear(F.layer_norm(x.float(), (96,), eps=norm.eps), weight.float())
    assert_close(few_words.project(x, weight, None, norm, tile=tile), expected)


@kernels
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("rows", "width", "columns"), [(2, 48, 40), (20, 96, 16), (33, 1040, 24)])
def test_products_of_several_matrices(rows: int, width: int, columns: int, bias: bool) -> None:
    x = random(rows, width)
    for count in (1, 3, source_words.TOGETHER + 2):
        products = [nn.Linear(width, columns, bias).to(DEVICE, HALF).requires_grad_(False) for _ in range(count)]
        settle()
        for found, product in zip(source_words.project_each(x, products), products, strict=True):
            assert_close(found, F.linear(x.float(), product.weight.float(), product.bias.float() if bias else None))


@kernels
@pytest.mark.parametrize("rows", [3, 65])
def test_products_go_where_they_are_wanted(rows: int) -> None:
    x, weight, table = random(rows, 48), random(40, 48), torch.zeros(rows, 3, 40, dtype=HALF, device=DEVICE)
    found = few_words.project(x, weight, None, out=table[:, 1])
    assert torch.equal(found, few_words.project(x, weight, None))
    assert torch.equal(found, table[:, 1])
    assert not table[:, ::2].any()


@kernels
def test_embeddings() -> None:
    words, positions = random(9, 20), random(50, 20)
    tokens, places = torch.tensor([[3, 5], [1, 8]], device=DEVICE), torch.tensor([[6, 49]], device=DEVICE)
    found = few_words.embed(tokens, places, Vectors(words, positions, 4.5))
    assert torch.equal(found.view(2, 2, 20), words[tokens] * 4.5 + positions[places])
    found = few_words.embed(tokens, places[:, 1:] + 3, Vectors(words, positions, 4.5))
    assert torch.equal(found.view(2, 2, 20), words[tokens] * 4.5 + positions[49])


@kernels
def test_embeddings_of_sources() -> None:
    words, positions = random(9, 20), random(50, 20)
    source = torch.tensor([[3, 5, 8, PAD], [1, 8, PAD, PAD]], device=DEVICE)
    for given in (source, source[:, ::2]):
        found, seen = source_words.embed(given, Vectors(words, positions, 4.5), PAD)
        length = given.shape[1]
        assert torch.equal(found.view(2, length, 20), words[given] * 4.5 + positions[:length])
        assert torch.equal(seen, as_scores((given != PAD)[:, None, None, :], HALF))


@kernels
@pytest.mark.parametrize("width", [16, 20])
def test_norms(width: int) -> None:
    x, norm = random(5, width) * 3 + 1, nn.LayerNorm(width, 1e-3).to(DEVICE, HALF).requires_grad_(False)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    exact = F.layer_norm(x.float(), (width,), norm.weight.float(), norm.bias.float(), norm.eps)
    assert_close(source_words.normalise(x, norm), exact)
    assert source_words.normalise(x, nn.Identity()) is x


@kernels
def test_the_first_of_the_best_words_that_are_allowed_is_picked(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = random(3, 2, 23)
    logits[..., 4], logits[:, 1, 7], logits[:, 1, 20] = 9, 8, 8
    expected = logits.float().log_softmax(-1)
    expected[..., 4] = -torch.inf
    for most in (16, 1 << 14):  # in one part and in two
        monkeypatch.setattr(picking, "WORDS", most)
        gains, words = picking.pick(logits, (4, -1))
        assert_close(gains, expected.amax(-1))
        assert torch.equal(words[:, 0], expected[:, 0].argmax(-1))
        assert (words[:, 1] == 7).all()


def said_by(rows: int, at: Tensor) -> Said:
    """Of six words at most."""
    words, gains = (torch.zeros(6, rows, dtype=t, pin_memory=not INTERPRETED) for t in (torch.long, torch.float32))
    return Said(words, gains, torch.zeros(rows, 1, dtype=torch.long, device=DEVICE), at, torch.zeros_like(at))


@kernels
def test_what_is_picked_is_noted_in_its_place() -> None:
    logits, at = random(3, 1, 23), torch.tensor([4], device=DEVICE)
    said = said_by(3, at)
    picking.say(logits, (0, 1), said)
    gain, word = picking.pick(logits, (0, 1))
    words, gains = said.words.to(DEVICE), said.gains.to(DEVICE)
    assert int(said.coming) == 5
    assert torch.equal(words[4], word[:, 0])
    assert torch.equal(gains[4], gain[:, 0])
    assert torch.equal(said.last, word)
    assert int((words != 0).sum()) == int((gains != 0).sum()) == 3


def next_words(rows: int) -> Next:
    """Of 23 words and 6 positions."""
    vectors = Vectors(random(23, 20), random(6, 20), 4.5)
    return Next(vectors, torch.zeros(rows, 1, 20, dtype=HALF, device=DEVICE))


def assert_embedded(coming: Next, words: Tensor, places: Tensor) -> None:
    places = places.clamp(max=5)
    expected = coming.vectors.words[words] * coming.vectors.scale + coming.vectors.positions[places]
    assert torch.equal(coming.states, expected)


@kernels
def test_what_is_picked_is_embedded_for_the_next_step() -> None:
    logits, at = random(3, 1, 23), torch.tensor([4, 2, 5], device=DEVICE)
    said, coming = said_by(3, at)._replace(coming=at), next_words(3)
    picking.say(logits, (0, 1), said, coming)
    gains, words = picking.pick(logits, (0, 1))
    assert at.tolist() == [5, 3, 6]  # each row stands at a place of its own
    assert [int(said.words[place, row]) for row, place in enumerate((4, 2, 5))] == words[:, 0].tolist()
    assert_embedded(coming, words, at[:, None])

    table, places = torch.zeros(3, 4, dtype=torch.long, device=DEVICE), torch.arange(12, device=DEVICE).view(3, 4) // 2
    picking.pick_into(table[:, 2], torch.zeros_like(gains[:, 0]), logits, (0, 1), coming, places[:, 2])
    assert torch.equal(table[:, 2], words[:, 0])
    assert_embedded(coming, words, places[:, 2:3])


@kernels
@pytest.mark.parametrize(
    ("sentences", "words", "width", "size"),
    [(1, 1, 48, 23), (1, 2, 32, 9), (3, 5, 64, 200), (2, 2, 1040, 40), (6, 1, 768, 40), (20, 1, 32, 40)],
)
@pytest.mark.parametrize("full", [True, False])
def test_candidates_are_picked_as_from_logits(sentences: int, words: int, width: int, size: int, full: bool) -> None:
    states, weight, bias = random(sentences, words, width), random(size, width) / 8, random(size)
    norm = nn.LayerNorm(width, 1e-3).to(DEVICE, HALF).requires_grad_(False) if full else None
    first, *others = twins = [size // 3, size // 3 + 1, size - 1]  # as good as each other, in one part and in others
    weight[others] = weight[first].clone()
    bias[twins] = 60
    settle()
    logits = few_words.project(states.flatten(0, 1), weight, bias if full else None, norm).view(sentences, words, -1)
    for forbidden in ((int(logits[0, 0].argmax()), 4), (-1, -1)):
        found = picking.candidates(states, weight, bias if full else None, norm, forbidden)
        gains, chosen = picking.pick(found, (-1, -1))
        expected, best = picking.pick(logits, forbidden)
        assert torch.equal(chosen, best)
        assert_close(gains, expected)
    if full:
        assert (chosen == first).all()


@kernels
def test_a_candidate_is_noted_as_a_word_of_logits() -> None:
    states, weight, at = random(3, 1, 48), random(40, 48), torch.tensor([3], device=DEVICE)
    logits = few_words.project(states[:, 0], weight, None)[:, None]
    notes = []
    for choices in (logits, picking.candidates(states, weight, None, None, (0, 1))):
        said = said_by(3, at)
        picking.say(choices, (0, 1), said)
        notes.append(Said(*(each.to(DEVICE) for each in said)))
    one, other = notes
    assert all(torch.equal(getattr(one, name), getattr(other, name)) for name in ("words", "last", "coming"))
    assert_close(other.gains, one.gains)
    assert int((other.words != 0).sum()) == int((other.words[3] != 0).sum()) == 3


@kernels
def test_several_best_words() -> None:
    logits = random(4, 40)
    logits[:, 3] = 9
    expected = logits.float().log_softmax(-1)
    expected[:, 3] = expected[:, 8] = -torch.inf
    gains, words = picking.pick_several(logits, 6, (3, 8))
    assert_close(gains, expected.topk(6).values)
    assert_close(expected.gather(1, words), gains)
    assert all(len(set(row)) == 6 for row in words.tolist())


@kernels
@pytest.mark.filterwarnings("ignore:invalid value", "ignore:All-NaN slice")  # of the interpreter
@pytest.mark.parametrize("forbidden", [(3, 8), (-1, -1)])
def test_logits_that_are_not_numbers_are_gains_that_are_none(forbidden: tuple[int, int]) -> None:
    """The search then says what is wrong; until it does, its words have to be words."""
    logits = torch.full((2, 40), torch.nan, dtype=HALF, device=DEVICE)
    states, weight = torch.full((1, 2, 16), torch.nan).to(logits), random(40, 16)
    settle()
    found = picking.candidates(states, weight, None, None, forbidden)
    picked = picking.pick(logits, forbidden), picking.pick_several(logits, 6, forbidden), picking.pick(found, forbidden)
    for gains, words in picked:
        assert gains.isnan().all()
        assert ((words >= 0) & (words < 40)).all()


READ = (word_attention.LEAST, word_attention.SAID), (256, word_attention.SAID), (256, 256)
"""How much a word reads at a time: at least and at most."""


@kernels
@pytest.mark.parametrize("places", [[70, 0], [5, 64]])
@pytest.mark.parametrize(("least", "most"), READ, ids=["one warp", "several", "in parts"])
def test_words_attend_to_those_before(
    places: list[int], least: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(word_attention, "LEAST", least)
    monkeypatch.setattr(word_attention, "SAID", most)
    batch, count, heads, size, room = 2, 3, 2, 16, 90
    keys, values, qkv = random(batch, room, heads, size), random(batch, room, heads, size), random(2, 3, 3, 2, 16)
    kept = keys.clone(), values.clone()
    found = word_attention.attend_said(qkv, *kept, torch.tensor(places, device=DEVICE))
    for row, place in enumerate(places):
        q, k, v = qkv[row].unbind(1)
        keys[row, place : place + count], values[row, place : place + count] = k, v
        seen = torch.arange(room, device=DEVICE) <= place + torch.arange(count, device=DEVICE)[:, None]
        assert_close(found.view(batch, count, -1)[row], attended(q, keys[row], values[row], seen))
    assert torch.equal(torch.stack(kept), torch.stack([keys, values]))


@kernels
@pytest.mark.parametrize("place", [0, 25])
def test_hypotheses_attend_to_their_own(place: int) -> None:
    batch, beam, heads, size, room = 2, 3, 2, 16, 30
    qkv, (keys, values) = random(batch, beam, 3, heads, size), random(2, batch, room, beam, heads, size)
    allowed = torch.rand(batch, beam, room, beam, device=DEVICE) < 0.4
    kept, seen = (keys.clone(), values.clone()), torch.zeros_like(allowed, dtype=HALF).masked_fill(~allowed, -torch.inf)
    found = word_attention.attend_said(qkv, *kept, torch.tensor([place], device=DEVICE), seen)
    allowed[:, :, place:] = False
    allowed[:, :, place] = torch.eye(beam, dtype=torch.bool)
    for row in range(batch):
        q, k, v = qkv[row].unbind(1)
        keys[row, place], values[row, place] = k, v
        expected = attended(q, keys[row].flatten(0, 1), values[row].flatten(0, 1), allowed[row].flatten(1))
        assert_close(found.view(batch, beam, -1)[row], expected)
    assert torch.equal(torch.stack(kept), torch.stack([keys, values]))


@kernels
@pytest.mark.parametrize("length", [7, 70])
@pytest.mark.parametrize(
    ("alone", "most"),
    [(word_attention.ALONE, 512), (word_attention.ALONE, 8192), (0, 0)],
    ids=["each", "all", "together"],
)
def test_words_attend_to_their_source(length: int, alone: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_attention, "ALONE", alone)
    monkeypatch.setattr(word_attention, "LEAST", 256)
    monkeypatch.setattr(word_attention, "SOURCE", most)
    batch, count, heads, size = 2, 3, 2, 16
    q = random(batch * count, heads * size)
    keys, values = random(batch, length, 2, heads, size).unbind(2)
    allowed = torch.ones(batch, 1, 1, length, dtype=torch.bool, device=DEVICE)
    allowed[1, ..., length // 2 :] = False
    seen = torch.zeros_like(allowed, dtype=HALF).masked_fill(~allowed, -torch.inf)
    settle()
    found = word_attention.attend_source(q, keys, values, seen).view(batch, count, -1)
    for row in range(batch):
        mine = q.view(batch, count, heads, size)[row]
        assert_close(found[row], attended(mine, keys[row], values[row], allowed[row, 0].expand(count, -1)))


@kernels
@pytest.mark.parametrize("length", [1, 7, 40])
def test_words_of_a_source_attend_to_each_other(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_words, "SOURCE", 256)
    batch, heads, size = 3, 2, 16
    qkv = random(batch, length, 3, heads, size)
    allowed = torch.ones(batch, 1, 1, length, dtype=torch.bool, device=DEVICE)
    allowed[1, ..., length // 2 :] = False
    allowed[2] = False
    found = source_words.attend(qkv, as_scores(allowed, HALF)).view(batch, length, -1)
    for row in range(batch):
        if allowed[row].any():
            assert_close(found[row], attended(*qkv[row].unbind(1), allowed[row, 0].expand(length, -1)))
        else:  # numbers, even where no word is seen
            assert not found[row].any()


@kernels
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("count", "length"), [(1, 7), (3, 16), (7, 12)])
def test_a_folded_source_is_attended_to_as_by_its_keys_and_values(count: int, length: int, bias: bool) -> None:
    """With padding, a norm, a gate, and more layers than a kernel takes."""
    heads, size, layers = 2, 16, source_words.TOGETHER + 1
    width = heads * size
    crosses = [CrossAttention(width, heads, bias, 0.0).to(DEVICE, HALF).requires_grad_(False) for _ in range(layers)]
    assert folded_source.takes(heads, size, length)
    memory, x, norm = random(length, width), random(count, width), nn.LayerNorm(width, 1e-3).to(DEVICE, HALF)
    norm.requires_grad_(False)
    nn.init.normal_(norm.bias)
    allowed, gate = torch.arange(length, device=DEVICE) < length - 2, torch.tensor(0.3, device=DEVICE)
    pairs = [cross.key_value(memory) for cross in crosses]
    found = folded_source.fold(crosses, pairs, as_scores(allowed[None, None, None], HALF))
    for cross, pair, folded in zip(crosses, pairs, found, strict=True):
        keys, values = pair.view(length, 2, heads, size).unbind(1)
        query = cross.query(norm(x)).view(count, heads, size)
        looked = cross.out.float()(attended(query, keys, values, allowed.expand(count, -1)))
        cross.half()
        assert_close(folded_source.look(x, cross, folded, norm, gate), x.float() + gate * looked)


def test_sources_that_are_not_folded() -> None:
    """They would be larger than the projections, or not be halved."""
    assert folded_source.takes(8, 64, 64)
    assert not folded_source.takes(8, 64, 65)
    assert not folded_source.takes(6, 64, 20)


def attended(q: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
    """(q, H, d) queries to (T, H, d) keys and values, in single precision → (q, D)."""
    parts = (each.float().transpose(0, 1) for each in (q, keys, values))
    return F.scaled_dot_product_attention(*parts, seen).transpose(0, 1).flatten(1)


MODELS: dict[str, tuple[DepthConfig, dict[str, Any], dict[str, Any]]] = {
    "plain": (PrefixConfig(), {}, {}),
    "gated": (LatentConfig(inference="soft"), {}, {}),
    "without norms": (ReZeroConfig(), {"norm": "none"}, {}),
    "gelu, learned positions": (PrefixConfig(), {"activation": "gelu"}, {"positions": "learned"}),
    "norm of embeddings, no bias": (PrefixConfig(), {"attention_bias": False}, {"embedding_norm": True}),
}
FOLDING: dict[str, Any] = {"width": 32, "heads": 2}
"""Of layers to which sources of 16 words can be folded."""


def a_model(name: str, **size: int) -> Translator:
    """With heads as large as the smallest that tensor cores take."""
    depth, of_layers, settings = MODELS[name]
    torch.manual_seed(0)
    stack = StackConfig(layers=4, depth=depth)
    layer = LayerConfig(**{"width": 48, "ffn": 80, "heads": 3, "dropout": 0.0} | of_layers | size)
    config = TranslatorConfig(layer=layer, encoder=stack, decoder=stack, tie="none", **settings)
    model = Translator(config, 23, 23, PAD)
    for parameter in model.parameters():  # also those that start at 0 or 1
        nn.init.normal_(parameter, std=0.2)
    if isinstance(model.norm, nn.LayerNorm):  # or it would say the same whatever it reads
        nn.init.zeros_(model.norm.bias)
    return model.to(DEVICE, HALF).eval()


def have_fewer_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter runs them one by one, and a whole model has too many."""
    if INTERPRETED:
        for module in (few_words, picking, source_words):
            monkeypatch.setattr(module, "choose_tile", lambda *shape: choose_tile(*shape)._replace(columns=64))


def both_ways(monkeypatch: pytest.MonkeyPatch, say: Callable[[], list[Tensor]]) -> None:
    """Logits by these kernels against those by single ones."""
    have_fewer_programs(monkeypatch)
    found = []
    for quickly in (True, False):
        monkeypatch.setattr(quick, "fits", lambda model, quickly=quickly: quickly)
        found.append(say())
    for ours, expected in zip(*found, strict=True):
        assert (ours.float() - expected.float()).abs().max() <= 0.02 * expected.float().abs().max()


def source_on(device: str) -> Tensor:
    return random_batch([(5, 2), (9, 2), (2, 2)]).source.to(device)


class Encodings:
    """Counts how often a model reads sources by single kernels."""

    def __init__(self, model: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.encode = 0, model.encode
        monkeypatch.setattr(model, "encode", self)

    def __call__(self, *given: Any) -> Any:
        self.count += 1
        return self.encode(*given)


@kernels
@torch.no_grad()
@pytest.mark.parametrize("name", MODELS)
def test_sources_are_read_as_by_single_kernels(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = a_model(name)
    encodings = Encodings(model, monkeypatch)
    sources = source_on(DEVICE), source_on(DEVICE)[2:, :2], source_on(DEVICE)[1:2]
    layers = (0, 1, 2, 3) if name == "gated" else (0, 2, 2)  # any list, where each layer has no gate of its own
    plans = model.plan()._replace(encoder=Plan(layers))

    def say() -> list[Tensor]:
        found = []
        for source in sources:
            reader = Reader(model, "")
            reader.look_at(source)
            assert reader.sees.keys is not None
            real = source != PAD
            assert torch.equal(reader.sees.keys, as_scores(real[:, None, None], HALF))
            (state, _), _ = reader.steps(plans)[0]
            assert state is not None
            assert state.isfinite().all()
            found.append(state[real])
        return found

    both_ways(monkeypatch, say)
    assert encodings.count == len(sources)


@kernels
@torch.no_grad()
@pytest.mark.parametrize("what", ["more words than few", "a gate for each sentence"])
def test_sources_that_kernels_do_not_read(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, source = a_model("plain"), source_on(DEVICE)
    encodings = Encodings(model, monkeypatch)
    monkeypatch.setattr(quick, "fits", lambda model: True)
    reader, plans = Reader(model, ""), model.plan()
    if what == "more words than few":
        monkeypatch.setattr(few_words, "MOST", source.numel() - 1)
    else:
        reader.known_gates[plans] = random(4, len(source), 1, 1), None
    reader.look_at(source)
    reader.steps(plans)
    assert encodings.count == 1


@kernels
@torch.no_grad()
@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_hypotheses_have_the_logits_of_single_kernels(name: str, beam: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, source = a_model(name), source_on(DEVICE)
    encodings = Encodings(model, monkeypatch)
    draws = torch.Generator().manual_seed(0)
    words = torch.randint(4, 23, (6, 3, beam), generator=draws).to(DEVICE)
    parents = torch.randint(0, beam, (6, 3, beam), generator=draws).to(DEVICE)

    def say() -> list[Tensor]:
        beams = TranslatorBeams(model, model.plan(), "", 3, beam, 8)
        beams.open(source)
        beams.begin(words[0])
        logits = []
        for number in range(6):
            logits.append(beams.step(words[number], 8))
            if beam > 1:
                beams.follow(parents[number])
            beams.go_on()
        return logits

    both_ways(monkeypatch, say)
    assert encodings.count == 1


@kernels
@torch.no_grad()
@pytest.mark.parametrize("most", [word_attention.QUERIES, 3], ids=["all by kernels", "not those judged"])
@pytest.mark.parametrize("shared", [True, False])
def test_drafts_have_the_logits_of_single_kernels(shared: bool, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_attention, "QUERIES", most)
    model, source = a_model("plain"), source_on(DEVICE)
    encodings = Encodings(model, monkeypatch)
    draft = Plan((0, 1)) if shared else Plan((0, 3))
    words = torch.randint(4, 23, (3, 4), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    words[2, 3] = PAD

    def say() -> list[Tensor]:
        drafter = TranslatorDrafter(model, model.plan(), draft, 12).open(source)
        drafter.reach(12)
        logits = []
        for first in (torch.tensor([[0], [0], [0]]), torch.tensor([[4], [1], [2]])):  # rows keep what they like
            places = (first + torch.arange(4)).to(DEVICE)
            states = [drafter.read(words[:, k : k + 1], places[:, k : k + 1]) for k in range(4)]
            logits += [drafter.exit(state) for state in states] + [drafter.judge(words, states, places)]
        return logits

    both_ways(monkeypatch, say)
    assert encodings.count == (1 if shared else 2)


@kernels
@torch.no_grad()
@pytest.mark.parametrize("what", ["greedy", "beam", "drafts"])
@pytest.mark.parametrize("name", ["plain", "gated", "norm of embeddings, no bias"])
def test_words_of_one_sentence_read_its_source_folded(name: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, source = a_model(name, **FOLDING), source_on(DEVICE)[1:2]
    words = torch.randint(4, 23, (6, 1, 3), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    folded = []

    def say() -> list[Tensor]:
        if what == "drafts":
            drafter = TranslatorDrafter(model, model.plan(), Plan((0, 1)), 12).open(source)
            drafter.reach(12)
            slots = [*drafter.low.cache.slots, *drafter.high.cache.slots]
            places = torch.arange(3, device=DEVICE)[None]
            states = [drafter.read(words[0, :, k : k + 1], places[:, k : k + 1]) for k in range(3)]
            logits = [drafter.exit(state) for state in states] + [drafter.judge(words[0], states, places)]
        else:
            beam = 1 if what == "greedy" else 3
            beams = TranslatorBeams(model, model.plan(), "", 1, beam, 8)
            beams.open(source)
            beams.begin(words[0, :, :beam])
            slots, logits = beams.cache.slots, []
            for number in range(6):
                logits.append(beams.step(words[number, :, :beam], 8))
                beams.go_on()
        folded.append([slot.memory.folded is not None for slot in slots])
        return logits

    both_ways(monkeypatch, say)
    assert folded == [[True] * 4, [False] * 4]


class Judging:
    """A drafter of which only the judgement is asked."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits

    def judge(self, tokens: Tensor, states: list[Tensor], positions: Tensor) -> Tensor:
        return self.logits


@kernels
@pytest.mark.parametrize("count", [2, 5])
def test_rounds_settled_by_a_kernel_keep_the_same_accounts(count: int) -> None:
    """Of rows that keep all that was drafted, some of it, say their end mark, reach their limits, or are done."""
    torch.manual_seed(count)
    rows, words, longest = 40, 12, 20
    bos, eos, pad = 1, 7, PAD
    logits = random(rows, count, words) * 3
    gains, chosen = picking.pick(logits, (bos, pad))
    right = torch.rand(rows, count - 1, device=DEVICE) < 0.8
    drafted = torch.where(right, chosen[:, :-1], (chosen[:, :-1] + 1) % words)
    drafted = torch.cat([chosen[:, :1], drafted], dim=1)
    limits = torch.randint(6, longest, (rows,), device=DEVICE)
    limits[:5] = 0
    ours, theirs = (Rows.new(limits, longest, count - 1, bos, pad) for _ in range(2))
    for each in (ours, theirs):
        each.lengths.copy_(torch.arange(rows) % 6)
        each.running[5:9] = False
        each.log_probabilities.fill_(-1.5)
    places = ours.lengths[:, None] + torch.arange(count, device=DEVICE)
    found = ours.lengths, ours.limits, ours.last, ours.log_probabilities
    turns, asked = torch.full_like(limits, 3), torch.zeros(2, rows, dtype=torch.long, device=DEVICE)
    round = Round(drafted.clone(), places.clone(), *found, ours.running, ours.rounds, turns)
    heard = Heard(ours.tokens, asked, torch.zeros_like(limits), torch.zeros_like(gains[:, 0]))
    coming = next_words(rows)
    rounds.settle(round, heard, chosen, gains, eos, coming)
    judge(Judging(logits), theirs, drafted, [], places, bos, eos, pad)
    for name in ("lengths", "limits", "last", "running", "rounds"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
    assert torch.allclose(ours.log_probabilities, theirs.log_probabilities, atol=1e-3)
    assert all(
        torch.equal(*(each.tokens[row, :end] for each in (ours, theirs))) for row, end in enumerate(ours.lengths)
    )
    assert torch.equal(round.words[:, 0], theirs.last)
    assert_embedded(coming, round.words[:, :1], theirs.lengths[:, None])
    assert torch.equal(round.places, theirs.lengths[:, None] + torch.arange(count, device=DEVICE))
    assert torch.equal(asked[1], theirs.lengths.where(theirs.running, -1))
    assert not asked[0].any()
    assert (turns == 4).all()
    assert torch.equal(heard.lengths, theirs.lengths)
    assert torch.equal(heard.log_probabilities, ours.log_probabilities)
    assert len(set(theirs.lengths.tolist())) > 5
    assert 0 < int(theirs.running.sum()) < rows - 9


@kernels
@pytest.mark.parametrize("bos", [1, 5])
def test_accounts_are_set_back_by_a_kernel(bos: int) -> None:
    limits = torch.tensor([7, 0, 3], device=DEVICE)
    ours, theirs = (Rows.new(limits.flip(0), 9, 2, bos=2, pad=PAD) for _ in range(2))
    for each in (ours, theirs):
        for column in (each.lengths, each.last, each.log_probabilities, each.rounds):
            column.fill_(4)
    words, places, turns = (torch.full(shape, 8, device=DEVICE) for shape in ((3, 3), (3, 3), (3,)))
    found = ours.lengths, ours.limits, ours.last, ours.log_probabilities
    restart(Round(words, places, *found, ours.running, ours.rounds, turns), limits, bos)
    theirs.restart(limits, bos)
    for name in ("lengths", "limits", "last", "log_probabilities", "running", "rounds"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
    assert (words == bos).all()
    assert places.tolist() == [[0, 1, 2]] * 3
    assert not turns.any()


@kernels
@pytest.mark.parametrize("name", SEARCHES)
def test_searches_whose_accounts_are_kept_by_kernels(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (decoder, in_place):
        monkeypatch.setattr(module, "has_kernels", lambda logits: logits.dtype == torch.float32)
    assert_replayed_searches_find_the_same(talkative_translator(PrefixConfig()).float().to(DEVICE), SEARCHES[name])


@kernels
@pytest.mark.parametrize("name", ["greedy", "speculation"])
def test_searches_that_pick_from_candidates(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They say what those that pick from the same logits say."""
    have_fewer_programs(monkeypatch)
    model, source = a_model("plain"), source_on("cpu")
    monkeypatch.setattr(quick, "fits", lambda model: True)
    monkeypatch.setattr(in_place, "has_kernels", lambda weight: True)
    found, picked = [], picking.candidates
    for by_candidates in (True, False):
        monkeypatch.setattr(quick, "candidates", picked if by_candidates else logits_of)
        limits = torch.tensor([9, 5, 7])
        with torch.no_grad():
            found.append(
                Searcher(model, MARKS._replace(eos=22)).replay(Asked(source, limits, model.plan(), "", SEARCHES[name]))
            )
    assert [one.tokens for (one,) in found[0]] == [one.tokens for (one,) in found[1]]
    totals = ([one.log_probability for (one,) in each] for each in found)
    assert next(totals) == pytest.approx(next(totals), rel=1e-3)
    assert len({word for (one,) in found[0] for word in one.tokens}) > 3


def logits_of(
    states: Tensor, weight: Tensor, bias: Tensor | None, norm: nn.Module | None, forbidden: tuple[int, int]
) -> Tensor:
    return few_words.project(states.flatten(0, 1), weight, bias, norm).view(*states.shape[:2], -1)


def compiled_for_hopper(kernel: Any, given: tuple[Any, ...], settings: dict[str, int]) -> Any:
    """What a launch would compile, where there need not be such a GPU."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile
    from triton.runtime.jit import mangle_type

    signature, constants, hints = {}, {}, {}
    for number, (parameter, value) in enumerate(zip(kernel.params, given, strict=True)):
        constant = parameter.is_constexpr or (isinstance(value, int) and value == 1)
        kind = "constexpr" if constant else mangle_type(value)
        signature[parameter.name] = kind
        if kind == "constexpr":
            constants[number,] = value
        elif isinstance(value, Tensor) or (kind == "i32" and value % 16 == 0):
            hints[number,] = [["tt.divisibility", 16]]
        elif isinstance(value, tuple):  # of tensors
            hints |= {(number, place): [["tt.divisibility", 16]] for place in range(len(value))}
    settings = {"enable_fp_fusion": True, **settings}  # its default, of which Triton 3.9 warns
    return compile(ASTSource(kernel, signature, constants, hints), GPUTarget("cuda", 90, 32), settings)


HEADS, SIZE = 2, 128  # the largest that there are kernels for


def launches() -> None:
    """Of all kernels."""

    def one(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.zeros(shape, dtype=dtype)

    most, table = word_attention.QUERIES, one(4, 9, dtype=torch.long)
    few = (1, 8, 32), (1, 512, 1536), (5, 512, 512), (4, 512, 2048), (5, 2048, 512), (1, 8192, 1024)
    many = (6, 4096, 1024), (32, 512, 1536), (64, 1024, 512), (16, 2048, 512), (64, 3072, 1024), (16, 1024, 16000)
    for rows, width, columns in (*few, *many):
        x, norm = one(rows, width), nn.LayerNorm(width).bfloat16()
        few_words.project(x, one(columns, width), one(columns), norm, F.gelu, one(rows, columns), one())
    vectors = Vectors(one(9, 512), one(9, 512), 2.0)
    few_words.embed(table, table, vectors)
    source_words.embed(table, vectors, 0)
    source_words.normalise(one(4, 512), nn.LayerNorm(512).bfloat16())
    for rows in (3, 16, 64):
        source_words.project_each(one(rows, 512), [nn.Linear(512, 1024).bfloat16()] * 3)
    for heads, size, length in ((8, 64, 50), (2, 128, 128), (HEADS, SIZE, 9)):
        cross = CrossAttention(heads * size, heads, True, 0.0).bfloat16()
        (folded,) = folded_source.fold([cross], [one(length, 2 * heads * size)], one(1, 1, 1, length))
        for rows in (1, 3, 9):
            folded_source.look(one(rows, heads * size), cross, folded, nn.LayerNorm(heads * size).bfloat16(), one())
    for length in (16, 64):
        source_words.attend(one(1, length, 3, HEADS, SIZE), one(1, 1, 1, length))
    hypotheses = one(2, 2, 99, most, HEADS, SIZE), one(2, most, 99, most)
    word_attention.attend_said(one(2, most, 3, HEADS, SIZE), *hypotheses[0], table[0, :1], hypotheses[1])
    for words, length in (1, 50), (5, 400), (200, 50):
        word_attention.attend_source(
            one(2 * words, HEADS * SIZE), *one(2, 2, length, HEADS, SIZE), one(2, 1, 1, length)
        )
        word_attention.attend_said(one(2, words, 3, HEADS, SIZE), *one(2, 2, 999, HEADS, SIZE), table[:2, 0])
    gains = one(4, 9, dtype=torch.float32)
    said = Said(table.T, gains.T, table[:, :1], table[0, :1], table[1, :1])
    picking.say(one(4, 1, 50000), (1, 0), said)
    coming = Next(vectors, one(4, 1, 512))
    for rows, size, width in ((1, 16000, 512), (32, 16000, 1024), (1, 250000, 1024), (1, 9000, 2048), (4, 100, 2048)):
        norm = nn.LayerNorm(width).bfloat16()
        parts = picking.candidates(one(rows, 1, width), one(size, width), one(size), norm, (1, 0))
        picking.say(parts, (1, 0), said)
        picking.say(parts, (1, 0), said, coming)
    picking.pick_several(one(4, picking.MOST_WORDS), 10, (1, 0))
    accounts = *[table[:, 0]] * 3, gains[:, 0], table[:, 0] > 0, *[table[:, 0]] * 2
    heard = Heard(table, table[:2, :4], table[:, 0], gains[:, 0])
    rounds.settle(Round(table, table, *accounts), heard, table, gains, 2, coming)
    restart(Round(table, table, *accounts), table[:, 0], 1)


EARLY = (
    few_words.project_kernel,
    folded_source.fold_kernel,
    picking.candidates_kernel,
    source_words.norm_kernel,
    source_words.project_each_kernel,
    word_attention.said_kernel,
    word_attention.source_kernel,
)


@pytest.mark.skipif(INTERPRETED, reason="compiles")
def test_kernels_fit_on_the_chip_and_few_read_before_they_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the kernel before writes is not there yet, and what it reads may not be overwritten."""
    seen = set()

    def launch(kernel: Any, programs: int, *given: Any, **settings: int) -> None:
        settings |= {"maxnreg": overlap.registers(settings["num_warps"])}
        found = compiled_for_hopper(kernel, (*given, True), settings)
        before, _ = found.asm["ptx"].split("griddepcontrol.wait")
        reads = "ld.global" in before or "cp.async" in before
        assert reads <= (kernel in EARLY), kernel
        assert "st.global" not in before
        assert found.metadata.shared <= 227 * 1024
        if kernel in (picking.pick_kernel, picking.pick_candidate_kernel) and settings["num_warps"] > 1:
            # none reads the place, the only 64 bits, once the warps go on by themselves: one sets it for the next word
            assert "ld.global.b64" in found.asm["ptx"]
            assert "ld.global.b64" not in found.asm["ptx"].rpartition("bar.sync")[2]
        seen.add(kernel)

    monkeypatch.setattr(overlap, "launch", launch)
    launches()
    assert len(seen) == 17


@on_gpu
@pytest.mark.parametrize("sentences", [30, 4, 1], ids=["many sources", "few words of sources", "one source"])
@pytest.mark.parametrize("name", SEARCHES)
def test_kernels_that_overlap_say_what_others_say(name: str, sentences: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded as graphs and replayed, to the last bit: they compute the same in the same order, and read nothing that
    was of another source."""
    size, shortest = (FOLDING, 14) if sentences == 1 else ({}, 1)
    model = a_model("plain", **size)
    source = random_batch([(4 * n % 13 + shortest, 2) for n in range(sentences)]).source
    others = [source.where(source <= EOS, EOS + 1 + (source + n) % 19) for n in range(8)]
    limits = torch.tensor([40 - n for n in range(sentences)])
    found = []
    for early in (True, False, True):
        monkeypatch.setattr(overlap, "OVERLAP", early)
        searcher = Searcher(model, MARKS._replace(eos=22))
        asked = (Asked(each, limits, model.plan(), "", SEARCHES[name]) for _ in range(4) for each in others)
        found.append([searcher.replay(each) for each in asked])
    assert found[0][: len(others)] == found[0][-len(others) :]
    assert all(several == found[0] for several in found)
    assert len({tuple(one.tokens) for each in found[0] for (one, *_) in each}) > 3
    assert quick.fits(model)
    (made,) = searcher.recorded.made.values()
    assert (made.inner.decoder.reader.words is not None) == (sentences <= 4)
    assert (list(made.steps) == [made.inner.room]) == (SEARCHES[name].beam == 1)


@on_gpu
@pytest.mark.parametrize("name", SEARCHES)
def test_searches_at_the_same_time_say_what_each_says_alone(name: str) -> None:
    model = a_model("plain")
    searcher = Searcher(model, MARKS._replace(eos=22))
    batches = 3 * batches_of_many_shapes(model.plan(), SEARCHES[name], longest=40)
    expected = [searcher.search(one) for one in batches]
    for _ in range(3):
        assert list(searcher.searches(batches, 3)) == expected
    assert quick.fits(model)
