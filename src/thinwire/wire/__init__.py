"""Frames, messages, and who may say what when: bytes only, no tensors, no sockets, no clocks."""
