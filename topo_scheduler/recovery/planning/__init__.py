"""From a Migration to held seats: validation, joint planning, relocation of other pods, spares.

Imported by: `recovery.core`, `recovery.optimisation`.
"""
