"""Results of runs: figures, comparison tables, and files.

Imported by: `cli`, `simulation`.
"""
