"""A worker of parameter servers: pushes gradients, applies updates."""
