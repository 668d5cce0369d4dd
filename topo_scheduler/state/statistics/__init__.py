"""What this cluster usually sees: sizes of gangs, run times, outcomes of placements, typical pods.

Imported by: `scheduling`, `simulation`, `state.pods`.
"""
