"""Binds, evictions, events, conditions, volumes and Migrations: every write of the daemon but the lease.

Imported by: `cli`, `daemon`, `recovery`, `runtime`.
"""
