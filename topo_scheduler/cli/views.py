"""The fabric as a tree of plain values, which commands show as text or JSON."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from topo_scheduler.api.links import NODE
from topo_scheduler.api.objects import Pod
from topo_scheduler.cli.device_views import HeldDevice, devices_by_node, physical
from topo_scheduler.scheduling.surveying.link_survey import LinkState, survey_links
from topo_scheduler.scheduling.surveying.survey import SurveyedDomain, survey
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.devices.node_hardware import NodeGpus
from topo_scheduler.state.nodes.node_table import UNKNOWN
from topo_scheduler.state.nodes.resources import GPU, GPU_SHARE, amount_in
from topo_scheduler.state.topology.fabric import Path


@dataclass(frozen=True, slots=True)
class Tenant:
    """A pod that holds GPUs of a node."""

    namespace: str
    name: str
    gpus: int
    scheduler: str
    gpu_indexes: tuple[int, ...] = ()
    """Which GPUs of the node it has, as far as known."""
    share: int = 0
    """Thousandths of one GPU that it holds instead of whole ones."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node. ``bandwidth`` in Mbit/s, 0 if unknown; ``reserved`` is the part that gangs reserved."""

    name: str
    ready: bool
    schedulable: bool
    model: str
    bandwidth: int
    capacity: int
    used: int
    pods: int
    labelled: bool
    reserved: int = 0
    tenants: tuple[Tenant, ...] = ()
    devices: tuple[HeldDevice, ...] = ()
    """Devices of ResourceSlices."""
    hardware: NodeGpus | None = None
    """What is known of its GPUs and their links."""
    backed: bool = False
    """Whether its GPUs are devices of ResourceSlices, for extended resources."""
    chosen_by_index: bool = False
    """Whether the scheduler chooses the GPUs of pods; otherwise their indexes are predictions."""

    @property
    def whole_devices(self) -> list[HeldDevice]:
        """Devices that are no partitions of others."""
        return physical(self.devices)

    @property
    def free_devices(self) -> int:
        """Whole devices that claims may have: none on a node that is not ready or cordoned."""
        return 0 if self.state else sum(view.free for view in self.whole_devices)

    @property
    def free(self) -> int:
        """GPUs that pods may use: none on a node that is not ready or cordoned."""
        return 0 if self.state else max(0, self.capacity - self.used)

    @property
    def missing(self) -> int:
        """GPUs that pods hold and the node does not offer any more."""
        return max(0, self.used - self.capacity)

    @property
    def state(self) -> str:
        """Why no pods may be placed on it, or an empty string."""
        if not self.ready:
            return "not ready"
        return "" if self.schedulable else "cordoned"


@dataclass(frozen=True, slots=True)
class DomainView:
    """A domain with its inner domains; it has ``nodes`` only at the innermost level. The cluster has no ``uplink``.

    ``switches`` are the leaf switches of its nodes' NICs, if it is a scalable unit of a rail-optimised fabric.
    """

    domain: SurveyedDomain
    uplink: LinkState | None = None
    domains: list["DomainView"] = field(default_factory=list)
    nodes: list[NodeView] = field(default_factory=list)
    switches: tuple[str, ...] = ()

    def all_nodes(self) -> Iterator[NodeView]:
        """Yield all nodes of the domain."""
        yield from self.nodes
        for inner in self.domains:
            yield from inner.all_nodes()


def tree(world: World, pods: list[Pod]) -> DomainView | None:
    """Return the whole fabric, None without nodes."""
    if not len(world.nodes):
        return None
    tenants = _tenants(world, pods)
    devices = devices_by_node(world)
    unlabelled = frozenset(world.fabric.unlabelled())
    views: dict[Path, DomainView] = {}
    depth = world.layout.depth
    rails = world.fabric.reader.rails
    rail_level = world.fabric.reader.names[rails.level]
    uplinks = {link.path: link for link in survey_links(world) if link.level != NODE}
    for domain in survey(world):
        switches = rails.leaves(domain.name) if domain.level == rail_level else ()
        view = views[domain.path] = DomainView(domain, uplinks.get(domain.path), switches=switches)
        if domain.path:
            views[domain.path[:-1]].domains.append(view)
        if len(domain.path) == depth:
            view.nodes.extend(_node(world, name, tenants, unlabelled, devices) for name in domain.nodes)
    return views[()]


def _tenants(world: World, pods: list[Pod]) -> dict[str, list[Tenant]]:
    by_node: dict[str, list[Tenant]] = {}
    for pod in pods:
        entry = world.ledger.get(pod.metadata.uid)
        if entry is None:
            continue
        gpus, share = amount_in(entry.amounts, GPU), amount_in(entry.amounts, GPU_SHARE)
        if gpus or share:
            metadata = pod.metadata
            tenant = Tenant(
                metadata.namespace,
                metadata.name,
                gpus,
                pod.spec.scheduler_name,
                entry.devices,
                0 if gpus else share,
            )
            by_node.setdefault(entry.node, []).append(tenant)
    for tenants in by_node.values():
        tenants.sort(key=lambda tenant: (tenant.namespace, tenant.name))
    return by_node


def _node(
    world: World,
    name: str,
    tenants: dict[str, list[Tenant]],
    unlabelled: frozenset[str],
    devices: dict[str, list[HeldDevice]],
) -> NodeView:
    nodes = world.nodes
    row = nodes.row_of[name]
    bandwidth = int(nodes.bandwidth[row])
    model = int(nodes.model[row])
    return NodeView(
        name=name,
        ready=bool(nodes.ready[row]),
        schedulable=not bool(nodes.unschedulable[row]),
        model=nodes.models[model] if model != UNKNOWN else "",
        bandwidth=bandwidth if bandwidth != UNKNOWN else 0,
        capacity=int(nodes.allocatable[row, GPU]),
        used=int(nodes.requested[row, GPU]),
        pods=len(world.ledger.on_node(name)),
        labelled=name not in unlabelled,
        reserved=int(nodes.reserved_bandwidth[row]),
        tenants=tuple(tenants.get(name, ())),
        devices=tuple(devices.get(name, ())),
        hardware=world.hardware.of(row),
        backed=GPU in nodes.backed_columns.get(row, {}),
        chosen_by_index=bool(nodes.devices.count[row]),
    )
