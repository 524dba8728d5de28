"""From what a selector predicts to the depth of every sentence. Depths are places in a list with fast ones first, so
that of equally good ones the fastest is taken."""

import numpy as np

from anydepth.errors import UserError
from anydepth.evaluation.metrics import Array

SURE = 0.5
"""Below this no depth is trusted to be among the best (tied-multi §4.3)."""
ROUNDING = 1 + 1e-9


def most_probable(probabilities: Array, full: int) -> Array:
    """(sentences, depths) → the most probable depth of each, or full depth where none reaches one half."""
    return np.where(probabilities.max(axis=1) >= SURE, probabilities.argmax(axis=1), full)


def at_price(quality: Array, ms: Array, price: float) -> Array:
    """The best predicted quality less its price: `price` points for each of the milliseconds, which are those of every
    depth, or (sentences, depths)."""
    return (quality - price * ms).argmax(axis=1)


def price_within(quality: Array, ms: Array, limit_ms: float) -> float:
    """The lowest price at which the sentences take at most `limit_ms` on average: among all choices that do, those at
    this price promise the best quality, but for the step at the limit (the price is a Lagrange multiplier)."""
    ms = np.broadcast_to(ms, quality.shape)
    fastest = float(ms.min(axis=1).mean())
    if limit_ms * ROUNDING < fastest:
        raise UserError(f"{limit_ms:g} ms a sentence: the fastest depths take {fastest:.3g} ms")

    def fits(price: float) -> bool:
        chosen = at_price(quality, ms, price)[:, None]
        return float(np.take_along_axis(ms, chosen, 1).mean()) <= limit_ms * ROUNDING

    if fits(0.0):
        return 0.0
    low, high = 0.0, 1e-6
    while not fits(high):
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def within(quality: Array, ms: Array, limit_ms: float) -> Array:
    """The depths that promise the best quality at `limit_ms` a sentence on average."""
    return at_price(quality, ms, price_within(quality, ms, limit_ms))
