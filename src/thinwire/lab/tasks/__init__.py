"""Named tasks: a network, its data, and how it is trained, at several scales."""
