"""What stands beside an exported model: how to use it with what it was exported for, without our package."""

from anydepth.plan import Plans
from anydepth.run import Run

TEXT = """\
# Depth {depth}, for {engine}

Written by `anydepth export --to {name}`. `pip install {packages}` is all it takes, in this folder:

```python
{code}
```

{same} An empty text is not for the model. Texts that are given together may all
have as many words as the longest of them allows; anydepth limits each by its own length.
"""
SAME = "Greedy search (`{greedy}`) finds what anydepth does; a beam may find others."
ROUNDED = """\
Weights are rounded ({weights}), so that some texts are translated otherwise than by anydepth; without `--quantization`
greedy search (`{greedy}`) finds the same."""


def page(plans: Plans, name: str, engine: str, packages: str, greedy: str, code: str, weights: str = "") -> str:
    """`name` is what `--to` was given; `code` reads texts and searches as the run does; `weights` are those of a number
    type that is not the run's."""
    same = (ROUNDED if weights else SAME).format(greedy=greedy, weights=weights)
    return TEXT.format(depth=plans.name, name=name, engine=engine, packages=packages, same=same, code=code)


def limit(run: Run) -> str:
    """As `DecodingConfig.max_lengths` has it, of the longest source."""
    decoding, positions = run.config.decoding, run.config.model.max_positions
    own = f"int({decoding.max_ratio:g} * longest) + {decoding.max_extra}"
    own = f"max({decoding.min_length + 1}, {own})" if decoding.min_length else own
    return f"min({min(decoding.max_length or positions, positions)}, {own})"
