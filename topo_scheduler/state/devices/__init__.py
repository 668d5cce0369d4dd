"""What nodes are made of: published devices and the claims that use them; GPUs, links, NICs and MIG from files.

Imported by: `cli`, `kube`, `recording`, `recovery`, `runtime`, `scheduling`, `simulation`, `state`.
"""
