"""Which devices a pod gets: by ResourceClaims; and, not in use yet, by the links of GPUs and the slots of MIG.

Imported by: `cli`, `scheduling`, `simulation`.
"""
