"""Networks that tasks train."""
