"""Makers of the pages, benchmarks, evidence and mutants: run by hand, by make, and by tests."""
