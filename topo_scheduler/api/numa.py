"""NodeResourceTopology (``topology.node.k8s.io/v1alpha2``): what each NUMA node of a machine has.

The topology updater of Node Feature Discovery, or the resource topology exporter, writes one object for each node.
"""

from topo_scheduler.api.base import Base
from topo_scheduler.api.objects import ApiObject, Quantity


class NumaResource(Base):
    """``zones[].resources[]``. ``available`` is what the kubelet can still give to containers."""

    name: str = ""
    capacity: Quantity | None = None
    allocatable: Quantity | None = None
    available: Quantity | None = None


class TopologyZone(Base):
    """``zones[]``. ``type`` is ``Node`` for a NUMA node, whose name ends with its number."""

    name: str = ""
    type: str = ""
    resources: list[NumaResource] | None = None


class TopologyAttribute(Base):
    """``attributes[]``: settings of the kubelet."""

    name: str = ""
    value: str = ""


class NodeResourceTopology(ApiObject):
    """A NodeResourceTopology; its name is that of the node. ``topology_policies`` is older than ``attributes``."""

    topology_policies: list[str] | None = None
    zones: list[TopologyZone] | None = None
    attributes: list[TopologyAttribute] | None = None
