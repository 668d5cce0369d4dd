"""The query, its answers, and the nodes as a pod class sees them; segments, size rule, packing.

Imported by: `recording`, `recovery`, `scheduling`, `simulation`.
"""
