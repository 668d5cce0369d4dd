"""The scheduler's state: nodes as arrays, the fabric as ranges, workloads, the ledger, and the Decision.

Imported by: `cli`, `daemon`, `kube`, `observability`, `plugins`, `recording`, `recovery`, `runtime`, `scheduling`,
`simulation`.
"""
