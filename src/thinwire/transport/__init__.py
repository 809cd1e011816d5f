"""How frames travel between workers and a server. A frame is opaque here: bytes, never read."""
