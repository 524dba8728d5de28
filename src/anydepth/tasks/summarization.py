"""Summarization: documents and their summaries, judged by ROUGE of greedy summaries."""

from typing import Any

from anydepth.evaluation.rouge import RougeScorer
from anydepth.run import Run
from anydepth.tasks.translation import Translation


class Summarization(Translation):
    """Batches as for translation; what is too long on the source side is cut, not skipped."""

    score = "rouge1"

    def judge(self, run: Run, sources: list[str], references: list[str], search: dict[str, Any]) -> dict[str, float]:
        return RougeScorer(references).statistics(run.summarize(sources, **search)).scores()
