"""`python -m anydepth`, which torchrun needs."""

from anydepth.cli import main

main()
