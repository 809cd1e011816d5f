"""Training runs: one loop for all backends, an engine for each."""
