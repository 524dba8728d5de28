"""What a classifier says about texts, and on a GPU how it reads them fast. Start at `labels.py`."""
