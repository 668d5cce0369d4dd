"""Decisions, beside what the rules say of them; and the machine that makes them, under whatever order of events."""
