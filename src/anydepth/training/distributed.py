"""Several processes train one model: `torchrun --nproc-per-node N -m anydepth train …`.

Every rank runs the same plan on its own share of the batches. Gradients are added by one explicit all-reduce after the
last backward pass of a step, over the parameters that have one. That is safe where layers are skipped (the same ones on
every rank: their gradients stay None, so that Adam leaves them alone) and wherever several losses share an encoder,
two cases in which hooks on backward passes silently leave gradients unsynchronised.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from anydepth.errors import UserError

T = TypeVar("T")
_staying: list["Ranks"] = []


@dataclass(frozen=True)
class Ranks:
    """Who we are among how many, and on which device."""

    rank: int
    world: int
    device: torch.device

    @property
    def first(self) -> bool:
        return self.rank == 0


def join(device: str = "auto") -> Ranks:
    """Joins the group that torchrun made, or stands alone."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_RANK", "0"))
    try:
        chosen = pick_device(device, local)
    except (RuntimeError, AssertionError):
        raise UserError(f"training.device: {device!r} is not here; expected cpu, cuda, cuda:N or auto") from None
    if world == 1:
        return Ranks(0, 1, chosen)
    if not dist.is_initialized():
        # the others wait while rank 0 tokenizes or validates; who dies is noticed by torchrun
        dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo", timeout=timedelta(days=1))
    return Ranks(dist.get_rank(), world, chosen)


def leave() -> None:
    if dist.is_initialized() and not _staying:
        dist.destroy_process_group()


@contextmanager
def stay(device: str = "auto") -> Iterator[Ranks]:
    """One group for all that is done inside: what torchrun made cannot be left and joined again."""
    ranks = join(device)
    _staying.append(ranks)
    try:
        yield ranks
    finally:
        _staying.pop()
        leave()


def pick_device(device: str, local: int = 0) -> torch.device:
    """`cuda` and `auto` give each rank of a machine a GPU of its own."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    chosen = torch.device("cuda", local) if device == "cuda" else torch.device(device)
    torch.empty(0, device=chosen)  # fails if there is no such device
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
        torch.backends.cuda.enable_cudnn_sdp(False)  # cuDNN plans attention anew for every shape of a padded batch
    return chosen


def first_does(ranks: Ranks, work: Callable[[], T]) -> T | None:
    """Rank 0 works, the others wait; only rank 0 gets the result. If it fails, nobody goes on."""
    if ranks.world == 1:
        return work()
    result, failure = None, None
    if ranks.first:
        try:
            result = work()
        except Exception as error:
            failure = error
    if agree(failure is not None, ranks):
        raise failure or UserError(f"rank {ranks.rank} stops because rank 0 failed")
    return result


def share_weights(model: nn.Module, ranks: Ranks) -> None:
    """Everybody starts from rank 0's weights."""
    if ranks.world > 1:
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, 0)


def add_up(tensor: Tensor, ranks: Ranks) -> Tensor:
    """The sum over ranks."""
    if ranks.world > 1:
        dist.all_reduce(tensor)
    return tensor


def add_up_gradients(model: nn.Module, ranks: Ranks) -> None:
    """Each gradient becomes its sum over ranks; missing ones stay missing."""
    if ranks.world == 1:
        return
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    for gradient, summed in zip(gradients, flat.split([g.numel() for g in gradients])):
        gradient.copy_(summed.view_as(gradient))


def agree(value: float, ranks: Ranks) -> float:
    """Rank 0's number, on every rank."""
    if ranks.world == 1:
        return value
    tensor = torch.tensor(value, dtype=torch.float64, device=ranks.device)
    dist.broadcast(tensor, 0)
    return float(tensor)
