"""Connections, credentials, errors, retries, and the right to write. It knows no particular kind.

Imported by: `cli`, `daemon`, `kube.leading`, `kube.reading`, `kube.writing`, `recording`, `recovery`, `runtime`,
`simulation`.
"""
