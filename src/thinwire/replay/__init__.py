"""Weights at any version, from the logs of a run."""
