"""A topology-aware, gang-aware GPU scheduler for Kubernetes. This file has the version, and imports nothing.

Imported by: `cli`, `kube`, `recording`, `simulation`. Each may, as all packages are below this one.
"""

__version__ = "0.1.0"
