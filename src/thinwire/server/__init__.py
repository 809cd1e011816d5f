"""A parameter server: what it keeps on disk."""
