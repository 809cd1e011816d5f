"""Local steps: global weights, and when they are exchanged."""
