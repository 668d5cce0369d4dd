"""Claims, volumes and storage classes.

Imported by: `kube`, `recording`, `runtime`, `scheduling`, `simulation`, `state`.
"""
