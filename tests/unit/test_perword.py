"""Words that are really left out compute what they would if their results were only thrown away."""

from typing import Any

import numpy as np
import pytest
import torch
from classifiers import labelled_batch, tiny_classifier
from conftest import PAD
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from anydepth.config import loads
from anydepth.data.labelled_batch import LabelledBatch
from anydepth.depth.full import FullConfig
from anydepth.depth.perword import PerWordConfig
from anydepth.depth.prefix import PrefixConfig
from anydepth.encoder_models import Classifier
from anydepth.errors import UserError
from anydepth.nn.attention import Packed, Padded, attend
from anydepth.nn.layers import Layer
from anydepth.nn.perword import lay_out, run_words, step
from anydepth.objectives.single import single

LENGTHS, LAYERS = [5, 1, 7, 3], 4
NORMS, STOPPED = ["pre", "post", "none"], ["refresh", "keep"]


def with_depths(batch: LabelledBatch, depths: Any) -> LabelledBatch:
    lengths = (batch.source != PAD).sum(1).numpy()
    depths = np.broadcast_to(depths, (lengths.sum(),)).copy()
    return batch._replace(words=lay_out(depths, lengths, batch.source.shape[1]))


def random_depths(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, LAYERS + 1, sum(LENGTHS))


def masked_twin(model: Classifier, batch: LabelledBatch, depths: np.ndarray, refresh: bool) -> Tensor:
    """Every layer computes every word of the padded batch; `where` keeps what a stopped word had."""
    grid = torch.zeros(batch.source.shape, dtype=torch.long)
    grid[batch.source != PAD] = torch.from_numpy(depths)
    x, sees = model.embed(batch)
    assert isinstance(sees, Padded)
    kept: tuple[Tensor, ...] | None = None
    for number, layer in enumerate(model.encoder.layers, start=1):
        assert isinstance(layer, Layer)
        running = (grid >= number)[:, :, None]
        q, *kv = layer.attention.qkv(layer.enter(x, layer.attention_norm)).chunk(3, -1)
        if kept is not None and not refresh:
            kv = [torch.where(running, new, old) for new, old in zip(kv, kept)]
        kept = tuple(kv)
        heads = [part.unflatten(-1, (layer.attention.heads, -1)) for part in (q, *kv)]
        attended = layer.attention.out(attend(*heads, sees, causal=False, dropout=0.0).flatten(2))
        new = layer.finish(layer.leave(x, attended, None, layer.attention_norm), None, None, None)
        x = torch.where(running, new, x)
    return model.predict(x, batch)


@pytest.mark.parametrize("stopped", STOPPED)
@pytest.mark.parametrize("norm", NORMS)
def test_the_same_function_and_gradients_as_the_masked_twin(norm: str, stopped: Any) -> None:
    model = tiny_classifier(PerWordConfig(stopped=stopped), LAYERS, norm).double()
    batch, refresh = labelled_batch(LENGTHS), stopped == "refresh"
    for seed in range(3):
        depths = random_depths(seed)
        model.zero_grad(set_to_none=True)
        masked = masked_twin(model, batch, depths, refresh)
        masked.square().sum().backward()
        expected = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
        model.zero_grad(set_to_none=True)
        found = model(with_depths(batch, depths), model.plan())
        found.square().sum().backward()
        assert torch.allclose(found, masked, atol=1e-12)
        for name, gradient in expected.items():
            assert (model.get_parameter(name).grad - gradient).abs().max() < 1e-10 * (1 + gradient.abs().max()), name
        with torch.no_grad():  # where results are put back in place
            assert torch.allclose(model(with_depths(batch, depths), model.plan()), masked, atol=1e-12)


def test_refresh_and_keep_are_different_functions() -> None:
    batch = with_depths(labelled_batch(LENGTHS), random_depths())
    one, other = (tiny_classifier(PerWordConfig(stopped=stopped), LAYERS) for stopped in ("refresh", "keep"))
    other.load_state_dict(one.state_dict())
    assert (one(batch, one.plan()) - other(batch, other.plan())).abs().max() > 1e-3


@pytest.mark.parametrize("stopped", STOPPED)
@pytest.mark.parametrize("norm", NORMS)
def test_all_layers_is_the_plain_encoder_and_a_constant_depth_a_prefix(norm: str, stopped: Any) -> None:
    model = tiny_classifier(PerWordConfig(stopped=stopped), LAYERS, norm)
    plain, prefix = (tiny_classifier(depth, LAYERS, norm) for depth in (FullConfig(), PrefixConfig()))
    for other in (plain, prefix):
        other.load_state_dict(model.state_dict())
    batch = labelled_batch(LENGTHS)
    expected = plain(batch, plain.plan())
    assert torch.allclose(model(with_depths(batch, LAYERS), model.plan()), expected, atol=1e-5)
    with pytest.raises(ValueError, match="does not say how deep"):
        model(batch, model.plan())
    for depth in range(1, LAYERS + 1):
        found = model(with_depths(batch, depth), model.plan())
        assert torch.allclose(found, prefix(batch, prefix.plan(str(depth))), atol=1e-5)


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("stopped", STOPPED)
@pytest.mark.parametrize("norm", NORMS)
def test_stopped_words_are_bit_identical_from_then_on(norm: str, stopped: Any, grad: bool) -> None:
    model = tiny_classifier(PerWordConfig(stopped=stopped), LAYERS, norm)
    depths = random_depths()
    words = with_depths(labelled_batch(LENGTHS), depths).words
    assert words is not None
    with torch.set_grad_enabled(grad):
        x, kept, seen = torch.randn(len(depths), 16), None, []
        for layer, running in zip(model.encoder.layers, words.steps):
            sees = Packed(running.starts, words.starts, running.longest, words.sizes.longest)
            x, kept = step(layer, x, kept, running.words, sees, stopped == "refresh")
            seen.append(x.detach().clone())
    for number, state in enumerate(seen, start=1):
        for word, depth in enumerate(depths):
            if number > depth:
                assert torch.equal(state[word], seen[depth - 1][word])
            elif number > 1:
                assert not torch.equal(state[word], seen[number - 2][word])


def test_no_more_is_computed_than_the_depths_say() -> None:
    """Counted are rows of matrices, in the layers themselves."""
    depths = random_depths()
    words = lay_out(depths, np.array(LENGTHS), max(LENGTHS))
    assert words.sizes.layer_words == depths.sum()
    assert words.sizes.refreshed_words == len(depths) * depths.max() - depths.sum()
    for stopped in STOPPED:
        model = tiny_classifier(PerWordConfig(stopped=stopped), LAYERS)
        rows: list[int] = []
        for layer in model.encoder.layers:
            layer.grow.register_forward_hook(lambda _, given, __, rows=rows: rows.append(len(given[0])))
        model(labelled_batch(LENGTHS)._replace(words=words), model.plan())
        assert sum(rows) == depths.sum()


@pytest.mark.parametrize("stopped", STOPPED)
def test_the_matrix_products_are_those_of_running_words_and_refreshed_keys(stopped: Any) -> None:
    model, depths = tiny_classifier(PerWordConfig(stopped=stopped), LAYERS), random_depths()
    words = lay_out(depths, np.array(LENGTHS), max(LENGTHS))
    with FlopCounterMode(display=False) as counter:
        model(labelled_batch(LENGTHS)._replace(words=words), model.plan())
    counted = sum(flops for name, flops in counter.get_flop_counts()["Global"].items() if "mm" in str(name))
    width, ffn = 16, 24
    expected = 2 * depths.sum() * (4 * width**2 + 2 * width * ffn)
    expected += 2 * words.sizes.refreshed_words * 2 * width**2 if stopped == "refresh" else 0
    assert counted == expected


def test_the_deepest_word_decides_how_many_layers_run() -> None:
    model = tiny_classifier(PerWordConfig(), LAYERS)
    ran: list[int] = []
    for number, layer in enumerate(model.encoder.layers):
        layer.grow.register_forward_hook(lambda *_, number=number: ran.append(number))
    model(with_depths(labelled_batch(LENGTHS), np.minimum(random_depths(), 2)), model.plan())
    assert ran == [0, 1]


def test_a_text_does_not_depend_on_its_batch() -> None:
    model, depths = tiny_classifier(PerWordConfig(), LAYERS), random_depths()
    together = model(with_depths(labelled_batch(LENGTHS), depths), model.plan())
    ends = np.cumsum(LENGTHS)
    for text, (end, size) in enumerate(zip(ends, LENGTHS)):
        alone = with_depths(labelled_batch(LENGTHS, only=text), depths[end - size : end])
        assert torch.allclose(model(alone, model.plan())[0], together[text], atol=1e-5)


def test_activation_checkpointing_changes_nothing() -> None:
    model = tiny_classifier(PerWordConfig(), LAYERS).train()
    batch, gradients = with_depths(labelled_batch(LENGTHS), random_depths()), []
    for recompute in (False, True):
        model.encoder.recompute = recompute
        model.zero_grad(set_to_none=True)
        single(model, batch, model.plan()).total.backward()
        gradients.append(model.encoder.layers[0].grow.weight.grad)
    assert torch.equal(*gradients)


def test_attention_weights_are_dropped_in_training_alone() -> None:
    model, batch = tiny_classifier(PerWordConfig(), LAYERS), with_depths(labelled_batch(LENGTHS), random_depths())
    expected = model(batch, model.plan())
    for layer in model.encoder.layers:
        layer.attention.dropout = 0.5
    assert torch.equal(model(batch, model.plan()), expected)
    model.train()
    assert not torch.allclose(model(batch, model.plan()), expected)


def test_run_words_leaves_its_input_alone_when_gradients_need_it() -> None:
    model, words = tiny_classifier(PerWordConfig(), LAYERS), lay_out(random_depths(), np.array(LENGTHS), 7)
    x = torch.randn(sum(LENGTHS), 16)
    before = x.clone()
    run_words(model.encoder, x, model.plan().encoder, words, refresh=True)
    assert torch.equal(x, before)


def test_a_halting_unit_decides_about_special_tokens() -> None:
    depth = 'model.encoder.depth={type="per-word", special="all", estimate={type="halting"}}'
    with pytest.raises(UserError, match=r"special: a halting unit decides about all tokens"):
        loads('[model]\ntype="classifier"\n', [depth, 'training.objective={type="halting"}'])


def test_a_depth_is_a_byte() -> None:
    recipe = '[model]\ntype="classifier"\nencoder={depth={type="per-word"}}\n'
    loads(recipe, ["model.encoder.layers=255"])
    with pytest.raises(UserError, match=r"model.encoder.*: per-word is for up to 255 layers, not 256"):
        loads(recipe, ["model.encoder.layers=256"])


@pytest.mark.parametrize(
    "estimate", ['{type="constant", depth=5}', '{type="mutual-information", deepest=5}'], ids=["constant", "deepest"]
)
def test_no_word_can_run_more_layers_than_there_are(estimate: str) -> None:
    settings = ["model.encoder.layers=4", f'model.encoder.depth={{type="per-word", estimate={estimate}}}']
    with pytest.raises(UserError, match=r"depth.estimate.*: 5, but there are 4 layers"):
        loads('[model]\ntype="classifier"\n', settings)
