"""The planning context that all planning algorithms share, and the choice of GPUs on a node.

Imported by: `scheduling`, `simulation`.
"""
