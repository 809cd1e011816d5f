"""Engines: how each backend computes a training step."""
