"""Feasible nodes of a pod: the filters of Kubernetes, and a pod's preferences for nodes.

Imported by: `cli`, `recovery`, `scheduling`, `simulation`.
"""
