"""What nodes are made of: their GPUs, the links between these, NICs, and MIG; read from the files that describe them.

Imported by: `scheduling`.
"""
