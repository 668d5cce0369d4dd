"""What is configured about other schedulers that use the same nodes."""

from typing import Annotated

from pydantic import Field

from topo_scheduler.api.models import Model, Seconds


class Contention(Model):
    """Care for other schedulers that bind pods to the same nodes."""

    pods: Annotated[int, Field(ge=0, le=100)] = 2
    """While others are placing pods, room for so many more of theirs is left on each node where pods of theirs are.
    0 leaves none: more pods are then refused by kubelets where nodes are nearly full."""
    patience: Seconds = 60.0
    """How long a workload waits that finds no other room, before it takes what is left for others."""
