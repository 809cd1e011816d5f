"""The write-ahead log of a server."""
