"""Which devices a pod gets: by ResourceClaims, and by the links of GPUs. MIG slots are chosen in simulations only.

Imported by: `cli`, `runtime`, `scheduling`, `simulation`.
"""
