"""``report.html``: the charts of a simulation, in one file made from a result and its placements.

Imported by: `simulation.results`.
"""
