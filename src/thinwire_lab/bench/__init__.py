"""Benchmarks: speed beside the alternatives, as ratios."""
