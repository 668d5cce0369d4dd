"""Gangs of several pod classes: exact packing on the fewest leaves.

Imported by: `scheduling.explaining`, `scheduling.placing`, `scheduling.preemption`.
"""
