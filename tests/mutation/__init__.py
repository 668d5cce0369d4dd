"""Mutants of the core, drawn at random, and whether the nearest tests notice them: ``python -m tests.mutation``."""
