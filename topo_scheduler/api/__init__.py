"""Names and values that users write and read: annotations, labels, configuration, Kubernetes objects, reasons.

Imported by: `cli`, `daemon`, `kube`, `observability`, `plugins`, `recording`, `recovery`, `runtime`, `scheduling`,
`simulation`, `state`.
"""
