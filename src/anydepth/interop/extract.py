"""A smaller model out of a larger one: the layers of one plan, as a run of its own."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from anydepth.config import Config, dump
from anydepth.data.corpora import DataConfig
from anydepth.depth.latent import Latent
from anydepth.depth.perword import ReconstructionConfig
from anydepth.depth.policy import Alone
from anydepth.estimating.guesser import find_guesser, remember_guesser
from anydepth.estimating.sources import FILE, per_word
from anydepth.files import new_folder, write_durably
from anydepth.models import BridgeConfig, Translator
from anydepth.objectives import HaltingObjectiveConfig, SingleConfig
from anydepth.plan import Plan, Plans
from anydepth.run import Run
from anydepth.training.checkpoint import weights, write_weights


def extract(run: Run, depth: str | None, out: Path) -> Path:
    """Writes the model that `depth` runs, in the run's language, and nothing it does not need. It computes what
    the large one does there."""
    return write(run, *extracted(run, run.plan(depth)), out)


def extract_languages(run: Run, out: Path) -> Path:
    """Writes the model without the layers that no language uses; each keeps its own plan."""
    policies = run.model.policies
    kept = {name: policy.for_all_keys() for name, policy in policies.items() if isinstance(policy, Latent)}
    return write(run, *without_the_rest(run, kept), out)


def write(run: Run, config: Config, tensors: dict[str, Tensor], out: Path) -> Path:
    with new_folder(out) as folder:
        run.tokenizers.save(folder)
        if run.folder and (depths := run.folder / FILE).exists():
            write_durably(folder / FILE, depths.read_text(encoding="utf-8"))
        settings = per_word(config)
        if run.folder and settings and isinstance(settings.estimate, ReconstructionConfig):
            remember_guesser(settings.estimate, find_guesser(settings.estimate, run.folder), folder, out)
        write_weights(tensors, folder / "model.safetensors", {"tokenizer": run.tokenizers.hash})
        write_durably(folder / "config.toml", dump(config))
    return out


def extracted(run: Run, plans: Plans) -> tuple[Config, dict[str, Tensor]]:
    """The configuration and the weights of a model that can run these plans alone."""
    policies = run.model.policies
    if isinstance(run.model, Translator):
        plans = plans._replace(encoder=run.model.bridge.reads(plans))
    kept = {name: policies[name].alone(getattr(plans, name), run.key) for name in policies}
    config, tensors = without_the_rest(run, kept)
    return (replace(config, data=of_language(config.data, run.key)) if run.key else config), tensors


def without_the_rest(run: Run, kept: dict[str, Alone]) -> tuple[Config, dict[str, Tensor]]:
    """With only so much of these stacks, and of what stands between them."""
    config, tensors = run.config, weights(run.model)
    parts: dict[str, Any] = {}
    if isinstance(run.model, Translator):
        kept, parts["bridge"], own = bridged(run.model, kept)
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("bridge.")} | own
    for name, alone in kept.items():
        tensors = reduced(tensors, name, alone)
        parts[name] = replace(getattr(config.model, name), layers=len(alone.layers), depth=alone.depth)
    model = replace(config.model, **parts)
    halts = isinstance(config.training.objective, HaltingObjectiveConfig)  # which its unit cannot do without
    objective = config.training.objective if halts else SingleConfig()
    training = replace(config.training, objective=objective, validate_depths=(), start_from="")
    return replace(config, model=model, training=training), tensors


def bridged(model: Translator, kept: dict[str, Alone]) -> tuple[dict[str, Alone], BridgeConfig, dict[str, Tensor]]:
    """These stacks without encoder layers that nothing reads, and the settings and weights of what stands between."""
    every = {name: tuple(range(policy.layers)) for name, policy in model.policies.items()}
    decoder = kept["decoder"].layers if "decoder" in kept else every["decoder"]
    read = model.bridge.reads(Plans(Plan(every["encoder"]), Plan(decoder)))
    if "encoder" not in kept and read.layers != every["encoder"]:
        kept = {**kept, "encoder": model.encoder_depth.alone(read)}
    between, own = model.bridge.alone(decoder)
    return kept, between, {f"bridge.{name}": tensor for name, tensor in own.items()}


def of_language(data: DataConfig, key: str) -> DataConfig:
    """Without the corpora of other languages."""
    train, dev, test = (tuple(c for c in corpora if c.key == key) for corpora in (data.train, data.dev, data.test))
    return replace(data, train=train, dev=dev, test=test)


def reduced(tensors: dict[str, Tensor], stack: str, alone: Alone) -> dict[str, Tensor]:
    """Only these layers of a stack, renumbered, and what its new policy and its mixtures (nn/mix.py) know of them."""
    result = {f"{stack}_depth.{name}": tensor for name, tensor in alone.learnt.items()}
    for name, tensor in tensors.items():
        if name.startswith(f"{stack}.layers."):
            _, _, number, rest = name.split(".", 3)
            for place, layer in enumerate(alone.layers):
                if layer == int(number):
                    result[f"{stack}.layers.{place}.{rest}"] = tensor
        elif name.startswith(f"{stack}.mix."):  # of the states up to a layer: those before the first, and so on
            if int(name.split(".")[3]) <= len(alone.layers):
                result[name] = tensor
        elif not name.startswith(f"{stack}_depth."):
            result[name] = tensor
    return result
