"""Summarization: documents and their summaries, judged by ROUGE of greedy summaries."""

from anydepth.data.corpora import CorpusConfig
from anydepth.data.reading import Skips, read_pairs
from anydepth.data.store import Store
from anydepth.encoder_models import Model
from anydepth.tasks.translation import Translation


class Summarization(Translation):
    """Batches as for translation; what is too long on the source side is cut, not skipped."""

    def scores(self, model: Model, corpus: CorpusConfig, store: Store, depth: str) -> dict[str, float]:
        from anydepth.evaluation.rouge import RougeScorer
        from anydepth.run import Run

        wanted = self.config.training.validate_sentences
        if not wanted:
            return {}
        run = Run(self.config, model, self.tokenizers, key=corpus.key)
        run.record = False
        pairs = self.usable(run, read_pairs(corpus, "dev", Skips()), corpus.key, wanted)
        hypotheses = run.summarize([document for document, _ in pairs], depth, beam=1, sample=False)
        return RougeScorer([summary for _, summary in pairs]).statistics(hypotheses).scores()
