"""The values of recovery: Migrations in progress, seats, limits, instructions.

Imported by: `cli`, `recovery.controller`, `recovery.core`, `recovery.optimisation`, `recovery.planning`.
"""
