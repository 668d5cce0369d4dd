"""Churn without an end: ``python -m tests.soak`` lets a daemon live through a million events and counts what grows."""
