"""Run a workload on a cluster in virtual time, with the scheduling core of the daemon and an event-driven clock.

Imported by: `simulation`.
"""
