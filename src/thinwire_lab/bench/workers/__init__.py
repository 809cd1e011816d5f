"""Processes that benchmarks start, and the messages between them."""
