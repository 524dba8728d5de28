"""What the settings of different parts have to agree on. A ValueError names the setting that is wrong."""

from dataclasses import replace

from anydepth.data.corpora import DataConfig
from anydepth.depth.latent import LatentConfig
from anydepth.models import StackConfig, TranslatorConfig
from anydepth.objectives import (
    ExitGridConfig,
    FairseqLatentConfig,
    LatentObjectiveConfig,
    MultitaskConfig,
    ObjectiveConfig,
)


def check_objective(objective: ObjectiveConfig, model: TranslatorConfig) -> None:
    """Some objectives need several depths, some latent depth, which in turn learns its plans itself."""
    stacks = {"encoder": model.encoder, "decoder": model.decoder}
    latent = [name for name, stack in stacks.items() if isinstance(stack.depth, LatentConfig)]
    several = isinstance(objective, ExitGridConfig | MultitaskConfig)
    if latent and several:
        raise ValueError(f"training.objective: {objective.type} trains fixed plans, and latent depth learns its own")
    if several and all(len(stack.depth.build(stack.layers).plans()) == 1 for stack in stacks.values()):
        raise ValueError(
            f"training.objective: {objective.type} trains several depths, but each stack has only one here, which "
            'is the same as "single"; give one of them a depth such as "prefix"'
        )
    if several and model.decoder.mix == "dlcl":
        raise ValueError(f"training.objective: {objective.type} shares decoder layers, which model.decoder.mix forbids")
    if not latent and isinstance(objective, LatentObjectiveConfig | FairseqLatentConfig):
        raise ValueError(f"training.objective: {objective.type} needs a stack with latent depth")
    for name, stack in stacks.items() if isinstance(objective, LatentObjectiveConfig) else ():
        wanted = getattr(objective, f"{name}_layers")
        if wanted and name not in latent:
            raise ValueError(f"training.objective.{name}_layers: the {name} has no latent depth; 0 wants none")
        if wanted > stack.layers:
            raise ValueError(f"training.objective.{name}_layers: {wanted} wanted, but the {name} has {stack.layers}")


def with_keys(model: TranslatorConfig, data: DataConfig) -> TranslatorConfig:
    """A row of logits for every language of the training corpora, where latent depth has one for each."""

    def with_rows(stack: StackConfig, name: str) -> StackConfig:
        depth = stack.depth
        if not isinstance(depth, LatentConfig) or depth.per == "model":
            return stack
        return replace(stack, depth=replace(depth, keys=keys_of(depth, name, data)))

    return replace(model, encoder=with_rows(model.encoder, "encoder"), decoder=with_rows(model.decoder, "decoder"))


def keys_of(depth: LatentConfig, stack: str, data: DataConfig) -> tuple[str, ...]:
    """The names of a stack's rows: those given, or those of the training corpora."""
    keys = depth.keys or tuple(dict.fromkeys(depth.row_name(corpus.key) for corpus in data.train))
    corpora = {f"{split}.{n}": corpus for split in ("train", "dev") for n, corpus in enumerate(getattr(data, split))}
    for place, corpus in corpora.items():
        if not corpus.key or (depth.per != "pair" and corpus.key.count("-") != 1):
            raise ValueError(f'data.{place}.key: expected languages such as en-de; {stack}.depth.per is "{depth.per}"')
        if depth.row_name(corpus.key) not in keys:
            raise ValueError(f"data.{place}.key: {stack}.depth has rows for {', '.join(keys)} alone")
    return keys
