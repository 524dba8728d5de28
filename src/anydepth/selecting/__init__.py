"""A depth for every sentence, chosen before it is decoded by a network that was trained for it (tied-multi §4), and how
good such a choice is. Start at `selector.py`."""
