"""`python -m anydepth`, which torchrun needs."""

from anydepth.cli import main

if __name__ == "__main__":  # not in the processes that a command starts
    main()
