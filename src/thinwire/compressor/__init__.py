"""Error feedback around a codec, for named tensors."""
