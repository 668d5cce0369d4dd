"""How the waiting of large gangs ends: reservations, and moves that would make room."""

from typing import Annotated

from pydantic import Field

from topo_scheduler.api.models import Model, Seconds, Share


class ReservationSpec(Model):
    """Whether nodes are held for workloads that wait for more room than becomes free at once."""

    enabled: bool = True
    """Hold nodes for the first in line of each priority; who ends in time uses them meanwhile."""
    gangs: Annotated[int, Field(ge=1, le=64)] = 1
    """For how many workloads of one priority nodes are held at a time."""
    after: Seconds = 30.0
    """How long a workload has waited before nodes are held for it, where it can be told when they will be free."""
    after_without_estimates: Seconds = 600.0
    """The same where that can't be told: what becomes free of these nodes then stays idle until there is enough."""
    most: Share = 1.0
    """Most of the cluster's GPUs that all reservations together may hold, as a share; who asks for more gets none."""
    most_per_namespace: Share = 0.5
    """The same for the reservations of one namespace, while pods of other namespaces hold GPUs."""
    expires: Seconds = 21_600.0
    """How long after its expected start, or after the last pod that it waits for has ended, a reservation is given up
    if its workload still has no place. For as long it gets no other. While other namespaces hold GPUs, pods of its own
    namespace that end do not count."""
    bare_gangs: bool = False
    """Whether nodes are held for gangs that only annotations of bare pods make: without a controller or a PodGroup."""


class RepairSpec(Model):
    """Whether it is looked for pods whose move would make room for a gang."""

    enabled: bool = False
    """Tell which pods would have to move where. They are moved with ``recovery.defragmentation`` only, which finds them
    in the same way, whether this is set or not."""
    after: Seconds = 60.0
    """How long a gang has waited before it is looked for."""
    most_moves: Annotated[int, Field(ge=1, le=64)] = 8
    """Most pods of one plan."""
