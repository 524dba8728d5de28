"""The Triton kernels for packed short sentences against plain attention in float64, and against flash attention.

Without a GPU the kernels run in Triton's interpreter.
"""

from itertools import accumulate, pairwise

import pytest
import torch
from interpreted import interpreted, on_gpu, run_interpreted, without_gpu
from torch import Tensor

pytest.importorskip("triton", reason="needs Triton, which comes with PyTorch for CUDA only")

from anydepth.nn.packed_attention import short_attention

# one tile of each size, their borders, loops, nothing at all
LENGTHS = [1, 17, 32, 33, 64, 65, 131, 2, 0, 0]
OTHER_LENGTHS = [40, 3, 70, 1, 129, 64, 9, 33, 0, 0]


@without_gpu
def test_kernels_in_the_interpreter() -> None:
    run_interpreted(__file__)


def starts(lengths: list[int], device: str = "cpu") -> Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)


def inputs(lengths: list[int], key_lengths: list[int], width: int, dtype: torch.dtype, device: str) -> list[Tensor]:
    """q, k, v and the gradient of the result as they come from fused projections: strided views."""
    queries = torch.randn(sum(lengths), 2, 2, width, dtype=dtype, device=device)
    keys = torch.randn(sum(key_lengths), 2, 2, width, dtype=dtype, device=device)
    q, dout = queries.unbind(1)
    return [*(x.detach().requires_grad_() for x in (q, *keys.unbind(1))), dout]


def plain_attention(q: Tensor, k: Tensor, v: Tensor, query_starts: Tensor, key_starts: Tensor, causal: bool) -> Tensor:
    parts = []
    for (a, b), (c, d) in zip(pairwise(query_starts.tolist()), pairwise(key_starts.tolist())):
        scores = torch.einsum("thd,shd->hts", q[a:b], k[c:d]) / q.shape[2] ** 0.5
        if causal:
            scores = scores.masked_fill(torch.ones(scores.shape[1:], device=q.device).triu(1) > 0, -torch.inf)
        parts.append(torch.einsum("hts,shd->thd", scores.softmax(2), v[c:d]))
    return torch.cat(parts)


def assert_equals_plain(
    lengths: list[int], key_lengths: list[int], causal: bool, width: int, dtype: torch.dtype, error: float, device: str
) -> None:
    *qkv, dout = inputs(lengths, key_lengths, width, dtype, device)
    words = starts(lengths, device), starts(key_lengths, device), causal
    got = short_attention(*qkv, *words)
    assert got.is_contiguous()
    assert got.dtype == dtype
    exact = [x.detach().double().requires_grad_() for x in qkv]
    expected = plain_attention(*exact, *words)
    ours = got, *torch.autograd.grad(got, qkv, dout)
    theirs = expected, *torch.autograd.grad(expected, exact, dout.double())
    for name, a, b in zip(("out", "dq", "dk", "dv"), ours, theirs):
        assert torch.isfinite(a).all(), name
        assert (a - b).abs().max() <= error * b.abs().max(), name


# half precision is float16 here because the interpreter multiplies bfloat16 as if it were integers
@interpreted
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 2e-6), (torch.float16, 2e-3)])
@pytest.mark.parametrize(
    ("key_lengths", "causal"),
    [(LENGTHS, True), (LENGTHS, False), (OTHER_LENGTHS, False)],
    ids=["causal", "all", "cross"],
)
def test_equals_plain_attention(key_lengths: list[int], causal: bool, dtype: torch.dtype, error: float) -> None:
    assert_equals_plain(LENGTHS, key_lengths, causal, 16, dtype, error, "cpu")


@interpreted
@pytest.mark.parametrize("long", [3, 70])
def test_a_side_without_words_gives_zeros(long: int) -> None:
    q = torch.randn(long, 1, 16, requires_grad=True)
    k = torch.randn(long, 1, 16, requires_grad=True)
    out = short_attention(q, k, k, starts([long, 0]), starts([0, long]), causal=False)
    dq, dk = torch.autograd.grad(out.sum(), (q, k))
    assert not out.any()
    assert not dq.any()
    assert not dk.any()


@interpreted
def test_is_a_well_behaved_operator() -> None:
    *qkv, _ = inputs([5, 3], [5, 3], 16, torch.float32, "cpu")
    torch.library.opcheck(torch.ops.anydepth.short_attention.default, (*qkv, starts([5, 3]), starts([5, 3]), True))


@on_gpu
@pytest.mark.parametrize("width", [16, 64, 128])
@pytest.mark.parametrize(
    ("key_lengths", "causal"),
    [(LENGTHS, True), (LENGTHS, False), (OTHER_LENGTHS, False)],
    ids=["causal", "all", "cross"],
)
def test_equals_plain_attention_on_the_gpu(key_lengths: list[int], causal: bool, width: int) -> None:
    assert_equals_plain(LENGTHS, key_lengths, causal, width, torch.bfloat16, 2e-2, "cuda")


@on_gpu
@pytest.mark.parametrize("causal", [True, False])
def test_equals_flash_attention_compiled_and_recorded(causal: bool) -> None:
    lengths = torch.randint(1, 100, (300,)).tolist()
    *qkv, dout = inputs(lengths, lengths, 128, torch.bfloat16, "cuda")
    words = starts(lengths, "cuda")

    def both(attention: object) -> tuple[Tensor, ...]:
        fresh = [x.detach().requires_grad_() for x in qkv]  # a recording must not touch what other streams made
        out = attention(*fresh, words, words, causal)
        return out.detach(), *torch.autograd.grad(out, fresh, dout)

    def flash(q: Tensor, k: Tensor, v: Tensor, starts: Tensor, _: Tensor, causal: bool) -> Tensor:
        return torch.ops.aten._flash_attention_forward(q, k, v, starts, starts, 100, 100, 0.0, causal, False)[0]

    ours = both(short_attention)
    for a, b in zip(ours, both(flash)):
        assert (a - b).abs().max() <= 2e-2 * b.abs().max()
    compiled = torch.compile(short_attention, fullgraph=True)
    for a, b in zip(ours, both(compiled)):
        assert torch.equal(a, b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = both(short_attention)
    graph.replay()
    for a, b in zip(ours, recorded):
        assert torch.equal(a, b)
