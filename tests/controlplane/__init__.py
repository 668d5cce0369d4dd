"""A real Kubernetes control plane for the end-to-end tests, built from ordinary Go modules. See README.md."""

from .binaries import ControlPlaneUnavailable, build
from .client import ApiError
from .controlplane import ControlPlane, Usage

__all__ = ["ApiError", "ControlPlane", "ControlPlaneUnavailable", "Usage", "build"]
