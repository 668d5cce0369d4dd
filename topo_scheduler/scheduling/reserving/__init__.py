"""Reservations: nodes held for pending workloads that need much room, and which workloads may backfill them.

Imported by: `recording`, `recovery`, `scheduling`.
"""
