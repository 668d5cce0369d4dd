"""The size rule of uniform gangs that request bandwidth, and the nodes that their links can serve.

Imported by: `scheduling.placing.checks`, `scheduling.placing.context`, `scheduling.placing.heterogeneous`.
"""
