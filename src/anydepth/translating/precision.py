"""A translator as searches read it: its weights in another number type, and on a CPU in other layouts.

To say a word at batch 1, a CPU reads every weight of the decoder once and does little else: 121 MB in float32 at 6
layers of width 512 and 16,000 words, half of that in 16 bits, a quarter in int8. A single word is multiplied by columns
(alone.py), much at a time by oneDNN's blocks. What is not changed is shared with the model, which is left as it is.
"""

import copy
import mmap
import warnings
from collections.abc import Callable
from contextlib import suppress

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anydepth.decoding.decoder import NOT_NUMBERS, Precision
from anydepth.errors import UserError
from anydepth.models import Translator
from anydepth.nn.context import NormedCrossAttention


def for_searching(model: Translator, precision: Precision) -> Translator:
    """One that computes the same, as far as this precision allows."""
    device = model.output.weight.device
    on_cpu = device.type == "cpu"
    if precision == "float32":
        return packed(shared_copy(model), Float32Linear) if on_cpu else model
    if precision == "bfloat16":
        rounded = copy.deepcopy(model).bfloat16()
        return packed(rounded, BlockedLinear) if on_cpu and bfloat16_packs() else rounded
    check_kernels(precision, device)
    return packed(shared_copy(model), Float16Linear if precision == "float16" else Int8Linear)


def shared_copy(model: Translator) -> Translator:
    """Modules of its own around the same parameters and buffers."""
    tensors = (*model.parameters(), *model.buffers())
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})


def read_by_column(model: Translator) -> None:
    """In memory, the decoder's matrices with at least as many rows as columns are to stand column by column, for single
    words. OpenBLAS multiplies one by such a matrix in 0.54 to 0.77 of the time, MKL in 0.45 to 0.8 (AMD Zen 4, width
    512); by one with fewer rows they take 1.2 and 1.4 times as long. (Keys and values of a source are made of all its
    words together.)"""
    named = [*model.decoder.named_modules(), ("head", model.head)]
    parts = [part for name, part in named if isinstance(part, Float32Linear) and not name.endswith("key_value")]
    by_column = [len(part.weight) >= part.weight.shape[1] for part in parts]
    matrices = on_large_pages([part.weight.t() if tall else part.weight for part, tall in zip(parts, by_column)])
    for part, tall, matrix in zip(parts, by_column, matrices):
        part.weight = matrix.t() if tall else matrix


def on_large_pages(matrices: list[Tensor]) -> list[Tensor]:
    """Copies that stand one after the other, on pages of 2 MB where the system has them: of small ones, a word would
    look up 30,000 on its way through all weights (a tenth of its time)."""
    sizes = [matrix.numel() for matrix in matrices]
    flat = large_pages(sum(sizes)) if matrices and hasattr(mmap, "MADV_HUGEPAGE") else torch.empty(sum(sizes))
    parts = flat[: sum(sizes)].split(sizes)
    return [part.view(matrix.shape).copy_(matrix.detach()) for part, matrix in zip(parts, matrices)]


def large_pages(numbers: int) -> Tensor:
    """Room for so many in float32 at least, which is given back with its last tensor."""
    page = 2 << 20
    size = -(-4 * numbers // page) * page
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without large pages has small ones
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.float32)


def packed(model: Translator, pack: Callable[[nn.Linear], nn.Module]) -> Translator:
    """The projections of all layers and the one to words; embeddings, norms and the rest stay as they are."""
    model.head = pack(output_layer(model))
    for parent in (*model.encoder.modules(), *model.decoder.modules()):
        for name, part in list(parent.named_children()):
            # those of a `NormedCrossAttention` are taken apart
            if isinstance(part, nn.Linear) and not isinstance(parent, NormedCrossAttention):
                setattr(parent, name, pack(part))
    return model


def output_layer(model: Translator) -> nn.Linear:
    """What makes logits, by itself: its matrix may be that of the embeddings too."""
    words, width = model.output.weight.shape
    layer = nn.Linear(width, words, bias=model.output_bias is not None, device="meta")
    layer.weight = constant(model.output.weight)
    if model.output_bias is not None:
        layer.bias = constant(model.output_bias)
    return layer


def constant(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor.detach(), requires_grad=False)


# ---- packed weights


class BlockedLinear(nn.Module):
    """A projection whose weights stand in the blocks that oneDNN reads; otherwise they would be put in that order for
    every word anew."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.bias = linear.bias
        self.blocks = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.blocks, self.bias, "none", [], "")
        return found


BLOCKS_PAY = 400_000
"""Multiplications of a product from which on it is oneDNN's: a call takes 8 µs more than one of MKL (AMD Zen 5), and
half of the time where there is much to do."""


class Float32Linear(nn.Module):
    """The same, where PyTorch would leave all products to MKL, which takes twice as long for many rows of wide layers;
    and the weights by themselves, for single words."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight.detach(), linear.bias
        self.blocked = BlockedLinear(linear) if torch.backends.mkldnn.is_available() else None

    def forward(self, x: Tensor) -> Tensor:
        if self.blocked is None or x.numel() * len(self.weight) < BLOCKS_PAY:
            return F.linear(x, self.weight, self.bias)
        found: Tensor = self.blocked(x)
        return found


def bfloat16_packs() -> bool:
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def has_fbgemm() -> bool:
    return "fbgemm" in torch.backends.quantized.supported_engines


def rough_head(model: Translator) -> nn.Module | None:
    """The output matrix in 8 bits, for words that something else will judge; none where it is no faster."""
    if model.output.weight.dtype != torch.float32 or not has_fbgemm():
        return None
    return model.head if isinstance(model.head, Int8Linear) else Int8Linear(output_layer(model))


def check_kernels(precision: Precision, device: torch.device) -> None:
    """PyTorch's kernels for such weights are FBGEMM's."""
    if device.type != "cpu":
        raise UserError(f"precision {precision}: for a CPU, not for {device.type}, where bfloat16 is fast")
    if not has_fbgemm():
        raise UserError(f"precision {precision}: this PyTorch has no FBGEMM, which is for x86; use float32 or bfloat16")


class Float16Linear(nn.Module):
    """A projection with weights of 16 bits, 11 of them significant, and all else in float32."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach().float()
        if not weight.isfinite().all():  # they would be rounded to numbers
            raise UserError(NOT_NUMBERS)
        self.packed = torch.ops.quantized.linear_prepack_fp16(weight, linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = torch.ops.quantized.linear_dynamic_fp16(x, self.packed)
        return found


class Int8Linear(nn.Module):
    """A projection with weights of 8 bits, scaled by row, and states rounded to 8 bits as they come, with one scale for
    all rows of a batch: so what a batch mate says can change a word. Sums, biases and results are float32."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach().float()
        scales = weight.abs().amax(dim=1).clamp(min=1e-12).double() / 127
        with warnings.catch_warnings():
            # tensors of this kind will leave PyTorch one day, and these kernels, by far its fastest, take no other
            warnings.filterwarnings("ignore", message=".*quantized tensor creation functions.*")
            whole = torch.quantize_per_channel(weight, scales, torch.zeros(len(weight)).long(), 0, torch.qint8)
        self.packed = torch.ops.quantized.linear_prepack(whole, linear.bias)
        # CPUs without VNNI add pairs of products in 16 bits, which products of 7 and 8 bits alone never exceed
        self.seven_bits = not torch.cpu._is_vnni_supported()

    def forward(self, x: Tensor) -> Tensor:
        try:
            found: Tensor = torch.ops.quantized.linear_dynamic(x, self.packed, self.seven_bits)
        except RuntimeError:
            if x.isfinite().all():
                raise
            raise UserError(NOT_NUMBERS) from None  # so they have no scale
        return found
