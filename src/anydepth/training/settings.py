"""The settings of a training."""

from typing import Literal

from anydepth.config_class import config
from anydepth.objectives import ObjectiveConfig, SingleConfig
from anydepth.training.optim import OptimizerConfig


@config
class TrainingConfig:
    """How long, how often and on what."""

    start_from: str = ""
    """Run whose weights and tokenizers to start from, for example a plain model to make flexible, or the folder of a
    BERT from Hugging Face; a model for another task starts with a new head. Empty means none."""
    steps: int = 10_000
    """Updates of the weights."""
    seconds: float = 0.0
    """Training time after which to stop, validation and saving included; 0 means no limit."""
    accumulate: int = 1
    """Batches whose gradients are added before each update."""
    at_once: int = 1
    """So many of these are computed as one, where they are packed and train the same depth: the same update, but a GPU
    is faster with many words at a time. Takes the memory that so much larger batches would."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """The optimizer and its schedule."""
    depth_optimizer: OptimizerConfig | None = None
    """An optimizer of its own for what depth policies learn (latent depth's logits, ReZero's scales); without it they
    are weights like any other. Without effect where no policy learns: plain models may share a recipe."""
    inner_steps: int = 1
    """Steps on the weights for each update of what depth policies learn, which takes the gradient of the last of them
    (latent depth, Appendix B.1); 1 trains both together. Without effect where no policy learns."""
    objective: ObjectiveConfig = SingleConfig()
    """Which depths a step trains: one sampled plan, the exit grid, or several sub-networks; and latent depth's loss."""
    label_smoothing: float = 0.1
    """Share of the probability that the loss spreads over all words."""
    device: str = "auto"
    """`auto` takes a GPU where there is one; or `cpu`, `cuda`, `cuda:1`."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """`bf16` computes in bfloat16 over weights kept in float32; `auto` does so on a GPU."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Compiles each layer once (not the stack, so that every plan shares it); `auto` does so on a GPU."""
    recompute: bool = False
    """Computes activations again in the backward pass to save memory."""
    validate_every: int = 500
    """Steps between validations; 0 validates at the end only."""
    validate_depths: tuple[str, ...] = ()
    """Depths to validate at, such as "6-6" or "2-1"; empty means the deepest."""
    validate_sentences: int = 200
    """Sentences of the dev set translated greedily for BLEU and chrF at each validation; 0 means none."""
    best: Literal["loss", "score"] = "loss"
    """What the dev sets judge weights by: the loss, or BLEU, ROUGE-1, or accuracy. Where a small corpus is learnt by
    heart, the loss rises long before the score falls."""
    patience: int = 0
    """Validations without better weights after which to stop; 0 never stops early."""
    save_every: int = 500
    """Steps between checkpoints."""
    keep: int = 3
    """Checkpoints kept."""
    average: int = 1
    """Last checkpoints whose mean is tried at the end; it becomes the model if it is the best on the dev sets."""
    log_every: int = 50
    """Steps between lines of metrics.jsonl."""
    log_gradients: bool = False
    """Also writes the norm of every layer's gradient, before clipping, for each step that has a line."""
    tensorboard: bool = False
    """Also writes the metrics for TensorBoard."""

    def __post_init__(self) -> None:
        for name in ("steps", "accumulate", "at_once", "inner_steps", "save_every", "keep", "average", "log_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        for name in ("seconds", "validate_every", "validate_sentences", "patience"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError("label_smoothing must be at least 0 and below 1")
        if self.accumulate % self.at_once:
            raise ValueError(f"at_once: accumulate = {self.accumulate} batches cannot be shared out by {self.at_once}")
        if self.average > self.keep:
            raise ValueError(f"average: needs {self.average} checkpoints, but keep = {self.keep}")
