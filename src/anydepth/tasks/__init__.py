"""What a model is trained for: which batches it gets, and how it is judged. To add a task: a file here, and its name in
the union below. The loop, its checkpoints and its objectives do not know which one they serve."""

from typing import TYPE_CHECKING

from anydepth.encoder_models import MaskedLMConfig
from anydepth.tasks.masked import MaskedText
from anydepth.tasks.summarization import Summarization
from anydepth.tasks.translation import Translation

if TYPE_CHECKING:
    from anydepth.config import Config

AnyTask = Translation | MaskedText


def task_of(config: "Config") -> type[Translation] | type[MaskedText]:
    """What these settings train for. Made with them and the tokenizers."""
    if isinstance(config.model, MaskedLMConfig):
        return MaskedText
    return Summarization if config.data.pairs == "summaries" else Translation


__all__ = ["AnyTask", "MaskedText", "Summarization", "Translation", "task_of"]
