"""Triton kernels for words sorted by depth against plain PyTorch. Without a GPU they run in Triton's interpreter."""

from typing import Any

import numpy as np
import pytest
import torch
from interpreted import interpreted, on_gpu, run_interpreted, without_gpu
from torch import Tensor, nn

pytest.importorskip("triton", reason="needs Triton, which comes with PyTorch for CUDA only")

from anydepth.classifying.word_places import Sorted
from anydepth.nn import row_attention, row_states
from anydepth.nn.embeddings import Embedding
from anydepth.nn.row_attention import SINGLE, Step, Texts, Tile, attend_text_by_text, step_numbers
from anydepth.nn.row_states import Listed

HEADS, LAYERS = 2, 3
# more than one tile of queries, keys and pooled rows, a text of one word, and one that stops after the first layer
LENGTHS, STOPPED = np.array([40, 1, 130, 9, 33]), 3
SMALL = Tile(16, 32, 1, 2)
HALF = 1e-2, torch.float16  # the interpreter multiplies bfloat16 as if it were integers


@without_gpu
def test_kernels_in_the_interpreter() -> None:
    run_interpreted(__file__)


def laid_out(tile: Tile, places: int, device: str) -> tuple[Texts, list[Tensor]]:
    """Words of random depths; the batch could have some texts more."""
    random = np.random.default_rng(0)
    depths = random.integers(1, LAYERS + 1, LENGTHS.sum())
    depths[LENGTHS[:STOPPED].sum() : LENGTHS[: STOPPED + 1].sum()] = 1
    words = Sorted.by_depth(depths, LENGTHS, LAYERS)
    more = (0, places - len(LENGTHS))
    lengths, running = np.pad(LENGTHS, more), np.pad(words.running, ((0, 0), more))
    starts, turns = np.append(0, np.cumsum(lengths)), np.argsort(-lengths)
    numbers = step_numbers(running[:, turns], [tile] * LAYERS)
    by_length = np.stack([starts[:-1][turns], starts[1:][turns]])
    rows, starts, by_length, numbers = (
        torch.from_numpy(x.astype(np.int32)).to(device) for x in (words.rows, starts, by_length, numbers)
    )
    return Texts(rows, starts, by_length), list(numbers)


def assert_attends(width: int, tile: Tile, planes: int, dtype: torch.dtype, error: float, device: str) -> None:
    texts, steps = laid_out(tile, 8, device)
    size, total = HEADS * width, int(LENGTHS.sum())
    for numbers in steps:
        qkv = torch.randn(planes, total + 20, 3 * size, dtype=dtype, device=device)  # 20 spare rows
        out = torch.full((total + 20, size), 7.0, dtype=dtype, device=device)
        count, exact = int(numbers[0]) + 11, qkv.double()  # counts are rounded up
        expected = attended(attend_text_by_text, exact, out.double(), count, texts, Step(numbers, tile))
        found = attended(row_attention.launch, qkv, out, count, texts, Step(numbers, tile))
        assert (found - expected).abs().max() <= error * expected.abs().max()
        assert torch.equal(found[int(numbers[0]) :], out[int(numbers[0]) :])  # nobody else's row was written
        assert torch.equal(qkv.double(), exact)  # where words that stop were copied
        assert (planes == 1) or torch.equal(
            qkv[1, numbers[1] : numbers[0], size:], qkv[0, numbers[1] : numbers[0], size:]
        )


def attended(attend: object, qkv: Tensor, out: Tensor, count: int, texts: Texts, step: Step) -> Tensor:
    q, k, v = qkv.chunk(3, 2)
    out = out.clone()
    attend(q[0, :count], k, v, out, HEADS, texts, step)
    return out


@interpreted
@pytest.mark.parametrize("planes", [1, 2], ids=["refresh", "keep"])
@pytest.mark.parametrize(("tile", "error", "dtype"), [(SINGLE, 2e-6, torch.float32), (SMALL, *HALF)], ids=str)
def test_attention(tile: Tile, error: float, dtype: torch.dtype, planes: int) -> None:
    assert_attends(16, tile, planes, dtype, error, "cpu")


@on_gpu
@pytest.mark.parametrize("planes", [1, 2], ids=["refresh", "keep"])
@pytest.mark.parametrize("width", [16, 32, 64, 128])
@pytest.mark.parametrize("tile", [tile for *_, tile in row_attention.TILES], ids=str)
def test_attention_on_the_gpu(tile: Tile, width: int, planes: int) -> None:
    assert_attends(width, tile, planes, torch.bfloat16, 2e-2, "cuda")
    assert_attends(width, SINGLE, planes, torch.float32, 1e-5, "cuda")


def assert_adds(width: int, dtype: torch.dtype, error: float, device: str) -> None:
    norm = nn.LayerNorm(width, 1e-12).to(device, dtype).requires_grad_(False)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    running, rows = torch.tensor([13], dtype=torch.int32, device=device), 23
    x, branch = torch.randn(2, rows, width, dtype=dtype, device=device)
    added = (x + branch)[:13]
    for given, apart in ((None, False), (norm, False), (norm, True)):
        found, normed = x.clone(), torch.zeros_like(x)
        row_states.launch_add(found, branch[:20], running, given, normed if apart else found)
        expected = added if given is None else norm(added)
        assert torch.equal(found[13:], x[13:])
        assert not normed[13:].any()
        assert ((normed if apart else found)[:13] - expected).abs().max() <= error * expected.abs().max()
        assert not apart or torch.equal(found[:13], added)


@interpreted
@pytest.mark.parametrize("width", [24, 1030])
@pytest.mark.parametrize(("error", "dtype"), [(2e-6, torch.float32), (2e-3, torch.float16)], ids=str)
def test_addition_and_norm(width: int, error: float, dtype: torch.dtype) -> None:
    assert_adds(width, dtype, error, "cpu")


@on_gpu
@pytest.mark.parametrize("width", [24, 384, 768, 1030])
def test_addition_and_norm_on_the_gpu(width: int) -> None:
    assert_adds(width, torch.bfloat16, 1e-2, "cuda")
    assert_adds(width, torch.float32, 1e-5, "cuda")


def assert_embeds(
    positions: Any, norm: bool, scaled: bool, width: int, dtype: torch.dtype, error: float, device: str
) -> None:
    embedding = Embedding(nn.Embedding(50, width), positions, 9, norm, 0.0, scaled, 1e-12).eval().requires_grad_(False)
    if norm:
        nn.init.normal_(embedding.norm.weight)
        nn.init.normal_(embedding.norm.bias)
    embedding, random = embedding.to(device, dtype), np.random.default_rng(0)
    # 13 of the words run; what is listed behind them is nowhere
    listed = [random.integers(0, 50, 20), random.integers(0, 9, 20), np.append(random.permutation(13), [10**9] * 7)]
    words = Listed(*(torch.from_numpy(x.astype(np.int32)).to(device) for x in listed))
    order, running = words.order[:13], torch.tensor([13], dtype=torch.int32, device=device)
    expected = embedding(words.tokens[order][None], words.positions[order][None])[0]
    found = torch.full((20, width), 7.0, dtype=dtype, device=device)
    row_states.launch_embed(found, embedding, words, running)
    assert (found[:13] - expected).abs().max() <= error * expected.abs().max()
    assert (found[13:] == 7).all()


EMBEDDINGS = [("learned", True, False), ("learned", False, True), ("sinusoidal", True, True)]


@interpreted
@pytest.mark.parametrize("width", [24, 1030])
@pytest.mark.parametrize(("positions", "norm", "scaled"), EMBEDDINGS)
@pytest.mark.parametrize(("error", "dtype"), [(2e-6, torch.float32), (2e-3, torch.float16)], ids=str)
def test_embedding(positions: Any, norm: bool, scaled: bool, width: int, error: float, dtype: torch.dtype) -> None:
    assert_embeds(positions, norm, scaled, width, dtype, error, "cpu")


@on_gpu
@pytest.mark.parametrize("width", [24, 384, 1030])
@pytest.mark.parametrize(("positions", "norm", "scaled"), EMBEDDINGS)
def test_embedding_on_the_gpu(positions: Any, norm: bool, scaled: bool, width: int) -> None:
    assert_embeds(positions, norm, scaled, width, torch.bfloat16, 1e-2, "cuda")
    assert_embeds(positions, norm, scaled, width, torch.float32, 1e-5, "cuda")


def assert_pools(dtype: torch.dtype, device: str) -> None:
    texts, _ = laid_out(SINGLE, 8, "cpu")
    states = torch.randn(int(LENGTHS.sum()) + 5, 72, dtype=dtype)
    expected, found = row_states.pool_texts(states, texts), torch.full((8, 144), 7.0, dtype=dtype, device=device)
    row_states.launch_pool(states.to(device), Texts(*(tensor.to(device) for tensor in texts)), found)
    error = max(1e-5, torch.finfo(dtype).eps)  # sums in another order may round the other way
    torch.testing.assert_close(found.cpu(), expected, atol=error, rtol=error)


@interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_pooling(dtype: torch.dtype) -> None:
    assert_pools(dtype, "cpu")


@on_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pooling_on_the_gpu(dtype: torch.dtype) -> None:
    assert_pools(dtype, "cuda")
