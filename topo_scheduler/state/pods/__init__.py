"""Pods as rules see them: classes, selectors, constraints, workloads, PodGroups, disruption budgets.

Imported by: `cli`, `kube`, `plugins`, `recording`, `recovery`, `runtime`, `scheduling`, `simulation`, `state.ledger`,
`state.storage`.
"""
