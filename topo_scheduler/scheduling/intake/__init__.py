"""From the API server's pods to workloads: which pods belong together, and what each of them requests.

Imported by: `cli`, `recording`, `runtime`, `scheduling`, `simulation`.
"""
