"""The search that the settings ask for."""

from collections.abc import Sequence

from torch import Tensor

from anydepth.decoding.beam import beam_search
from anydepth.decoding.decoder import Decoder, DecodingConfig, Hypothesis
from anydepth.decoding.greedy import greedy
from anydepth.decoding.rules import Rules
from anydepth.decoding.sampling import sample


def decode(
    decoder: Decoder,
    bos: int,
    eos: int,
    pad: int,
    max_lengths: Tensor,
    settings: DecodingConfig,
    sentences: Sequence[int] | None = None,
) -> list[list[Hypothesis]]:
    """The `n_best` hypotheses of each sentence, by the search that the settings ask for.

    `sentences` numbers the sentences of the batch, for sampling.
    """
    penalty, rules = settings.length_penalty, Rules(settings.block_ngrams, settings.min_length)
    if settings.sample:
        return sample(
            decoder,
            bos,
            eos,
            pad,
            max_lengths,
            seed=settings.seed,
            sentences=sentences,
            draws=settings.n_best,
            temperature=settings.temperature,
            top_k=settings.top_k,
            top_p=settings.top_p,
            length_penalty=penalty,
            rules=rules,
        )
    if settings.beam == 1:
        return [[best] for best in greedy(decoder, bos, eos, pad, max_lengths, penalty, rules)]
    return beam_search(
        decoder,
        bos,
        eos,
        pad,
        max_lengths,
        beam=settings.beam,
        length_penalty=penalty,
        n_best=settings.n_best,
        rules=rules,
    )
