"""Layers, the stacks that run plans of them, and what these are made of. Start at `stack.py`."""
