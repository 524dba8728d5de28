"""Small models and batches that several tests share."""

import os
import sys
from collections.abc import Callable
from typing import Any

import pytest

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch

from anydepth.cli import main
from anydepth.data.collate import Batch, Packing
from anydepth.decoding.greedy import greedy
from anydepth.depth import DepthConfig
from anydepth.depth.full import FullConfig
from anydepth.models import StackConfig, Translator, TranslatorConfig
from anydepth.nn.layers import LayerConfig
from anydepth.objectives import ExitGridConfig
from anydepth.objectives.cross_entropy import losses_and_gradient
from anydepth.objectives.single import single
from anydepth.objectives.tasks import SharedPass

PAD, BOS, EOS = 0, 1, 2
FULL = FullConfig()

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _one_thread_and_seed() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Runs a command in this process: exit code, stdout, stderr."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["anydepth", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit:
            main()
        out, err = capfd.readouterr()
        return int(exit.value.code or 0), out, err

    return run


@pytest.fixture
def _mended_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton 3.6 turns arrays of one number into loop bounds in a way that NumPy 2.4 refuses."""
    from triton.runtime import interpreter

    theirs = interpreter._patch_lang_tensor

    def patch(tensor: type, scope: object) -> None:
        theirs(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patch)


def tiny_translator(
    depth: DepthConfig = FULL, layers: int = 4, vocabulary: int = 23, norm: str | None = None, **settings: Any
) -> Translator:
    """A random model of a few thousand weights, without dropout."""
    norm = norm or ("none" if depth.type == "rezero" else "pre")
    names = settings.keys() & {"activation", "norm_epsilon", "attention_bias"}
    of_layers = {name: settings.pop(name) for name in names}
    layer = LayerConfig(width=16, ffn=24, heads=2, norm=norm, dropout=0.0, **of_layers)
    stack = StackConfig(layers=layers, depth=depth)
    model = Translator(
        TranslatorConfig(layer=layer, encoder=stack, decoder=stack, **settings), vocabulary, vocabulary, PAD
    )
    for parameter in model.parameters():  # also those that start at 0 or 1
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def talkative_translator(depth: DepthConfig = FULL, **settings: Any) -> Translator:
    """A random model that does not say the same whatever it reads, as most do: the first of several that uses at least
    seven words for 24 sources. In double precision, so that no two words tie."""
    source = random_batch([(n % 7 + 2, 2) for n in range(24)]).source
    limits = torch.full((24,), 9)
    for seed in range(200):
        torch.manual_seed(seed)
        model = tiny_translator(depth, tie="none", **settings).double()
        if isinstance(model.norm, torch.nn.LayerNorm):
            torch.nn.init.zeros_(model.norm.bias)
        found = greedy(model.start(source, model.plan()), BOS, EOS, PAD, limits)
        if len({word for one in found for word in one.tokens}) > 6 and len({tuple(one.tokens) for one in found}) > 12:
            return model
    raise AssertionError("no seed gives a model that says enough")


def random_batch(lengths: list[tuple[int, int]], vocabulary: int = 23) -> Batch:
    """Padded random sentences of the given (source, target) lengths, end marks included."""
    generator = torch.Generator().manual_seed(1)

    def side(sizes: list[int]) -> torch.Tensor:
        rows = torch.full((len(sizes), max(sizes)), PAD)
        for row, size in zip(rows, sizes):
            row[: size - 1] = torch.randint(4, vocabulary, (size - 1,), generator=generator)
            row[size - 1] = EOS
        return rows

    source, target = side([s for s, _ in lengths]), side([t for _, t in lengths])
    shifted = torch.cat([torch.full((len(lengths), 1), BOS), target[:, :-1]], 1)
    shifted[shifted == EOS] = PAD
    return Batch(
        source=source,
        target_in=shifted,
        target_out=target,
        source_packing=None,
        target_packing=None,
        key="",
        tokens=sum(t for _, t in lengths),
        sentences=len(lengths),
    )


def packed_batch(lengths: list[tuple[int, int]], vocabulary: int = 23) -> Batch:
    """The sentences of `random_batch` one after the other, with two words of padding at the end of the row."""
    padded, rows = random_batch(lengths, vocabulary), range(len(lengths))

    def row(side: torch.Tensor, sizes: list[int]) -> torch.Tensor:
        return torch.cat([*(side[k, : sizes[k]] for k in rows), torch.full((2,), PAD)])[None]

    def packing(sizes: list[int]) -> Packing:
        sizes = [*sizes, 2]
        starts = torch.tensor([0, *sizes]).cumsum(0).int()
        return Packing(starts, max(sizes), torch.cat([torch.arange(size) for size in sizes])[None])

    source, target = [s for s, _ in lengths], [t for _, t in lengths]
    return padded._replace(
        source=row(padded.source, source), target_in=row(padded.target_in, target),
        target_out=row(padded.target_out, target), source_packing=packing(source), target_packing=packing(target),
    )  # fmt: skip


def assert_exits_equal_separate_runs(model: Translator, batch: Batch) -> None:
    """The gradients of the whole exit grid, trained at once, are those of its pairs one after the other."""
    (tasks,) = ExitGridConfig().choices(model)
    SharedPass(model, batch, 0.1, losses_and_gradient).backward(tasks)
    together = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    for plans, weight in tasks:
        (weight * single(model, batch, plans, 0.1).total).backward()
    for name, parameter in model.named_parameters():
        assert torch.allclose(together[name], parameter.grad, atol=1e-9), name
