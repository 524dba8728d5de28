"""What every depth policy answers. One file beside this one per method."""

from statistics import fmean
from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor, nn

from anydepth.errors import UserError
from anydepth.plan import Plan, Request

if TYPE_CHECKING:
    from anydepth.depth import DepthConfig


class Depth(nn.Module):
    """Decides which of a stack's layers run.

    `plan` is deterministic and used for inference; `sample` draws a plan for one training step from a generator that
    is equal on every rank. There is no `if self.training` and no global random state.
    """

    layers: int
    """Layers (modules) the stack owns."""
    uniform = False
    """Whether training draws a depth each step; otherwise it runs the deepest plan."""

    def plans(self) -> dict[int, Plan]:
        """The deployable plans, by depth."""
        raise NotImplementedError

    def plan(self, request: Request) -> Plan:
        plans = self.plans()
        depth = max(plans) if request.depth is None else request.depth
        if depth not in plans:
            choices = ", ".join(str(known) for known in sorted(plans))
            raise UserError(f"depth {depth}: this model runs at {choices} layers here")
        return plans[depth]

    def sample(self, request: Request, generator: Generator) -> Plan:
        plans = self.plans()
        return plans[draw(sorted(plans), generator)] if self.uniform else self.plan(request)

    def mean_steps(self) -> float:
        """Steps of a sampled plan on average, to count what training costs."""
        plans = self.plans()
        return fmean(map(len, plans.values())) if self.uniform else len(plans[max(plans)])

    def gates(self, plan: Plan, request: Request, generator: Generator | None = None) -> Tensor | None:
        """(K,) the z of every step, or None where the method has none. A generator asks for training noise."""
        return None

    def alone(self, plan: Plan) -> "tuple[DepthConfig, tuple[int, ...]]":
        """For the smallest model that can run this plan: its policy, and which layers it keeps, in order.

        The policy's own parameters, one per layer, follow the layers.
        """
        from anydepth.depth.full import FullConfig

        return FullConfig(), plan.layers


def every_depth(layers: int) -> dict[int, Plan]:
    """The first d layers, for every d."""
    return {depth: Plan(tuple(range(depth))) for depth in range(1, layers + 1)}


def draw(choices: list[int], generator: Generator) -> int:
    """One of the choices, each as likely as the other."""
    return choices[int(torch.randint(len(choices), (), generator=generator))]
