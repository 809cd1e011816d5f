"""Benchmark of training steps between hosts, over links of limited rates."""
