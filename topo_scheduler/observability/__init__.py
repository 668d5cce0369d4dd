"""What an operator sees: metrics, logs, health, and the files of the audit log and the record.

Imported by: `cli`, `daemon`, `recording`, `recovery`, `runtime`, `simulation`.
"""
