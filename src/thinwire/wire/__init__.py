"""Frames, messages and sessions: bytes only, no tensors, no sockets, no clocks."""
