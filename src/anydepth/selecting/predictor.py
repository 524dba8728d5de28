"""A selector's network in use. On a GPU it reads a few sentences in fixed places, as CUDA graphs: launched kernel by
kernel, it would take as long to choose a depth for a sentence as to translate it at a shallow one."""

from collections.abc import Callable

import torch
from torch import Tensor

from anydepth.nn.recorder import Recorder, power_of_two
from anydepth.selecting.model import SelectorNet
from anydepth.selecting.training import predict

FEW = 8
"""Sentences at most that are read in fixed places; the time of more goes into products."""
SHORTEST = 16


class Predictor:
    def __init__(self, net: SelectorNet) -> None:
        self.net = net
        self.recorder = Recorder(torch.cuda.Stream(net.shift.device)) if net.shift.is_cuda else None
        self.made: dict[tuple[int, int], Places] = {}

    def __call__(self, ids: list[list[int]]) -> Tensor:
        """(sentences, depths), whatever their number and lengths."""
        return self.replay(ids) if self.recorder and len(ids) <= FEW else predict(self.net, ids)

    @torch.no_grad()
    def replay(self, ids: list[list[int]]) -> Tensor:
        source, lengths = self.net.padded(ids)
        words = min(max(SHORTEST, power_of_two(source.shape[1])), self.net.source.longest)
        shape = power_of_two(len(source)), words
        if shape not in self.made:
            self.made[shape] = Places(self.net, *shape, self.recorder)
        return self.made[shape].read(source, lengths)


class Places:
    """For up to so many sentences of up to so many words."""

    def __init__(self, net: SelectorNet, rows: int, words: int, recorder: Recorder | None) -> None:
        device = net.shift.device
        self.source = torch.full((rows, words), net.mark, device=device)
        self.lengths = torch.zeros(rows, dtype=torch.long, device=device)
        self.found = torch.empty(rows, len(net.shift), device=device)

        def work() -> None:
            self.found.copy_(net.read(self.source, self.lengths))

        self.work: Callable[[], object] = recorder.record(work) if recorder else work

    def read(self, source: Tensor, lengths: Tensor) -> Tensor:
        self.source[: len(source), : source.shape[1]].copy_(source)
        self.lengths[: len(source)].copy_(lengths)
        self.work()
        return self.found[: len(source)].clone()
