"""Benchmarks: each prints the table that the documentation quotes."""
