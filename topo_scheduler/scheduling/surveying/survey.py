"""The fabric for the CLI and metrics: every domain with its GPUs and the free ones."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from topo_scheduler.scheduling.world import World
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.nodes.resources import GPU
from topo_scheduler.state.topology.fabric import Path


@dataclass(frozen=True, slots=True)
class SurveyedDomain:
    """One domain. GPUs of a node that is not ready or cordoned are not free.

    Attributes:
        level: level of the domain; ``cluster`` for the whole cluster.
        path: names of the domains from the outermost level down to this one.
        capacity: allocatable GPUs.
        used: GPUs that pods hold.
        missing: of these, GPUs that nodes do not offer any more, as after a device plugin took them back.
        free: free GPUs.
        whole: free GPUs on nodes of which no GPU is used.
        nodes: names of the nodes in order.
        connected: paths of the adjacent domains under the same parent.
    """

    level: str
    path: Path
    capacity: int
    used: int
    free: int
    whole: int
    nodes: tuple[str, ...]
    connected: tuple[Path, ...]
    missing: int = 0

    @property
    def name(self) -> str:
        """Last part of the path; ``cluster`` for the whole cluster."""
        return self.path[-1] if self.path else "cluster"

    @property
    def utilization(self) -> float:
        """Share of the GPUs that nodes offer which are in use, 0 where there are none."""
        return (self.used - self.missing) / self.capacity if self.capacity else 0.0

    @property
    def fragmentation(self) -> float:
        """1 - GPUs of the largest gang of whole nodes that fits / free GPUs; 0 without free GPUs."""
        return 1 - self.whole / self.free if self.free else 0.0


def survey(world: World) -> Iterator[SurveyedDomain]:
    """Yield every domain, the whole cluster first, then level by level in order."""
    layout = world.layout
    for depth in range(layout.depth + 1):
        level, ranges = layout.levels[depth - 1] if depth else "cluster", layout.offsets[layout.domains[depth]]
        paths = [layout.domain_path(depth, index) for index in range(len(ranges) - 1)]
        yield from _surveyed(world, level, paths, layout.order, ranges, adjacent=True)


def survey_accelerators(world: World) -> Iterator[SurveyedDomain]:
    """Yield every accelerator domain, level by level in order; none if no node has a label of one.

    Paths are those of the second tree. ``nodes`` are in the order of the network.
    """
    layout = world.layout
    tree = layout.accelerators
    for level in tree.levels if tree is not None else ():
        assert tree is not None
        of_row, paths = tree.of_row(level), tree.paths(level)
        rows = layout.order[of_row[layout.order] >= 0]
        rows = rows[np.argsort(of_row[rows], kind="stable")]
        ranges = np.searchsorted(of_row[rows], np.arange(len(paths) + 1))
        yield from _surveyed(world, level, paths, rows, ranges, adjacent=False)


def _surveyed(
    world: World, level: str, paths: Sequence[Path], rows: Int64, ranges: Int64, *, adjacent: bool
) -> Iterator[SurveyedDomain]:
    """Yield the domains of one level.

    Args:
        world: the nodes.
        level: name of the level.
        paths: path of each domain.
        rows: int64[n], rows of the nodes in the order of the domains.
        ranges: int64[domains + 1], ranges of ``rows``.
        adjacent: whether neighbours under the same parent are connected.
    """
    nodes = world.nodes
    capacity, used = nodes.allocatable[rows, GPU], world.held()[rows, GPU]
    usable = nodes.ready[rows] & ~nodes.unschedulable[rows]
    free = np.where(usable, np.maximum(0, capacity - used), 0)
    amounts = (capacity, used, free, np.where(used == 0, free, 0), np.maximum(0, used - capacity))
    sums = [_sums(values, ranges) for values in amounts]
    for index, path in enumerate(paths):
        neighbours = [*paths[max(0, index - 1) : index], *paths[index + 1 : index + 2]] if adjacent else []
        yield SurveyedDomain(
            level=level,
            path=path,
            capacity=int(sums[0][index]),
            used=int(sums[1][index]),
            free=int(sums[2][index]),
            whole=int(sums[3][index]),
            nodes=tuple(nodes.names[row] for row in rows[ranges[index] : ranges[index + 1]].tolist()),
            connected=tuple(other for other in neighbours if other[:-1] == path[:-1]),
            missing=int(sums[4][index]),
        )


def _sums(values: Int64, ranges: Int64) -> Int64:
    return np.add.reduceat(values, ranges[:-1]) if len(values) else np.zeros(max(0, len(ranges) - 1), np.int64)
