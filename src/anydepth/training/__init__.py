"""From a recipe to a run folder. Start at `loop.py`."""
