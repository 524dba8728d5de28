"""Runs behind HTTP: `anydepth serve`."""
