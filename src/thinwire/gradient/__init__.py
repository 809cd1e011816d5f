"""Gradients as named tensors."""
