"""Configuration for other schedulers that use the same nodes."""

from typing import Annotated

from pydantic import Field

from topo_scheduler.api.models import Model, Seconds


class Contention(Model):
    """Room for other schedulers that bind pods to the same nodes."""

    reserved_pods_per_node: Annotated[int, Field(ge=0, le=100)] = 2
    """Number of additional pods of other schedulers for which each node with such pods keeps room, while these
    schedulers place pods. With 0, kubelets of nearly full nodes refuse more pods."""
    max_wait: Seconds = 60.0
    """How long a workload that fits nowhere else stays pending before it may use this room."""
