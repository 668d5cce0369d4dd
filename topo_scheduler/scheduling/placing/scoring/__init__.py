"""Scores of leaves and nodes, and tie-breaking between equal placements.

Imported by: `scheduling.placing`.
"""
