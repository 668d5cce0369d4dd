"""A topology-aware, gang-aware GPU scheduler for Kubernetes."""

__version__ = "0.1.0"
