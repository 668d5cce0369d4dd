"""What nodes are made of: published devices and the claims that use them; GPUs, links, NICs and MIG from files.

Only simulations read files, with `smi_matrix`, `kfd_tree` and `topology_xml`. An agent on the nodes is to follow.

Imported by: `cli`, `kube`, `recording`, `recovery`, `runtime`, `scheduling`, `simulation`, `state`.
"""
