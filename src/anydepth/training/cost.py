"""What a training costs: the FLOPs of its matrix products, counted from the settings and the words trained on.

A product of an (a, b) and a (b, c) matrix takes 2·a·b·c. Counted are those of the weights and of attention (scores and
weighted sums, the hidden half of a causal mask included, as PyTorch's own counter has it); the backward pass takes
twice as many as the forward one. What tasks have in common is computed, and so counted, once (objectives/tasks.py).
Norms, softmax, the optimizer, padding and validation are not counted, nor what it took to make the run that a training
starts from or the translations it learns from.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, cast

from torch import nn

from anydepth.config import Config
from anydepth.encoder_models import EncoderModel, Model
from anydepth.nn.layers import Layer
from anydepth.objectives import ExitGridConfig, MultitaskConfig
from anydepth.objectives.tasks import Node, Tasks, tree
from anydepth.plan import Plan, Plans
from anydepth.training.log import Lines, TrainingLog, read_log
from anydepth.training.settings import TrainingConfig

TOKENS = 30
"""Words of a sentence, and of its translation, that costs are given for."""


class Work(NamedTuple):
    """What the tasks of a step evaluate, each on all words of its side."""

    encoder: float
    """Encoder layers."""
    begun: float
    """Self-attentions of decoder layers."""
    finished: float
    """Cross-attentions and feed-forward parts of decoder layers."""
    exits: float
    """Output layers with their losses."""
    bridge: float = 0
    """Multiplications per source word between the encoder and the decoder."""
    lessons: float = 0
    """Products with the output matrix that are computed forward alone."""


@dataclass(frozen=True)
class TrainingCost:
    flops: float
    """Of the whole training."""
    flops_per_token: float
    """Per target word (without a decoder: per word read), for sentences of `TOKENS` words on each side: the mean over
    what a step may draw."""
    tokens: int
    """Target words trained on, those of accumulated batches and of all processes included."""
    bound: bool
    """Whether `tokens` is what the settings allow at most (steps × accumulate × batching.tokens, one process), for
    want of a metrics.jsonl that tells."""
    seconds: float | None
    """Training time, validation and saving included."""

    def as_json(self) -> dict[str, Any]:
        counted = "at most: steps × accumulate × batching.tokens" if self.bound else "as metrics.jsonl has them"
        return {
            "training_flops": round(self.flops),
            "training": {
                "flops_per_target_token": round(self.flops_per_token),
                "target_tokens": self.tokens,
                "counted": f"matrix products, forward and backward; {TOKENS}-token sentences; tokens {counted}",
                "bound": self.bound,
                "seconds": self.seconds,
            },
        }


def training_cost(config: Config, model: Model, run: Path | None = None) -> TrainingCost | None:
    """Of a recipe, or of a run as far as it was trained; None for a run that was not trained in its folder.

    The model may be one without memory (device "meta").
    """
    log = read_log(run / "metrics.jsonl") if run else TrainingLog()
    each = training_flops(config.training, model) / TOKENS
    if log.train:
        tokens = tokens_trained(log.train, log.last["step"])
        return TrainingCost(each * tokens, each, tokens, False, log.last["seconds"])
    if run and (run / "model.safetensors").exists():
        return None
    tokens = config.training.steps * config.training.accumulate * config.batching.tokens
    return TrainingCost(each * tokens, each, tokens, True, None)


def tokens_trained(train: Lines, last_step: int) -> int:
    """Target words of a training, as counted in its last line; steps after it had as many as the others. Lines without
    a count, as they were written once, have speeds."""
    tokens, seconds = 0.0, 0.0
    for line in train:
        tokens += line["tokens_per_second"] * (line["seconds"] - seconds)
        seconds = line["seconds"]
    return round(train[-1].get("tokens", tokens) * last_step / train[-1]["step"])


def training_flops(training: TrainingConfig, model: Model, source: int = TOKENS, target: int = TOKENS) -> float:
    """Of the forward and backward pass of one sentence pair with so many words, on average over the draws."""
    layers, rest = forward_flops(model, mean_work(training, model), source, target)
    return (4 if training.recompute else 3) * layers + 3 * rest


def forward_flops(model: Model, work: Work, source: int, target: int) -> tuple[float, float]:
    """Of the layers, and of what stands between and behind them."""
    width = model.config.layer.width
    if isinstance(model, EncoderModel):
        each = 2 * source * matrices(model.encoder.layers[0]) + attention(source, source, width)
        taught = work.lessons / 3 * 2 * model.output.weight.numel() / model.head_flops()
        return work.encoder * each, (work.exits + taught) * model.head_flops(source)
    encoder, decoder = (cast(Layer, stack.layers[0]) for stack in (model.encoder, model.decoder))
    memory = memory_weights(decoder)
    rest = matrices(decoder) - matrices(decoder.attention) - memory
    encoding = (1 + memories_read(encoder)) * attention(source, source, width)
    crossing = memories_read(decoder) * attention(target, source, width)
    layers = (
        work.encoder * (2 * source * matrices(encoder) + encoding)
        + work.begun * (2 * target * matrices(decoder.attention) + attention(target, target, width))
        + work.finished * (2 * target * rest + 2 * source * memory + crossing)
    )
    exits = work.exits + work.lessons / 3
    return layers, 2 * target * exits * model.output.weight.numel() + 2 * source * work.bridge


def memories_read(layer: Layer) -> int:
    """Attentions to something else than the layer's own words."""
    return (layer.cross is not None) + (layer.context is not None)


def memory_weights(layer: Layer) -> int:
    """Of a decoder layer: weights that make keys and values of the source."""
    crosses = [layer.cross, layer.context.attention if layer.context else None]
    return sum(cross.key_value.weight.numel() for cross in crosses if cross is not None)


def attention(queries: int, keys: int, width: int) -> int:
    """Scores and weighted sums of all heads together."""
    return 2 * 2 * queries * keys * width


def matrices(module: nn.Module) -> int:
    """Weights that are multiplied with every word."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.dim() == 2)


# ---- what the tasks of a step share


def mean_work(training: TrainingConfig, model: Model) -> Work:
    """Of a step, on average over what the objective and the policies may draw.

    LayerDrop may drop a whole decoder, and then saves the encoder's backward pass: too rare to count.
    """
    if isinstance(training.objective, ExitGridConfig | MultitaskConfig):
        each = [work(tasks, model) for tasks in training.objective.choices(model)]
        mean = Work(*(fmean(counts) for counts in zip(*each)))
        taught = isinstance(training.objective, ExitGridConfig) and training.objective.taught_by == "deepest"
        return mean._replace(lessons=mean.exits - 1) if taught else mean
    encoder, decoder = model.encoder_depth.mean_steps(), model.decoder_depth.mean_steps()
    if isinstance(model, EncoderModel):
        return Work(encoder, 0, 0, 1)
    every, whole = (Plan(tuple(range(depth.layers))) for depth in (model.encoder_depth, model.decoder_depth))
    drawn = model.decoder_depth.plans().values() if model.decoder_depth.uniform else [whole]
    plans = [Plans(every, plan) for plan in drawn]
    read = fmean(len(model.bridge.reads(each)) / len(each.encoder) for each in plans)
    return Work(encoder * read, decoder, decoder, 1, fmean(map(model.bridge.products, plans)))


def work(tasks: Tasks, model: Model) -> Work:
    """As `SharedPass` does it: plans that begin alike share layers, the encoder serves all decoders, and a first
    decoder layer's self-attention all encoder exits. Without a decoder there is nothing to share but the encoder."""
    if isinstance(model, EncoderModel):
        return Work(layers_of(task.plans.encoder for task in tasks), 0, 0, len(tasks))
    readers: dict[tuple[int, Plan], list[Plan]] = {}
    for plans, _ in tasks:
        readers.setdefault((plans.decoder.layers[0], plans.encoder), []).append(plans.decoder)
    finished = sum(map(layers_of, readers.values()))
    firsts = len({first for first, _ in readers})
    layers = Plan(tuple({layer for task in tasks for layer in task.plans.decoder.layers}))
    read = {Plans(task.plans.encoder, layers) for task in tasks}
    encoder, between = layers_of(map(model.bridge.reads, read)), sum(map(model.bridge.products, read))
    return Work(encoder, finished - len(readers) + firsts, finished, len(tasks), between)


def layers_of(plans: Iterable[Plan]) -> int:
    """Layer evaluations of some plans together."""

    def below(node: Node) -> int:
        return sum(1 + below(child) for child in node.children)

    return below(tree(plans))
