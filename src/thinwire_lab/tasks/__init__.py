"""Tasks: a network, its data and its training settings."""
