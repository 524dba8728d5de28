"""Which tiles multiply few words fastest on this GPU?

    python benchmarks/tiles.py                      width 512, feed-forward 2048, 1 to 64 words
    python benchmarks/tiles.py --width 1024 --ffn 4096 --rows 1 16

For each product of a decoder layer and number of words: microseconds a kernel, with the tile that `choose_tile` takes
(nn/multiplying.py) and with the fastest of those tried. Kernels follow one another as in a decoder step, each with the
weights of another layer, replayed as a graph; every tile in turn, and the fastest replay counts. A tile that wins here
should be tried in a whole step (`decoding_speed.py --sections step`) before it is taken: other kernels run beside it
there.
"""

import argparse
import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from anydepth.nn.few_words import project
from anydepth.nn.multiplying import Tile, choose_tile
from anydepth.nn.recorder import Recorder, power_of_two

LAYERS = 6
STEPS = 8
"""All layers, one after the other, in a graph."""
ROUNDS = 30


class Product(NamedTuple):
    name: str
    inner: int
    columns: int
    after_norm: bool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--ffn", type=int, default=2048)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 5, 16, 32, 64])
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("needs a GPU")
    products = (
        Product("queries, keys, values", args.width, 3 * args.width, True),
        Product("query, or grow", args.width, args.ffn, True),
        Product("output", args.width, args.width, False),
        Product("shrink", args.ffn, args.width, False),
    )
    for product, rows in itertools.product(products, args.rows):
        chosen = choose_tile(rows, product.columns, product.inner)
        times = times_of([chosen, *tiles(product, rows)], product, rows)
        best = sorted(times, key=times.__getitem__)[:3]
        told = "; ".join(f"{times[tile]:.2f} {described(tile)}" for tile in best)
        print(f"{product.name}, {rows} rows: {times[chosen]:.2f} us {described(chosen)}; best {told}", flush=True)


def tiles(product: Product, rows: int) -> Iterator[Tile]:
    """That may be worth a try: those that the chip has no room for are left out later."""
    width, padded = power_of_two(product.inner), power_of_two(rows)
    for columns, warps in itertools.product((2, 4, 8, 16), (1, 2)):
        if rows <= 8 and 1024 <= columns * width // warps <= 8192:
            yield Tile(columns, width, warps, rows=padded, singly=rows)
    for columns, warps, parts, together in itertools.product((16, 32), (4, 8), (1, 4, 8), (16, 32)):
        fits = parts <= (1 if product.after_norm else warps) and together <= max(16, padded)
        if rows > 2 and fits and (together == 16 or columns == 16):
            yield Tile(columns, width, warps, rows=together, parts=parts)


def described(tile: Tile) -> str:
    how = f"{tile.singly} singly" if tile.singly else f"{tile.rows} rows, sums in {tile.parts}"
    return f"({tile.columns} columns by {tile.warps} warps, {how})"


def times_of(tried: list[Tile], product: Product, rows: int) -> dict[Tile, float]:
    """Microseconds a kernel."""
    replays: dict[Tile, Callable[[], object]] = {}
    recorder = Recorder(torch.cuda.Stream())
    layers = [weights(product, rows) for _ in range(LAYERS)]
    with torch.no_grad():
        for tile in tried:
            try:
                replays[tile] = recorder.record(lambda tile=tile: step(layers, product, tile))
            except Exception as error:  # too much for the chip, or for the compiler
                print(f"  left out {described(tile)}: {type(error).__name__}", flush=True)
    found = dict.fromkeys(replays, float("inf"))
    for _, (tile, replay) in itertools.product(range(ROUNDS), replays.items()):
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(recorder.stream):
            replay()
            begun.record()
            replay()
            ended.record()
        ended.synchronize()
        found[tile] = min(found[tile], 1000 * begun.elapsed_time(ended) / (STEPS * LAYERS))
    return found


def weights(product: Product, rows: int) -> tuple[Tensor, nn.Linear, nn.LayerNorm, Tensor]:
    """States, a product with its norm, and what it is added to."""
    linear, norm = nn.Linear(product.inner, product.columns).cuda(), nn.LayerNorm(product.inner).cuda()
    x, before = (torch.randn(rows, size, device="cuda").bfloat16() for size in (product.inner, product.columns))
    return x, linear.bfloat16(), norm.bfloat16(), before


def step(layers: list[tuple[Tensor, nn.Linear, nn.LayerNorm, Tensor]], product: Product, tile: Tile) -> None:
    for x, linear, norm, before in layers * STEPS:
        if product.after_norm:
            project(x, linear.weight, linear.bias, norm, tile=tile)
        else:
            project(x, linear.weight, linear.bias, residual=before, tile=tile)


if __name__ == "__main__":
    main()
