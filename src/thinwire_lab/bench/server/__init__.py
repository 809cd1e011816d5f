"""Benchmark of parameter servers, beside an allreduce."""
