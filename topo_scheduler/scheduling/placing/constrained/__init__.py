"""Gangs whose members have constraints on each other: a search that assigns member by member.

Imported by: `scheduling`, `simulation`.
"""
