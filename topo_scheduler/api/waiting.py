"""Configuration for large pending gangs: reservations, and the search for moves that would make room."""

from typing import Annotated

from pydantic import Field

from topo_scheduler.api.models import Model, Seconds


class ReservationSpec(Model):
    """Reservations of nodes for pending workloads that need more capacity than becomes free at once."""

    enabled: bool = True
    """Whether to reserve nodes for the first pending workloads of each priority. Pods that end in time may use these
    nodes in the meantime (backfill)."""
    gangs: Annotated[int, Field(ge=1, le=64)] = 1
    """Maximum number of workloads of one priority that have a reservation at the same time."""
    after: Seconds = 30.0
    """How long a workload must be pending before it gets a reservation, if it can be estimated when the nodes become
    free."""
    after_without_estimates: Seconds = 600.0
    """How long a workload must be pending if that can't be estimated. Capacity of these nodes that becomes free then
    stays idle until there is enough."""
    max_gpu_share: Annotated[float, Field(ge=0, le=1, alias="maxGPUShare")] = 1.0
    """Maximum share of the cluster's GPUs that all reservations together may hold. A workload that needs more gets no
    reservation."""
    max_gpu_share_per_namespace: Annotated[float, Field(ge=0, le=1, alias="maxGPUSharePerNamespace")] = 0.5
    """Maximum share for the reservations of one namespace, while pods of other namespaces hold GPUs or shares of
    GPUs."""
    expires: Seconds = 21_600.0
    """How long a reservation lasts after its expected start, or after the last pod that it waits for ended. If its
    workload is still pending then, the scheduler drops the reservation. The workload gets no other for the same
    time. While other namespaces hold GPUs, ended pods of its own namespace and ended backfill do not count. Then
    the expected start counts at most this far ahead of the last end that does."""
    bare_gangs: bool = False
    """Whether gangs of bare pods get reservations: gangs defined by annotations only, without a controller or a
    PodGroup."""


class RepairSpec(Model):
    """Search for moves that would free room for a pending gang."""

    enabled: bool = False
    """Whether to report which pods would have to move, and where. Only ``recovery.defragmentation`` moves pods; it runs
    the same search, whether this field is set or not."""
    after: Seconds = 60.0
    """How long a gang must be pending before the search starts."""
    max_moves: Annotated[int, Field(ge=1, le=64)] = 8
    """Maximum pods to move in one plan."""
