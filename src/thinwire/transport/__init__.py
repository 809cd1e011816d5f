"""Transports of frames between workers and a server. A frame is opaque bytes here."""
