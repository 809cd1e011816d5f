"""The speed of kernels beside memcpy and torch."""
