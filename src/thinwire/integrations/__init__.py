"""Compressed gradients inside other training libraries, each in the module of its name."""
