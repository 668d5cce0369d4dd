"""Gangs that request bandwidth: the size rule of uniform ones, the members that reserve it, the nodes that links serve.

Imported by: `scheduling.binding`, `scheduling.placing.checks`, `scheduling.placing.context`,
`scheduling.placing.heterogeneous`.
"""
