"""Voluntary moves: defragmentation, consolidation, closer placement, room for a pending gang.

Imported by: `recovery.core`.
"""
