"""What stands beside an exported model: how to use it with what it was exported for, without our package."""

from anydepth.plan import Plans
from anydepth.run import Run

TEXT = """\
# Depth {depth}, for {engine}

Written by `anydepth export --to {name}`. `pip install {packages}` is all it takes, in this folder:

```python
{code}
```

Greedy search (`{greedy}`) finds what anydepth does; a beam may find others. An empty text is not for the model.
"""


def page(plans: Plans, name: str, engine: str, packages: str, greedy: str, code: str) -> str:
    """`name` is what `--to` was given; `code` reads texts and searches as the run does."""
    return TEXT.format(depth=plans.name, name=name, engine=engine, packages=packages, greedy=greedy, code=code)


def limit(run: Run) -> str:
    """As `DecodingConfig.max_lengths` has it, of the longest source."""
    decoding, positions = run.config.decoding, run.config.model.max_positions
    own = f"int({decoding.max_ratio:g} * longest) + {decoding.max_extra}"
    own = f"max({decoding.min_length + 1}, {own})" if decoding.min_length else own
    return f"min({min(decoding.max_length or positions, positions)}, {own})"
