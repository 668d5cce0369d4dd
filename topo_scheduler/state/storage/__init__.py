"""Claims, volumes and storage classes.

Imported by: `cli`, `kube`, `recording`, `runtime`, `scheduling`, `simulation`, `state`.
"""
