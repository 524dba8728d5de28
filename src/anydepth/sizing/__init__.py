"""Several exports of a run compared: `anydepth sizes`."""
