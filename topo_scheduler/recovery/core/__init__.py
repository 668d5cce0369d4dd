"""The state machine of recovery: changes in, instructions out, the time as an argument.

Imported by: `recovery.controller`.
"""
