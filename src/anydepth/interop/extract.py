"""A smaller model out of a larger one: the layers of one plan, as a run of its own."""

from dataclasses import replace
from pathlib import Path

from torch import Tensor

from anydepth.config import Config, dump
from anydepth.depth.policy import Alone
from anydepth.errors import UserError
from anydepth.models import StackConfig
from anydepth.objectives import SingleConfig
from anydepth.plan import Plans
from anydepth.run import Run
from anydepth.training.checkpoint import weights, write_text, write_weights


def extract(run: Run, depth: str, out: Path) -> Path:
    """Writes the model that `depth` runs and nothing it does not need. It translates as the large one does there."""
    if (out / "config.toml").exists():
        raise UserError(f"{out} already holds a run: give another --out")
    plans = run.plan(depth)
    config, smaller = extracted(run, plans)
    out.mkdir(parents=True, exist_ok=True)
    run.tokenizers.save(out)
    write_weights(smaller, out / "model.safetensors", {"tokenizer": run.tokenizers.hash})
    write_text(dump(config), out / "config.toml")  # last: a folder with this file is a whole run
    return out


def extracted(run: Run, plans: Plans) -> tuple[Config, dict[str, Tensor]]:
    """The configuration and the weights of a model that can run these plans alone."""
    config, model, tensors = run.config, run.model, weights(run.model)
    stacks = {"encoder": (model.encoder_depth, plans.encoder), "decoder": (model.decoder_depth, plans.decoder)}
    changes = {}
    for name, (policy, plan) in stacks.items():
        alone = policy.alone(plan)
        tensors = reduced(tensors, name, alone)
        changes[name] = StackConfig(layers=len(alone.layers), depth=alone.depth)
    training = replace(config.training, objective=SingleConfig(), validate_depths=(), start_from="")
    smaller = replace(config.model, encoder=changes["encoder"], decoder=changes["decoder"])
    return replace(config, model=smaller, training=training), tensors


def reduced(tensors: dict[str, Tensor], stack: str, alone: Alone) -> dict[str, Tensor]:
    """Only these layers of a stack, renumbered, and what its new policy knows about them."""
    result = {f"{stack}_depth.{name}": tensor for name, tensor in alone.learnt.items()}
    for name, tensor in tensors.items():
        if name.startswith(f"{stack}.layers."):
            _, _, number, rest = name.split(".", 3)
            for place, layer in enumerate(alone.layers):
                if layer == int(number):
                    result[f"{stack}.layers.{place}.{rest}"] = tensor
        elif not name.startswith(f"{stack}_depth."):
            result[name] = tensor
    return result
