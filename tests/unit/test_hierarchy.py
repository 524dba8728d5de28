"""The hierarchical encoder: sentences found by their marks, read apart, and documents by their sentences."""

import pytest
import torch
from conftest import EOS, PAD, assert_exits_equal_separate_runs, random_batch
from torch import Tensor, nn

from anydepth.data.collate import Batch
from anydepth.depth.full import FullConfig
from anydepth.depth.prefix import PrefixConfig
from anydepth.depth.rezero import ReZeroConfig
from anydepth.models import StackConfig, Translator, TranslatorConfig
from anydepth.nn.attention import Padded
from anydepth.nn.hierarchy import find_sentences
from anydepth.nn.layers import LayerConfig
from anydepth.objectives.single import single
from anydepth.plan import Plan, Plans

DOCUMENTS = [[5, 6, EOS, 7, EOS, 8, 9, 10, EOS], [11, 12, 13, EOS], [5, EOS, 6, EOS]]


def padded(documents: list[list[int]], width: int = 0) -> Tensor:
    width = max(width, *map(len, documents))
    return torch.tensor([[*tokens, *[PAD] * (width - len(tokens))] for tokens in documents])


def batch_of(documents: list[list[int]], width: int = 0) -> Batch:
    lengths = [(2, 3 + number) for number in range(len(documents))]
    return random_batch(lengths)._replace(source=padded(documents, width))


def hierarchical(positions: str = "sinusoidal", lower: int = 2, norm: str = "pre", **stacks: StackConfig) -> Translator:
    layer = LayerConfig(width=16, ffn=24, heads=2, dropout=0.0, norm=norm)
    stacks = {"encoder": StackConfig(layers=4), "decoder": StackConfig(layers=2)} | stacks
    config = TranslatorConfig(layer=layer, sentence_layers=lower, positions=positions, **stacks)
    model = Translator(config, 23, 23, PAD).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.eval()


def memory(model: Translator, source: Tensor) -> Tensor:
    decoder = model.start(source, model.plan())
    state = decoder.memories[0].state
    assert state is not None
    return state


def test_where_sentences_are() -> None:
    found = find_sentences(padded(DOCUMENTS), PAD)
    assert found.number.tolist() == [
        [0, 0, 0, 1, 1, 2, 2, 2, 2],
        [0, 0, 0, 0, 1, 1, 1, 1, 1],
        [0, 0, 1, 1, 2, 2, 2, 2, 2],
    ]
    assert found.there.tolist() == [[True, True, True], [True, False, False], [True, True, False]]
    assert found.ends[found.there].tolist() == [2, 4, 8, 3, 1, 3]
    assert found.place[0].tolist() == [0, 1, 2, 0, 1, 0, 1, 2, 3]
    assert found.place[2, :4].tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_neither_padding_nor_batch_mates_matter(positions: str) -> None:
    model = hierarchical(positions)
    together = memory(model, padded(DOCUMENTS, width=14))
    for row, document in zip(together, DOCUMENTS):
        alone = memory(model, padded([document]))[0]
        assert torch.allclose(row[: len(document)], alone, atol=1e-12)


def test_lower_layers_do_not_look_across_sentences() -> None:
    """With no layers of documents in the plan, a word depends on its own sentence alone; with them on all."""
    model = hierarchical()
    other = [row.copy() for row in DOCUMENTS]
    other[0][3] = 15  # the sentence in the middle
    for layers, changed in (((0, 1), {3, 4}), ((0, 1, 2, 3), set(range(9)))):
        plans = Plans(Plan(layers), model.plan().decoder)
        before, after = (model.start(padded(each), plans).memories[0].state for each in (DOCUMENTS, other))
        different = (before != after).any(-1)[0]
        assert set(different.nonzero().flatten().tolist()) == changed


def test_the_place_of_a_sentence_matters() -> None:
    model = hierarchical()
    first, second = (memory(model, padded([document]))[0] for document in ([5, EOS, 6, EOS], [6, EOS, 5, EOS]))
    assert not torch.allclose(first[:2], second[2:], atol=1e-6)


def test_a_document_of_one_sentence_by_hand() -> None:
    """Its words are read as by a plain encoder, and its last state, read on by the upper layers, is added to them."""
    model, source = hierarchical(lower=3), padded([[11, 12, 13, EOS]])
    x = model.source(source, torch.arange(4)[None])
    for layer in range(3):
        x = model.encoder.step(layer, x, None, Padded(None))
    vector = x[:, -1:] + model.source.places(torch.zeros(1, 1, dtype=torch.long))
    top = model.encoder.step(3, vector, None, Padded(None))
    assert torch.allclose(memory(model, source), model.bridge.norm(x + top), atol=1e-12)


@pytest.mark.parametrize(
    ("depth", "norm"), [(FullConfig(), "pre"), (FullConfig(), "post"), (ReZeroConfig(), "none")], ids=str
)
def test_incremental_decoding_equals_full_decoding(depth: FullConfig | ReZeroConfig, norm: str) -> None:
    model = hierarchical(norm=norm, encoder=StackConfig(layers=4, depth=depth))
    batch = batch_of(DOCUMENTS)
    expected = model.logits(model(batch, model.plan()))
    decoder = model.start(batch.source, model.plan())
    for position in range(batch.target_in.shape[1]):
        got = decoder.step(batch.target_in[:, position])
        real = batch.target_in[:, position] != PAD
        assert torch.allclose(got[real], expected[real, position], atol=1e-10)


def test_gradients_reach_words_and_sentences() -> None:
    model, batch = hierarchical("learned"), batch_of(DOCUMENTS)
    single(model, batch, model.plan()).total.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.isfinite().all()), name
        assert float(parameter.grad.abs().sum()) > 0 or name.endswith("qkv.bias"), name


def test_decoder_exits_share_the_encoder() -> None:
    model = hierarchical(decoder=StackConfig(layers=2, depth=PrefixConfig()))
    assert model.depths() == ["4-1", "4-2"]
    assert_exits_equal_separate_runs(model, batch_of(DOCUMENTS))


def test_it_has_the_size_of_a_plain_model() -> None:
    plain = Translator(TranslatorConfig(encoder=StackConfig(layers=4)), 23, 23, PAD)
    ours = Translator(TranslatorConfig(encoder=StackConfig(layers=4), sentence_layers=2), 23, 23, PAD)
    assert {name: p.shape for name, p in ours.named_parameters()} == {
        name: p.shape for name, p in plain.named_parameters()
    }
