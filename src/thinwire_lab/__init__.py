"""Experiments with Thinwire: training runs, reproductions of papers, benchmarks."""
