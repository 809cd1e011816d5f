"""Keys: by which certificates servers and workers know each other."""
