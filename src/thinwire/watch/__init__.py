"""Ways to look at a run while it goes on."""
