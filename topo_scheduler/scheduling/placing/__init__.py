"""Placement of workloads: the size rule, scores, choice of nodes, and validation before a placement is assumed.

Imported by: `recording`, `recovery`, `scheduling`, `simulation`.
"""
