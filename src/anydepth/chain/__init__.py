"""Trainings that build on one another, as one command: pre-train, distil, fine-tune, or a whole table of a paper.

A chain is a TOML file of stages (stages.py). Each leaves a run, a text, scores or a page in the chain's folder, and
later stages name it. planning.py turns stages into single pieces of work (work.py), running.py has them done,
side_by_side.py several at a time.
"""

from anydepth.chain.running import list_chain, run_chain
from anydepth.chain.side_by_side import run_side_by_side
from anydepth.chain.stages import load

__all__ = ["list_chain", "load", "run_chain", "run_side_by_side"]
