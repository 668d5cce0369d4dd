"""Gangs of one pod class: choice of leaves, choice of nodes, replacement of lost members.

Imported by: `scheduling.placing`, `scheduling.preemption`.
"""
