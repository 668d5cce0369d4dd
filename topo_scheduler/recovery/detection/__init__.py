"""Which nodes have failed and since when, from nodes, GPUs, and pods that fail there.

Imported by: `recovery.controller`, `recovery.core`, `recovery.model`.
"""
