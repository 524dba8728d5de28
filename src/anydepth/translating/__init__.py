"""A translator and the searches of `decoding/`: what it has to offer them, word by word, in fixed places, with drafts.
Start at `searching.py`."""
