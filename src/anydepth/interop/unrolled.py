"""One plan as a plain Transformer, which other engines can run: its steps one after the other, each with weights of its
own, and gates folded into them."""

from dataclasses import replace

import torch
from torch import Tensor

from anydepth.depth.full import FullConfig
from anydepth.errors import UserError
from anydepth.models import Translator
from anydepth.nn.bridge import LastState
from anydepth.plan import Plan, Plans
from anydepth.run import Run
from anydepth.training.checkpoint import load_weights, weights

ENDS_OF_BRANCHES = ("attention.out", "cross.out", "shrink")
"""x + z · F(x): what a gate z scales is the last projection of each branch."""


def unrolled(run: Run, plans: Plans, engine: str) -> Translator:
    """A model without depth policies that computes what these plans do, or why there is none."""
    model = run.translator
    if reason := inexpressible(model):
        raise UserError(f"--to {engine}: {engine} cannot express {reason}; --to anydepth can")
    tensors = weights(model)
    plain = {name: tensor for name, tensor in tensors.items() if not name.startswith(("encoder", "decoder"))}
    gates = model.gates(plans, run.key, torch.zeros(1, 1, dtype=torch.long, device=run.device))
    drawing = [stack for stack, gate in zip(model.policies, gates) if gate is not None and gate.dim() > 1]
    if drawing:
        ways = " ".join(f"--set model.{stack}.depth.inference=hard" for stack in drawing)
        raise UserError(f"--to {engine}: this run draws layers anew for every sentence; give {ways} (or soft)")
    plain |= steps(tensors, "encoder", plans.encoder, gates[0]) | steps(tensors, "decoder", plans.decoder, gates[1])
    config = replace(
        model.config,
        encoder=replace(model.config.encoder, layers=len(plans.encoder), depth=FullConfig()),
        decoder=replace(model.config.decoder, layers=len(plans.decoder), depth=FullConfig()),
    )
    alone = config.build(len(model.source.words.weight), len(model.output.weight), model.pad)
    load_weights(alone, plain)
    return alone.eval()


def inexpressible(model: Translator) -> str:
    """What a model has that plain Transformers lack; nothing if it has nothing."""
    if not isinstance(model.bridge, LastState):
        return f"a {model.config.bridge.type} encoder: its decoder layers attend to several states"
    if model.config.sentence_layers:
        return "a hierarchical encoder: its upper layers read sentences, not words"
    if "dlcl" in (model.config.encoder.mix, model.config.decoder.mix):
        return "DLCL: its layers read combinations of all earlier ones"
    if model.config.layer.norm == "none":
        return "layers without normalisation"
    return ""


def steps(tensors: dict[str, Tensor], stack: str, plan: Plan, gates: Tensor | None) -> dict[str, Tensor]:
    """The weights of a plan's steps; a layer that runs twice is there twice."""
    found = {}
    for step, layer in enumerate(plan.layers):
        prefix = f"{stack}.layers.{layer}."
        for name, tensor in tensors.items():
            if name.startswith(prefix):
                rest = name.removeprefix(prefix)
                gated = gates is not None and rest.rpartition(".")[0] in ENDS_OF_BRANCHES
                found[f"{stack}.layers.{step}.{rest}"] = tensor * gates[step] if gated and gates is not None else tensor
    return found
