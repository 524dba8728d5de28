"""`python -m anydepth.cli`."""

from anydepth.cli import main

main()
