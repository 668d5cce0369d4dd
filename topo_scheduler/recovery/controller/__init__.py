"""kopf and the runner: they bring changes to the state machine and execute its instructions.

Imported by: `runtime`.
"""
