"""The compared policies: this scheduler, and baselines that share its queue, filters and resource accounting.

Imported by: `cli`, `simulation`.
"""
