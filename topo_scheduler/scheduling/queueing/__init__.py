"""The queue: order, fair shares, quotas, and the events after which pending workloads are tried again.

Imported by: `cli`, `recovery`, `scheduling`, `simulation`.
"""
