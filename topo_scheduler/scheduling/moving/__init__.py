"""The fewest pods whose move makes room for a workload.

Imported by: `recovery`, `scheduling`.
"""
