"""Benchmarks: one module per question, each with `measure() -> Result`. `make bench NAME=hotpath` runs one."""
