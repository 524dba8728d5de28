"""What every depth policy answers. One file beside this one per method."""

from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Generator, Tensor, nn

from anydepth.errors import UserError
from anydepth.plan import Noise, Plan, Request

if TYPE_CHECKING:
    from anydepth.depth import DepthConfig


class Alone(NamedTuple):
    """What is left of a stack when it is to run some of its plans only."""

    depth: "DepthConfig"
    layers: tuple[int, ...]
    """The layers kept, in order."""
    learnt: dict[str, Tensor]
    """The parameters of the new policy."""


class Depth(nn.Module):
    """Decides which of a stack's layers run.

    `plan` is deterministic and used for inference; `sample` draws a plan for one training step from a generator that
    is equal on every rank. There is no `if self.training` and no global random state.
    """

    keys: tuple[str, ...] = ()
    """The keys (languages) that have plans of their own; none if all share theirs."""
    uniform = False
    """Whether training draws a depth each step; otherwise it runs the deepest plan."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = layers
        """Layers (modules) the stack owns."""

    def plans(self, key: str = "") -> dict[int, Plan]:
        """The deployable plans of a key, by depth."""
        raise NotImplementedError

    def plan(self, request: Request) -> Plan:
        plans = self.plans(request.key)
        depth = max(plans) if request.depth is None else request.depth
        if depth not in plans:
            choices = ", ".join(str(known) for known in sorted(plans))
            raise UserError(f"depth {depth}: this model runs at {choices} layers here")
        return plans[depth]

    def sample(self, request: Request, generator: Generator) -> Plan:
        plans = self.plans(request.key)
        return plans[draw(sorted(plans), generator)] if self.uniform else self.plan(request)

    def mean_steps(self) -> float:
        """Steps of a sampled plan on average, to count what training costs."""
        plans = self.plans()
        return fmean(map(len, plans.values())) if self.uniform else len(plans[max(plans)])

    def noise(self, step: int, generator: Generator) -> Noise | None:
        """What the gates of one training batch are drawn with; None where nothing is drawn."""
        return None

    def gates(self, plan: Plan, request: Request, noise: Noise | None = None) -> Tensor | None:
        """The z of every step, (K,) or for each sentence (K, B, 1, 1), or None where the method has none.

        Noise asks for the gates of a training step.
        """
        return None

    def alone(self, plan: Plan, key: str = "") -> Alone:
        """The smallest stack that can run this plan of this key."""
        from anydepth.depth.full import FullConfig

        return Alone(FullConfig(), plan.layers, {})


class NoLayers(Depth):
    """In the place of a stack that a model does not have: always the empty plan."""

    def __init__(self) -> None:
        super().__init__(0)

    def plans(self, key: str = "") -> dict[int, Plan]:
        return {0: Plan(())}


def every_depth(layers: int) -> dict[int, Plan]:
    """The first d layers, for every d."""
    return {depth: Plan(tuple(range(depth))) for depth in range(1, layers + 1)}


def draw(choices: list[int], generator: Generator) -> int:
    """One of the choices, each as likely as the other."""
    return choices[int(torch.randint(len(choices), (), generator=generator))]
