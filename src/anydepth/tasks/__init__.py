"""What a model is trained for: which batches it gets, and how it is judged. To add a task: a file here, and its name in
the union below. The loop, its checkpoints and its objectives do not know which one they serve."""

from anydepth.config import Config
from anydepth.encoder_models import ClassifierConfig, MaskedLMConfig
from anydepth.tasks.classification import Classification
from anydepth.tasks.masked import MaskedText
from anydepth.tasks.summarization import Summarization
from anydepth.tasks.translation import Translation

AnyTask = Translation | MaskedText | Classification


def task_of(config: Config) -> type[Translation] | type[MaskedText] | type[Classification]:
    """What these settings train for. Made with them and the tokenizers."""
    match config.model:
        case MaskedLMConfig():
            return MaskedText
        case ClassifierConfig():
            return Classification
        case _:
            return Summarization if config.data.pairs == "summaries" else Translation


__all__ = ["AnyTask", "Classification", "MaskedText", "Summarization", "Translation", "task_of"]
