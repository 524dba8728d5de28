"""What the settings of different parts have to agree on. A ValueError names the setting that is wrong."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from anydepth.data.builtin_corpora import BuiltinNotices
from anydepth.data.corpora import DataConfig, LabelledCorpus, PairCorpus, TextCorpus
from anydepth.data.cutting import BatchingConfig
from anydepth.data.tokenizer import TokenizerConfig
from anydepth.depth.latent import LatentConfig
from anydepth.depth.perword import HaltingConfig, PerWordConfig
from anydepth.encoder_models import ClassifierConfig, MaskedLMConfig, ModelConfig
from anydepth.errors import UserError
from anydepth.nn.stack_config import StackConfig
from anydepth.objectives import (
    ExitGridConfig,
    FairseqLatentConfig,
    HaltingObjectiveConfig,
    LatentObjectiveConfig,
    MultitaskConfig,
    ObjectiveConfig,
)
from anydepth.plan import parse_depth, parse_encoder_depth
from anydepth.training.settings import TrainingConfig


def check_objective(objective: ObjectiveConfig, model: ModelConfig) -> None:
    """Some objectives need several depths, some latent depth, which in turn learns its plans itself."""
    stacks = stacks_of(model)
    latent = [name for name, stack in stacks.items() if isinstance(stack.depth, LatentConfig)]
    several = isinstance(objective, ExitGridConfig | MultitaskConfig)
    if latent and several:
        raise ValueError(f"training.objective: {objective.type} trains fixed plans, and latent depth learns its own")
    if several and all(len(stack.depth.build(stack.layers).plans()) == 1 for stack in stacks.values()):
        raise ValueError(
            f"training.objective: {objective.type} trains several depths, but each stack has only one here, which "
            'is the same as "single"; give one of them a depth such as "prefix"'
        )
    depth = stacks["encoder"].depth
    halts = isinstance(depth, PerWordConfig) and isinstance(depth.estimate, HaltingConfig)
    if halts != isinstance(objective, HaltingObjectiveConfig):
        raise ValueError(
            'training.objective: "halting" goes with depth per word whose estimate is "halting", and only so'
        )
    if "decoder" not in stacks:
        check_without_decoder(objective)
    elif several and stacks["decoder"].mix == "dlcl":
        raise ValueError(f"training.objective: {objective.type} shares decoder layers, which model.decoder.mix forbids")
    if not latent and isinstance(objective, LatentObjectiveConfig | FairseqLatentConfig):
        raise ValueError(f"training.objective: {objective.type} needs a stack with latent depth")
    for name, stack in stacks.items() if isinstance(objective, LatentObjectiveConfig) else ():
        wanted = getattr(objective, f"{name}_layers")
        if wanted and name not in latent:
            raise ValueError(f"training.objective.{name}_layers: the {name} has no latent depth; 0 wants none")
        if wanted > stack.layers:
            raise ValueError(f"training.objective.{name}_layers: {wanted} wanted, but the {name} has {stack.layers}")


def check_depths(model: ModelConfig) -> None:
    """Depth per word is for texts that are read and labelled."""
    for name, stack in stacks_of(model).items():
        if isinstance(stack.depth, PerWordConfig) and not isinstance(model, ClassifierConfig):
            raise ValueError(f"model.{name}.depth: per-word is for a classifier, not for a {model.type}")


def check_validation(depths: Sequence[str], model: ModelConfig) -> None:
    """Depths to validate at, before anything is made for a training."""
    stacks = stacks_of(model)
    parse = parse_depth if "decoder" in stacks else parse_encoder_depth
    for depth in depths:
        try:
            wanted = parse(depth)
        except UserError as error:
            raise UserError(f"training.validate_depths: {error}") from None
        for (name, stack), layers in zip(stacks.items(), wanted):
            plans = depths_of(stack, name)
            if layers not in plans:
                known = ", ".join(map(str, sorted(plans)))
                raise UserError(f"training.validate_depths: depth {depth}: the {name} has depths {known}")


def depths_of(stack: StackConfig, name: str) -> Collection[int]:
    """The depths that a stack will have whenever it is validated."""
    if not isinstance(stack.depth, LatentConfig):
        return stack.depth.build(stack.layers).plans()
    if stack.depth.inference == "hard":
        raise UserError(
            f"training.validate_depths: how many layers the {name} runs is what latent depth learns; leave it empty"
        )
    return {stack.layers}


def check_without_decoder(objective: ObjectiveConfig) -> None:
    """An encoder alone has exits, not pairs of them."""
    if isinstance(objective, ExitGridConfig | MultitaskConfig) and objective.together > 1:
        raise ValueError("training.objective.together: this model has no decoders that could run as one batch")
    for name in ("decoder_depths", "decoder_layers"):
        if getattr(objective, name, 0):
            raise ValueError(f"training.objective.{name}: this model has no decoder; 0 wants none")


def check_best(training: TrainingConfig, model: ModelConfig) -> None:
    """Weights can only be chosen by a score that validations have."""
    if training.best == "loss":
        return
    if isinstance(model, MaskedLMConfig):
        raise ValueError('training.best: a masked language model has no score; "loss" is what it is judged by')
    if not isinstance(model, ClassifierConfig) and not training.validate_sentences:
        raise ValueError('training.best: "score" needs sentences to be scored, training.validate_sentences')


def stacks_of(model: ModelConfig) -> dict[str, StackConfig]:
    """The stacks of a model by name."""
    return {name: getattr(model, name) for name in ("encoder", "decoder") if hasattr(model, name)}


def check_corpora(model: ModelConfig, data: DataConfig) -> None:
    """Translation and summarization learn from pairs, a masked language model from text, a classifier from text with
    labels."""
    match model:
        case MaskedLMConfig():
            kind, wanted = TextCorpus, "text or builtin-text"
        case ClassifierConfig():
            kind, wanted = LabelledCorpus, "labelled or builtin-labelled"
        case _:
            kind, wanted = PairCorpus, "parallel, tsv, jsonl, builtin or builtin-notices"
    for split in ("train", "dev", "test"):
        for number, corpus in enumerate(getattr(data, split)):
            if isinstance(corpus, BuiltinNotices) and data.pairs != "summaries":
                raise ValueError(f'data.pairs: "summaries" is what {corpus.type} in data.{split}.{number} has')
            if not isinstance(corpus, kind):
                raise ValueError(f"data.{split}.{number}.type: {corpus.type}, but {model.type} needs {wanted}")
    if kind is not PairCorpus and data.tags == "target":
        raise ValueError(f"data.tags: a {model.type} reads text without tags of target languages")
    if kind is not PairCorpus and data.pairs != "translations":
        raise ValueError(f"data.pairs: a {model.type} reads text, not pairs")


def check_sentences(model: ModelConfig, data: DataConfig, batching: BatchingConfig) -> None:
    """A hierarchical encoder finds its sentences by their end marks, in padded batches."""
    if not getattr(model, "sentence_layers", 0):
        return
    if not data.sentences:
        raise ValueError("data.sentences: model.sentence_layers needs the end marks of sentences; set it to true")
    if batching.layout == "packed":
        raise ValueError("batching.layout: model.sentence_layers reads padded batches alone")


def check_tokenizer(model: ModelConfig, tokenizer: TokenizerConfig) -> None:
    two = bool(tokenizer.source_path) or not (tokenizer.joint or tokenizer.path)
    if isinstance(model, MaskedLMConfig | ClassifierConfig):
        if two:
            raise ValueError("tokenizer.joint: text has one side; use joint = true, or path for an existing tokenizer")
    elif model.tie == "all" and two:
        raise ValueError('model.tie: "all" needs one tokenizer for both sides; with two use "decoder" or "none"')


def with_keys(model: ModelConfig, data: DataConfig) -> ModelConfig:
    """A row of logits for every language of the training corpora, where latent depth has one for each."""

    def with_rows(stack: StackConfig, name: str) -> StackConfig:
        depth = stack.depth
        if not isinstance(depth, LatentConfig) or depth.per == "model":
            return stack
        return replace(stack, depth=replace(depth, keys=keys_of(depth, name, data)))

    return replace(model, **{name: with_rows(stack, name) for name, stack in stacks_of(model).items()})  # type: ignore[arg-type]


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
