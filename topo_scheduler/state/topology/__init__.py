"""The order of nodes by fabric, accelerator domains, and the links with what is reserved on them.

Imported by: `cli`, `recovery`, `scheduling`, `simulation`, `state`.
"""
