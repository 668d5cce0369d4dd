"""Mutants of the core, drawn at random, and whether tests that come by them notice: ``python -m tests.mutation``."""
