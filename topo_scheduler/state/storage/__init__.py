"""Claims, volumes, storage classes and free capacity.

Imported by: `kube`, `recording`, `runtime`, `scheduling`, `simulation`, `state`.
"""
