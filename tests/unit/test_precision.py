"""Weights in other number types and layouts, and one sentence alone on a CPU."""

from typing import Any

import pytest
import torch
from conftest import random_batch, talkative_translator, tiny_translator
from searches import MARKS, SEARCHES
from threadpoolctl import threadpool_info, threadpool_limits
from torch import nn

from anydepth.decoding.decoder import DecodingConfig, Precision
from anydepth.decoding.greedy import extend_rows
from anydepth.depth import DepthConfig
from anydepth.depth.full import FullConfig
from anydepth.depth.latent import LatentConfig
from anydepth.depth.prefix import PrefixConfig
from anydepth.depth.recurrent import RecurrentConfig
from anydepth.depth.rezero import ReZeroConfig
from anydepth.errors import UserError
from anydepth.models import Translator
from anydepth.nn.multiscale import MultiscaleConfig
from anydepth.translating.alone import DecoderAlone, LayerAlone
from anydepth.translating.precision import BLOCKS_PAY, BlockedLinear, Float32Linear, for_searching, rough_head
from anydepth.translating.searching import Asked, Searcher

LENGTHS = [(n % 11 + 1, 2) for n in range(24)]
PACKED: list[Precision] = ["float32", "bfloat16", "float16", "int8"]
"""In which projections are other modules than in training."""


def sentences() -> list[torch.Tensor]:
    """(1, S) each."""
    batch = random_batch(LENGTHS)
    return [row[row != MARKS.pad][None] for row in batch.source]


@torch.no_grad()
def logits(model: Translator, source: torch.Tensor) -> torch.Tensor:
    """Of three words, in double precision."""
    decoder = model.start(source, model.plan())
    return torch.stack([decoder.step(torch.tensor([word])) for word in (MARKS.bos, 9, 5)]).double()


@pytest.mark.parametrize(
    "depth",
    [FullConfig(), PrefixConfig(), RecurrentConfig(depth=5), LatentConfig(inference="soft")],
    ids=lambda one: one.type,
)
def test_a_sentence_alone_is_said_as_in_a_batch(depth: DepthConfig) -> None:
    model = talkative_translator(depth)
    plans, said = model.plan(), set()
    for source in sentences():
        limit = torch.tensor([13])
        with torch.no_grad():
            assert DecoderAlone.fits(model.start(source, plans))
            ((found,),) = Searcher(model, MARKS).grow(Asked(source, limit, plans, "", SEARCHES["greedy"], [0]))
            decoder = model.start(source, plans)
            (expected,) = extend_rows(decoder, lambda words, *_: words.argmax(-1), *MARKS, limit)
        assert found.tokens == expected.tokens
        assert found[1:] == pytest.approx(expected[1:], abs=1e-5)
        said.add(tuple(found.tokens))
    assert len(said) > 5


@pytest.mark.parametrize(
    ("depth", "settings"),
    [
        (FullConfig(), {"norm": "post", "attention_bias": False}),
        (FullConfig(), {"activation": "gelu", "norm_epsilon": 0.1}),
        (FullConfig(), {"positions": "learned", "embedding_norm": True}),
        (ReZeroConfig(), {}),
    ],
    ids=["post", "gelu", "learned", "rezero"],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_sentence_alone_has_the_logits_of_its_layers(
    depth: DepthConfig, settings: dict[str, Any], dtype: torch.dtype
) -> None:
    model = tiny_translator(depth, **settings).to(dtype)
    near = {torch.float64: 1e-10, torch.float32: 2e-4}[dtype]
    for source in sentences():
        with torch.no_grad():
            begun = model.start(source, model.plan())
            alone = DecoderAlone(begun, room=5)
            for word in (MARKS.bos, 9, 5, 20, 9):
                found, expected = alone.step(torch.tensor([word])), begun.step(torch.tensor([word]))
                torch.testing.assert_close(found, expected, rtol=near, atol=near)


@pytest.mark.parametrize("precision", PACKED)
@pytest.mark.parametrize("name", ["greedy", "speculation"])
def test_weights_that_are_not_numbers_are_told(name: str, precision: Precision) -> None:
    model = talkative_translator(PrefixConfig()).float()
    model.decoder.layers[0].shrink.weight.data[0, 0] = torch.inf
    asked = Asked(sentences()[0], torch.tensor([5]), model.plan(), "", SEARCHES[name], [0])
    with torch.no_grad(), pytest.raises(UserError, match="logits are not numbers"):
        Searcher(for_searching(model, precision), MARKS).grow(asked)


@pytest.mark.parametrize("name", ["greedy", "speculation"])
def test_a_sentence_alone_is_said_by_one_thread(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, step = [], LayerAlone.step

    def looked_at(layer: LayerAlone, *given: Any) -> Any:
        seen.append([one["num_threads"] for one in threadpool_info()])
        return step(layer, *given)

    monkeypatch.setattr(LayerAlone, "step", looked_at)
    model, source, limit = talkative_translator(PrefixConfig()), sentences()[-1], torch.tensor([3])
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with threadpool_limits(2), torch.no_grad():
            Searcher(model, MARKS).grow(Asked(source, limit, model.plan(), "", SEARCHES[name], [0]))
            assert torch.get_num_threads() == 2
            assert {one["num_threads"] for one in threadpool_info()} == {2}
    finally:
        torch.set_num_threads(before)
    assert seen
    assert {number for numbers in seen for number in numbers} == {1}


def test_what_one_sentence_alone_cannot_do_is_left_to_the_layers() -> None:
    plain = talkative_translator()
    padded = random_batch([(3, 2), (5, 2)]).source
    contexts = talkative_translator(bridge=MultiscaleConfig())
    with torch.no_grad():
        assert not DecoderAlone.fits(plain.start(padded, plain.plan()))
        assert not DecoderAlone.fits(contexts.start(padded[1:], contexts.plan()))
        rounded = for_searching(plain.float(), "bfloat16")  # a number type that NumPy does not have
        assert not DecoderAlone.fits(rounded.start(padded[1:], plain.plan()))


@pytest.mark.parametrize("precision", PACKED)
def test_weights_are_shared_or_copied_and_never_changed(precision: Precision) -> None:
    model = talkative_translator(PrefixConfig()).float()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    strides = {name: tensor.stride() for name, tensor in model.state_dict().items()}
    searched = for_searching(model, precision)
    logits(searched, sentences()[-1])
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert {name: tensor.stride() for name, tensor in after.items()} == strides
    assert model.head is None
    shared = searched.target.words.weight.data_ptr() == model.target.words.weight.data_ptr()
    assert shared == (precision != "bfloat16")


@pytest.mark.parametrize(
    ("precision", "near"), [("float32", 1e-5), ("float16", 3e-3), ("bfloat16", 5e-2), ("int8", 1e-1)]
)
def test_logits_stay_near(precision: Precision, near: float) -> None:
    """Relative to how much they vary; and none is exact but float32, so that it is known to be in use."""
    model = talkative_translator(PrefixConfig()).float()
    searched, errors = for_searching(model, precision), []
    for source in sentences():
        exact = logits(model, source)
        errors.append(float((logits(searched, source) - exact).norm() / exact.norm()))
    assert max(errors) < near
    assert precision == "float32" or min(errors) > near / 1000


@pytest.mark.parametrize("precision", PACKED)
def test_contexts_of_a_multiscale_encoder_are_read_in_it_too(precision: Precision) -> None:
    model = talkative_translator(bridge=MultiscaleConfig()).float()
    source = sentences()[-1]
    exact = logits(model, source)
    assert (logits(for_searching(model, precision), source) - exact).norm() < 0.1 * exact.norm()


@pytest.mark.parametrize("precision", PACKED)
def test_all_projections_are_packed(precision: Precision) -> None:
    model = for_searching(talkative_translator(PrefixConfig()).float(), precision)
    assert not [name for name, part in model.named_modules() if isinstance(part, nn.Linear)]


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("precision", PACKED)
def test_every_search_runs_in_it(precision: Precision, name: str) -> None:
    model = for_searching(talkative_translator(PrefixConfig()).float(), precision)
    batch, limits = random_batch(LENGTHS).source, torch.full((len(LENGTHS),), 9)
    with torch.no_grad():
        found = Searcher(model, MARKS).search(Asked(batch, limits, model.plan(), "", SEARCHES[name], range(len(batch))))
    assert len({tuple(best.tokens) for best, *_ in found}) > 5


@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("rows", [1, len(LENGTHS)])
def test_speculation_says_what_greedy_search_does(precision: Precision, rows: int) -> None:
    searcher = Searcher(for_searching(talkative_translator(PrefixConfig()).float(), precision), MARKS)
    batch, said = random_batch(LENGTHS).source, dict[str, list[list[int]]]()
    for name in ("greedy", "speculation"):
        found = []
        for some in batch.split(rows):
            some = some[:, (some != MARKS.pad).any(dim=0)]
            asked = Asked(some, torch.full((rows,), 9), searcher.model.plan(), "", SEARCHES[name], range(rows))
            with torch.no_grad():
                found += searcher.search(asked)
        said[name] = [best.tokens for best, *_ in found]
    assert said["greedy"] == said["speculation"]
    assert len({tuple(tokens) for tokens in said["greedy"]}) > 5


def test_without_their_kernels_projections_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    monkeypatch.setattr("anydepth.translating.precision.has_fbgemm", lambda: False)
    model = talkative_translator(PrefixConfig()).float()
    searched, source = for_searching(model, "float32"), sentences()[-1]
    torch.testing.assert_close(logits(searched, source), logits(model, source))
    assert not [part for part in searched.modules() if isinstance(part, BlockedLinear)]
    assert rough_head(searched) is None
    asked = Asked(source, torch.tensor([9]), model.plan(), "", SEARCHES["speculation"], [0])
    ((drafted,),) = Searcher(searched, MARKS).grow(asked)
    ((plain,),) = Searcher(searched, MARKS).grow(asked._replace(decoding=SEARCHES["greedy"]))
    assert drafted.tokens == plain.tokens
    with pytest.raises(UserError, match="no FBGEMM"):
        for_searching(model, "int8")


@pytest.mark.parametrize("rows", [1, 5, 400])
def test_large_products_are_read_in_blocks(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked: list[int] = []
    forward = BlockedLinear.forward
    monkeypatch.setattr(BlockedLinear, "forward", lambda part, x: blocked.append(len(x)) or forward(part, x))
    linear, x = nn.Linear(48, 40), torch.randn(rows, 48)
    torch.testing.assert_close(Float32Linear(linear)(x), linear(x))
    assert blocked == ([rows] if 48 * 40 * rows >= BLOCKS_PAY else [])
    assert bool(blocked) == (rows == 400)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_source_is_read_once(precision: Precision) -> None:
    searcher = Searcher(for_searching(talkative_translator(PrefixConfig()).float(), precision), MARKS)
    reads: list[nn.Module] = []
    searcher.model.encoder.layers[0].register_forward_hook(lambda layer, *_: reads.append(layer))
    for name in ("greedy", "speculation"):
        asked = Asked(sentences()[-1], torch.tensor([9]), searcher.model.plan(), "", SEARCHES[name], [0])
        with torch.no_grad():
            searcher.grow(asked)
    assert len(reads) == 2


@pytest.mark.parametrize("precision", PACKED)
def test_gates_scale_in_it_too(precision: Precision) -> None:
    model = for_searching(talkative_translator(LatentConfig(inference="soft")).float(), precision)
    plans, limit, agreed = model.plan(), torch.tensor([9]), 0
    for source in sentences():
        with torch.no_grad():
            ((found,),) = Searcher(model, MARKS).grow(Asked(source, limit, plans, "", SEARCHES["greedy"], [0]))
            (expected,) = extend_rows(model.start(source, plans), lambda words, *_: words.argmax(-1), *MARKS, limit)
        agreed += found.tokens == expected.tokens
    assert agreed > 20


def test_words_that_stop_early_leave_keys_and_values_in_int8() -> None:
    model = for_searching(talkative_translator(PrefixConfig()).float(), "int8")
    source, limits = random_batch(LENGTHS).source, torch.full((len(LENGTHS),), 9)
    decoding = DecodingConfig(beam=1, exit=1, exit_margin=0.0)
    searcher, shallow = Searcher(model, MARKS), model.plan()._replace(decoder=model.decoder_depth.plans("")[1])
    with torch.no_grad():
        found = searcher.search(Asked(source, limits, model.plan(), "", decoding, range(len(source))))
        expected = searcher.search(Asked(source, limits, shallow, "", SEARCHES["greedy"], range(len(source))))
    assert [one.tokens for (one,) in found] == [one.tokens for (one,) in expected]


@pytest.mark.parametrize("precision", ["float16", "int8"])
def test_other_devices_are_refused(precision: Precision) -> None:
    model = talkative_translator(PrefixConfig()).to("meta")
    with pytest.raises(UserError, match=f"precision {precision}: for a CPU, not for meta"):
        for_searching(model, precision)


def test_tall_matrices_of_the_decoder_stand_column_by_column() -> None:
    trained = talkative_translator().float()
    model = for_searching(trained, "float32")
    searcher, source = Searcher(model, MARKS), sentences()[-1]
    for rows, prepared in ((2, 0), (1, 1), (1, 1)):
        batch = source.expand(rows, -1)
        searcher.grow(Asked(batch, torch.tensor([3] * rows), model.plan(), "", SEARCHES["greedy"], range(rows)))
        assert searcher.preparations == prepared
    first, same = model.decoder.layers[0], trained.decoder.layers[0]
    assert first.attention.qkv.weight.stride() == (1, 48)
    assert first.attention.out.weight.stride() == (1, 16)
    assert torch.equal(first.attention.out.weight, same.attention.out.weight)
    assert torch.equal(first.shrink.weight, same.shrink.weight)
    assert first.shrink.weight.is_contiguous()
    assert first.cross is not None
    assert first.cross.key_value.weight.is_contiguous()
    assert model.head is not None
    assert model.head.weight.stride() == (1, 23)
    assert model.encoder.layers[0].grow.weight.is_contiguous()
