"""The values of recovery: Migrations in progress, seats, limits, instructions.

Imported by: `recovery.controller`, `recovery.core`, `recovery.optimisation`, `recovery.planning`.
"""
