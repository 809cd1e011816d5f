"""Readers of the standard data sets. They download nothing and unpickle nothing."""
