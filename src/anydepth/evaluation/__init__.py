"""How good runs are at every depth: metrics, depth grids, and which differences are real. `reporting/` shows it."""
