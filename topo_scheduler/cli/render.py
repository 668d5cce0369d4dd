"""The fabric on a terminal: spines, leaves, nodes and their GPUs, with the pods that hold them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text
from rich.tree import Tree

from topo_scheduler.api.fractions import WHOLE_GPU
from topo_scheduler.api.text import counted, lacking_labels
from topo_scheduler.cli import device_rows, gpu_links
from topo_scheduler.cli.common import visible
from topo_scheduler.cli.views import DomainView, NodeView, Tenant
from topo_scheduler.scheduling.surveying.link_survey import LinkState
from topo_scheduler.state.devices.device_survey import DeviceState
from topo_scheduler.state.topology.wiring import readable

PIPE_COLUMNS: Final = 200
"""Columns of output that does not go to a terminal."""
MAX_GPUS: Final = 16
"""Maximum GPUs of a node that are drawn one by one; a node with more gets numbers only."""
COLOURS: Final = ("green", "cyan", "magenta", "yellow", "blue", "bright_red", "bright_green", "bright_cyan")


class VisibleConsole(Console):
    """A console that interprets no markup in texts, and prints escape codes for invisible characters."""

    def __init__(self, *, width: int | None = None, stderr: bool = False) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, width=width, stderr=stderr)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments to print."""
        for piece in super().render(renderable, options):
            if piece.control or piece.text.isprintable():
                yield piece
            else:
                yield Segment(visible(piece.text), piece.style)


def console() -> Console:
    """Return a console on standard output."""
    terminal = VisibleConsole()
    # Output to a pipe must not be cut off at a terminal's width.
    return terminal if terminal.is_terminal else VisibleConsole(width=PIPE_COLUMNS)


def fabric(
    root: DomainView,
    *,
    wide: bool = False,
    tenants: bool = False,
    devices: bool = False,
    colours: "Palette | None" = None,
) -> Tree:
    """Return the tree of a whole fabric.

    Args:
        root: the fabric.
        wide: whether to show further facts about nodes.
        tenants: whether to show the pods that hold GPUs.
        devices: whether to show links and devices of ResourceSlices below nodes; links that are alike only if ``wide``.
        colours: assigns colours to pods; by default all pods of a namespace share one.
    """
    palette = colours or Palette()
    top = Tree(_domain_line(root, "cluster", wide), guide_style="dim")
    _grow(top, root, _Shown(wide, tenants, devices), palette)
    return top


class Palette:
    """Gives each group of pods a colour; by default a group is a namespace."""

    def __init__(self, groups: dict[tuple[str, str], str] | None = None) -> None:
        self._groups = groups or {}
        self._given: dict[str, str] = {}

    def colour(self, tenant: Tenant) -> str:
        """Return the colour of a pod."""
        return self.of_pod(tenant.namespace, tenant.name)

    def of_pod(self, namespace: str, name: str) -> str:
        """Return the colour of a pod from its namespace and name."""
        group = self._groups.get((namespace, name), namespace)
        return self._given.setdefault(group, COLOURS[len(self._given) % len(COLOURS)])


@dataclass(frozen=True, slots=True)
class _Shown:
    """What is shown of nodes, as `fabric` has it."""

    wide: bool
    tenants: bool
    devices: bool


def _grow(branch: Tree, view: DomainView, shown: _Shown, palette: Palette) -> None:
    for inner in view.domains:
        _grow(branch.add(_domain_line(inner, inner.domain.level, shown.wide)), inner, shown, palette)
    for node in view.nodes:
        leaf = branch.add(_node_line(node, shown.wide, shown.tenants, palette))
        if shown.devices:
            links = gpu_links.rows(node, palette.of_pod, every=shown.wide)
            for row in (*links, *device_rows.rows(node.devices, palette.of_pod)):
                leaf.add(row)


def _domain_line(view: DomainView, level: str, wide: bool) -> Text:
    domain = view.domain
    nodes = list(view.all_nodes())
    line = Text()
    line.append(level if level == "cluster" else domain.name, style="bold")
    if level not in ("cluster", domain.name.rsplit("-", 1)[0]):
        line.append(f" ({level})", style="dim")
    if len(view.switches) > 1:
        line.append(f" unit on {len(view.switches)} rails", style="dim")
    line.append(
        f"  {domain.free} of {domain.capacity} GPUs free, {domain.utilization:.0%} used,"
        f" fragmentation {domain.fragmentation:.2f}, {counted(len(nodes), 'node')}"
    )
    if devices := sum(len(node.whole_devices) for node in nodes):
        line.append(f", {sum(node.free_devices for node in nodes)} of {devices} devices free")
    if view.uplink is not None and (wide or view.uplink.reserved or view.uplink.capacity is not None):
        line.append(f", {_uplink(view.uplink)}")
    unavailable = sum(bool(node.state) for node in nodes)
    if unavailable:
        line.append(f", {unavailable} not available", style="yellow")
    models = sorted({node.model for node in nodes if node.model})
    if not view.domains and len(models) == 1:
        line.append(f"  {models[0]}", style="dim")
    return line


def _uplink(link: LinkState) -> str:
    if link.capacity is None:
        reserved = f"{readable(link.reserved)} Gbit/s of it" if link.reserved else "none of it"
        return f"uplink of unknown capacity, {reserved} reserved"
    return f"{readable(link.reserved)} of {readable(link.capacity)} Gbit/s of its uplink reserved"


def _node_line(node: NodeView, wide: bool, tenants: bool, palette: Palette) -> Text:
    line = Text()
    line.append(f"{node.name:<12} ", style="red" if node.state else "")
    if node.devices and (node.backed or not node.capacity):
        line.append_text(_devices(node))
    else:
        if node.capacity and node.capacity <= MAX_GPUS:
            line.append_text(_gpus(node, palette, tenants))
            line.append("  ")
        line.append(f"{node.free} of {node.capacity} free")
    if node.missing:
        line.append(f"  pods hold {counted(node.missing, 'GPU')} that it does not offer", style="red")
    if node.state:
        line.append(f"  {node.state}", style="red")
    if wide:
        bandwidth = f"{readable(node.bandwidth)}Gb" if node.bandwidth else "bandwidth unknown"
        bandwidth += f", {readable(node.reserved)}Gb of it reserved" if node.reserved else ""
        line.append(f"  {node.model or 'model unknown'}  {bandwidth}  {counted(node.pods, 'pod')}", style="dim")
    if tenants and node.tenants:
        line.append("  ")
        line.append_text(Text(", ").join(Text(_say(tenant), style=palette.colour(tenant)) for tenant in node.tenants))
    return line


def _say(tenant: Tenant) -> str:
    name = tenant.name if tenant.namespace == "default" else f"{tenant.namespace}/{tenant.name}"
    if tenant.share:
        return f"{name} x{tenant.share / WHOLE_GPU:g}"
    return f"{name} x{tenant.gpus}" if tenant.gpus > 1 else name


def _gpus(node: NodeView, palette: Palette, tenants: bool) -> Text:
    """Return one square for each GPU, in the colour of its pod."""
    squares = Text()
    for tenant in node.tenants:
        squares.append("■" * tenant.gpus, style=palette.colour(tenant) if tenants else "green")
    squares.append("■" * (min(node.used, node.capacity) - len(squares)), style="green")  # GPUs that pods share
    drawn = min(len(squares), node.capacity)
    squares.append("□" * (node.capacity - drawn), style="red" if node.state else "dim")
    return squares


def _devices(node: NodeView) -> Text:
    """Return one square for each device of a node whose GPUs exist only in ResourceSlices, and the number of free."""
    line, devices = Text(), node.whole_devices
    if len(devices) <= MAX_GPUS:
        used = sum(bool(view.device.claims) or view.device.state is DeviceState.BLOCKED for view in devices)
        line.append("■" * used, style="green")
        line.append("□" * (len(devices) - used), style="red" if node.state else "dim")
        line.append("  ")
    line.append(f"{node.free_devices} of {counted(len(devices), 'device')} free")
    return line


def unlabelled_gpus(root: DomainView) -> bool:
    """Return whether a node with GPUs lacks labels of its position."""
    return any(node.capacity and not node.labelled for node in root.all_nodes())


def unlabelled_note(root: DomainView) -> str:
    """Return a sentence on nodes without labels of their position, empty if there are none."""
    return lacking_labels([node.name for node in root.all_nodes() if not node.labelled], len(root.domain.nodes))


def as_json(view: DomainView) -> dict[str, Any]:
    """Return a domain with its inner domains and nodes, for JSON output."""
    domain = view.domain
    return {
        "name": domain.name,
        "type": domain.level,
        "path": "/".join(domain.path),
        "gpus": {"capacity": domain.capacity, "used": domain.used, "free": domain.free, "onEmptyNodes": domain.whole},
        "utilization": round(domain.utilization, 4),
        "fragmentation": round(domain.fragmentation, 4),
        **(
            {"uplink": {"capacityMbit": view.uplink.capacity, "reservedMbit": view.uplink.reserved}}
            if view.uplink is not None
            else {}
        ),
        "connected": ["/".join(path) for path in domain.connected],
        **({"rails": list(view.switches)} if len(view.switches) > 1 else {}),
        **({"domains": [as_json(inner) for inner in view.domains]} if view.domains else {}),
        **({"nodes": [_node_json(node) for node in view.nodes]} if view.nodes else {}),
    }


def _node_json(node: NodeView) -> dict[str, Any]:
    return {
        "name": node.name,
        "ready": node.ready,
        "schedulable": node.schedulable,
        "labelled": node.labelled,
        "gpuModel": node.model,
        "bandwidthMbit": node.bandwidth or None,
        "reservedBandwidthMbit": node.reserved,
        "gpus": {"capacity": node.capacity, "used": node.used, "free": node.free},
        "pods": [
            {
                "namespace": tenant.namespace,
                "name": tenant.name,
                "gpus": tenant.gpus,
                **({"gpuFraction": tenant.share / WHOLE_GPU} if tenant.share else {}),
                "schedulerName": tenant.scheduler,
                **({"gpuIndexes": list(tenant.gpu_indexes)} if tenant.gpu_indexes else {}),
            }
            for tenant in node.tenants
        ],
        **gpu_links.as_json(node),
        **device_rows.as_json(node.devices),
    }


def problems(messages: Sequence[str], limit: int = 10) -> list[str]:
    """Return the first messages on what could not be read, with the number of the others."""
    omitted = len(messages) - limit
    return [*messages[:limit], *([f"and {omitted} more of this kind"] if omitted > 0 else [])]
