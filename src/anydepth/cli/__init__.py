"""The command line. Each verb is a few lines around the function that does the work.

What the user got wrong is one line on stderr and exit code 2. Torch is imported by the verbs that need it, so that
`anydepth --help` answers at once.
"""

from anydepth.cli import training, using, scoring, choosing, looking  # noqa: I001 (their order is that of --help)
from anydepth.cli.app import main

__all__ = ["choosing", "looking", "main", "scoring", "training", "using"]
