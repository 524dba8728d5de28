"""From text files to batches: corpora, tokenizers, tokenized stores, and the order in which they are read."""
