"""Latent depth: the model learns which layers to use, for each language (Li, Stickland, Tang, Kong 2020).

Layer l is used with probability π_l = sigmoid(α_l). Training draws soft gates, which scale every residual branch,

    z_l = sigmoid((α_l + g_1 − g_2) / τ)        with Gumbel noise g (Eq. 5, where α is α(1) − α(0))

and α learns from them like any weight; `objectives/latent.py` has the other terms of the loss. Afterwards the layers
with α ≤ 0 can be left out altogether.
"""

import hashlib
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from torch import Generator, Tensor, nn

from anydepth.config_class import config
from anydepth.depth.policy import Alone, Depth
from anydepth.errors import UserError
from anydepth.plan import Noise, Plan, Request

UNDECIDED = 0.1
"""A layer with |α| below this has not been chosen nor rejected: where 0 is the optimum of the KL term, the sign of what
is left is a coin flip."""
NODES = 512
"""Quantiles of the logistic distribution over which expected gates are averaged."""


@config
class LatentConfig:
    """Each layer is used with a learned probability, per language if wished. Needs `norm` "pre" or "none"."""

    type: Literal["latent"] = "latent"
    gated: ClassVar[bool] = True
    per: Literal["model", "pair", "source", "target"] = "model"
    """What has a row of logits of its own: the whole `model`; each `pair`, that is each key of the training corpora;
    or each `source` or `target` language, the parts of keys such as en-de."""
    keys: tuple[str, ...] = ()
    """Names of the rows; empty takes them from the training corpora."""
    inference: Literal["hard", "soft", "sample"] = "hard"
    """`hard` runs the layers with α > 0 and leaves the others out, `soft` runs all with their expected gates (at the
    temperature that annealing ends with), `sample` draws gates of 0 or 1 for every sentence."""
    seed: int = 1
    """Of the gates drawn by `sample`; they depend on it and on the sentence alone."""
    samples: Literal["soft", "hard"] = "soft"
    """Gates in training: `soft` ones between 0 and 1, or `hard` ones whose gradient is that of the soft ones
    (straight-through)."""
    soft_steps: int = 0
    """First steps that take soft gates even with `samples` "hard"."""
    temperature: float = 5.0
    """τ of the soft gates. At 5 they stay near 0.5 (standard deviation 0.087) until logits grow large."""
    anneal: Literal["constant", "linear", "exponential"] = "constant"
    """How τ goes to `final_temperature`, in `anneal_steps` steps; `constant` stays."""
    final_temperature: float = 0.5
    """τ after the annealing."""
    anneal_steps: int = 10_000
    """Steps of the annealing."""

    def __post_init__(self) -> None:
        if self.per == "model" and self.keys:
            raise ValueError('keys: one row for the whole model has no name; use per = "pair", "source" or "target"')
        if len(set(self.keys)) < len(self.keys) or "" in self.keys:
            raise ValueError("keys must differ and not be empty")
        for name in ("temperature", "final_temperature"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0")
        if self.anneal_steps < 1:
            raise ValueError("anneal_steps must be at least 1")
        for name in ("seed", "soft_steps"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")

    def row_name(self, key: str) -> str:
        """The row that a key such as en-de belongs to."""
        match self.per:
            case "model":
                return ""
            case "pair":
                return key
            case "source":
                return key.partition("-")[0]
            case "target":
                return key.rpartition("-")[2]

    def temperature_at(self, step: int) -> float:
        """τ of a step, counted from 1."""
        first, last, done = self.temperature, self.final_temperature, min(1.0, (step - 1) / self.anneal_steps)
        match self.anneal:
            case "constant":
                return first
            case "linear":
                return first + (last - first) * done
            case "exponential":
                return first * (last / first) ** done

    def expected(self, alpha: Tensor, step: int) -> Tensor:
        """(L,) the mean of the gates that training draws in a step."""
        if self.samples == "hard" and step > self.soft_steps:
            return alpha.sigmoid()
        middles = (torch.arange(NODES, dtype=torch.double) + 0.5) / NODES
        return torch.sigmoid((alpha[:, None] + torch.logit(middles).to(alpha)) / self.temperature_at(step)).mean(-1)

    def build(self, layers: int) -> "Latent":
        return Latent(layers, self)


class Latent(Depth):
    def __init__(self, layers: int, config: LatentConfig) -> None:
        super().__init__(layers)
        self.config, self.keys = config, config.keys
        # a parameter per row: in a step without a language Adam leaves that language's row alone
        rows = config.keys if config.per != "model" else ("",)
        self.logits = nn.ParameterList(nn.Parameter(torch.zeros(layers)) for _ in rows)

    def row(self, key: str) -> int:
        """The number of a key's row."""
        if self.config.per == "model":
            return 0
        name = self.config.row_name(key)
        if name not in self.keys:
            wrong = f"language {key!r}: unknown" if key else "each language has its own layers: say which (--language)"
            raise UserError(f"{wrong}; this model knows {', '.join(self.keys) or 'none'}")
        return self.keys.index(name)

    # -- inference -----------------------------------------------------------------------------------------------

    def selected(self, row: int) -> tuple[int, ...]:
        """The layers with α > 0; the one with the largest α if there is none, because a plan is never empty."""
        alpha = self.logits[row].detach()
        if alpha.is_meta:  # a model that is only described, before it has learnt anything
            return tuple(range(self.layers))
        chosen = (alpha > 0).nonzero().flatten().tolist()
        return tuple(chosen) or (int(alpha.argmax()),)

    def plans(self, key: str = "") -> dict[int, Plan]:
        layers = self.selected(self.row(key)) if self.config.inference == "hard" else tuple(range(self.layers))
        return {len(layers): Plan(layers)}

    def sample(self, request: Request, generator: Generator) -> Plan:
        """Training runs all layers; which of them matter is the gates' affair."""
        self.row(request.key)  # an unknown language is refused here as well
        return Plan(tuple(range(self.layers)))

    def mean_steps(self) -> float:
        return self.layers

    def gates(self, plan: Plan, request: Request, noise: Noise | None = None) -> Tensor | None:
        row = self.row(request.key)
        alpha = self.logits[row]
        if noise is not None:
            gates = draw_gates(alpha, noise._replace(logistic=noise.logistic[row]))
        elif self.config.inference == "hard":
            return None
        elif self.config.inference == "soft":
            gates = self.config.expected(alpha, max(self.config.anneal_steps, self.config.soft_steps) + 1)
        else:
            gates = self.drawn_per_sentence(alpha, request)
        return gates if len(plan) == self.layers else torch.stack([gates[layer] for layer in plan.layers])

    def drawn_per_sentence(self, alpha: Tensor, request: Request) -> Tensor:
        """(L, B, 1, 1) 0 or 1, the same for the same sentence in whatever batch."""
        sentences: list[list[int]] = [[]] if request.tokens is None else request.tokens.tolist()
        noises = [logistic(self.layers, generator_for(self.config.seed, request, words)) for words in sentences]
        gates = alpha[:, None] + torch.stack(noises, dim=1).to(alpha) > 0
        return gates.to(alpha.dtype)[:, :, None, None]

    def summary(self) -> dict[str, Any]:
        """What has been learnt, layers counted from 1: those used and those undecided of every row, and how many are
        used on average."""
        rows: dict[str, dict[str, list[Any]]] = {}
        for number, name in enumerate(self.keys or ("",)):
            logits: list[float] = self.logits[number].tolist()
            undecided = [layer for layer, alpha in enumerate(logits, start=1) if abs(alpha) < UNDECIDED]
            selected = [layer + 1 for layer in self.selected(number)]
            rows[name] = {"selected": selected, "undecided": undecided, "logits": logits}
        depth = sum(len(row["selected"]) for row in rows.values()) / len(rows)
        return {"effective_depth": depth, "rows": rows}

    # -- training ------------------------------------------------------------------------------------------------

    def noise(self, step: int, generator: Generator) -> Noise:
        config = self.config
        hard = config.samples == "hard" and step > config.soft_steps
        numbers = logistic(len(self.logits) * self.layers, generator).float().view(-1, self.layers)
        temperature = torch.tensor(config.temperature_at(step))
        return Noise(numbers, temperature, torch.tensor(float(hard))).to(self.logits[0].device)

    # -- export --------------------------------------------------------------------------------------------------

    def alone(self, plan: Plan, key: str = "") -> Alone:
        if self.config.inference == "hard":
            return super().alone(plan, key)
        whole = replace(self.config, per="model", keys=())
        return Alone(whole, plan.layers, {"logits.0": self.logits[self.row(key)][list(plan.layers)]})

    def for_all_keys(self) -> Alone:
        """The smallest stack in which every key still has its own plan."""
        kept: tuple[int, ...] = tuple(range(self.layers))
        if self.config.inference == "hard":
            kept = tuple(sorted({layer for row in range(len(self.logits)) for layer in self.selected(row)}))
        learnt = {f"logits.{row}": alpha[list(kept)] for row, alpha in enumerate(self.logits)}
        return Alone(self.config, kept, learnt)


def draw_gates(alpha: Tensor, noise: Noise) -> Tensor:
    """Gumbel-sigmoid gates, with the gradient of the soft ones also where they are hard.

    A hard gate is 1 where the soft one is above 0.5: P(z = 1) = sigmoid(α), whatever the temperature. Soft gates above
    0.5 make soft + (1 − soft) exactly 1.
    """
    soft = torch.sigmoid((alpha + noise.logistic.to(alpha.dtype)) / noise.temperature.to(alpha.dtype))
    return soft + (noise.hard.to(alpha.dtype) * ((soft > 0.5).to(alpha.dtype) - soft)).detach()


def logistic(count: int, generator: Generator) -> Tensor:
    """(count,) draws of g_1 − g_2, which is logistic noise."""
    uniform = torch.rand(count, generator=generator, dtype=torch.double)
    return torch.logit(uniform, eps=1e-12)


def generator_for(seed: int, request: Request, words: list[int]) -> Generator:
    """Random numbers that depend on the sentence, not on its place or its padding."""
    text = f"{seed} {request.stack} {[word for word in words if word != request.pad]}"
    return Generator().manual_seed(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest()))
