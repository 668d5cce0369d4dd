"""Voluntary moves: defragmentation, a larger block of free nodes, consolidation of gangs, room for a pending gang.

Imported by: `recovery.core`.
"""
