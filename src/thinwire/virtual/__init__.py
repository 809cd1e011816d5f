"""A cluster in one process."""
