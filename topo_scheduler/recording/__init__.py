"""The calls of an engine and its decisions: observed, recorded, replayed, and written as an audit log.

Imported by: `cli`, `daemon`, `runtime`, `simulation`.
"""
