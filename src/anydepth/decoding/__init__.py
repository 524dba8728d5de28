"""Search for the outputs of a model, over the `Decoder` protocol alone: start at `search.decode`."""
