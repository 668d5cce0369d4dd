"""Fragmentation: the largest gang that would fit now, by level of the fabric and GPU model, and stranded GPUs.

The survey considers members of two sizes. A *whole node* takes all GPUs of a node of which none is used. The *typical
member* has the GPU count of the pods that together hold most GPUs, but at most a node of the model. Without running
pods it is a whole node. A GPU is *stranded* if it is free, but neither a whole node nor a typical member can use it.
These are remainders on a node, and all free GPUs of a node without free CPU, memory or pod slots.

The value of a level is the most that one of its domains has free, without the configured limits per leaf. GPUs of nodes
that are not ready or cordoned are neither free nor stranded.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from topo_scheduler.scheduling.world import World
from topo_scheduler.state.nodes.node_table import UNKNOWN, Int64
from topo_scheduler.state.nodes.resources import CPU, GPU, MEMORY, PODS
from topo_scheduler.state.topology.accelerators import Accelerators
from topo_scheduler.state.topology.fabric import Layout, Path

Values = tuple[Int64, Int64, Int64]
"""By node in order of the fabric: free GPUs of whole nodes, 1 for a whole node, and typical members that fit."""


@dataclass(frozen=True, slots=True)
class LargestGang:
    """The largest gang on nodes of one GPU model that fits into one domain of a level.

    Attributes:
        level: the level.
        model: GPU model; empty for nodes without a model label.
        whole_nodes: members of the largest gang of whole nodes.
        whole_gpus: GPUs of that gang.
        whole_path: domain of that gang.
        typical: GPUs of a typical member.
        members: members of the largest gang of typical members.
        gpus: GPUs of that gang.
        path: domain of that gang.
    """

    level: str
    model: str
    whole_nodes: int
    whole_gpus: int
    whole_path: Path
    typical: int
    members: int
    gpus: int
    path: Path


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """Fragmentation of the whole cluster.

    Attributes:
        gangs: largest gangs by level and model, the outermost level first.
        free: free GPUs by model.
        stranded: stranded GPUs by model.
    """

    gangs: tuple[LargestGang, ...]
    free: Mapping[str, int]
    stranded: Mapping[str, int]


def fragmentation(world: World) -> Fragmentation:
    """Measure the current fragmentation of the cluster."""
    layout, nodes = world.layout, world.nodes
    order = layout.order
    capacity = nodes.allocatable[order, GPU]
    held = world.held()[order]
    used = held[:, GPU]
    spare = nodes.allocatable[order] - held
    usable = nodes.ready[order] & ~nodes.unschedulable[order]
    free = np.where(usable, np.maximum(0, capacity - used), 0)
    has_other_resources = (spare[:, CPU] > 0) & (spare[:, MEMORY] > 0) & (spare[:, PODS] > 0)
    usable_gpus = np.where(has_other_resources, free, 0)
    is_whole = (used == 0) & (usable_gpus > 0)
    gangs: list[LargestGang] = []
    free_of: dict[str, int] = {}
    stranded: dict[str, int] = {}
    models = nodes.model[order]
    for model in np.unique(models[capacity > 0]).tolist():
        of_model = models == model
        name = "" if model == UNKNOWN else nodes.models[model]
        typical = typical_member(world, int(capacity[of_model].max()))
        members = np.where(of_model, usable_gpus // typical, 0)
        allocated = np.where(is_whole, usable_gpus, members * typical)
        free_of[name] = int(free[of_model].sum())
        stranded[name] = int((free - allocated)[of_model].sum())
        values = np.where(of_model & is_whole, usable_gpus, 0), (of_model & is_whole).astype(np.int64), members
        gangs += _by_level(layout, name, typical, values)
        if (tree := layout.accelerators) is not None:
            gangs += [_in_second_tree(layout, tree, level, name, typical, values) for level in tree.levels]
    return Fragmentation(tuple(gangs), free_of, stranded)


def typical_member(world: World, max_gpus: int) -> int:
    """Return the GPUs of a typical member on nodes with at most ``max_gpus`` GPUs."""
    sizes = {gpus: gpus * pods for gpus, pods in world.ledger.sizes.items() if gpus > 0 and pods > 0}
    return min(max_gpus, max(sizes, key=lambda gpus: (sizes[gpus], gpus))) if sizes else max_gpus


def _by_level(layout: Layout, model: str, typical: int, values: Values) -> Iterator[LargestGang]:
    for depth in range(layout.depth + 1):
        starts = layout.offsets[layout.domains[depth][:-1]]
        sums = [np.add.reduceat(of_row, starts) for of_row in values]
        level = layout.levels[depth - 1] if depth else "cluster"
        yield _largest(level, model, typical, sums, partial(layout.domain_path, depth))


def _in_second_tree(
    layout: Layout, tree: Accelerators, level: str, model: str, typical: int, values: Values
) -> LargestGang:
    of_row, paths = tree.of_row(level)[layout.order], tree.paths(level)
    labelled = of_row >= 0
    sums = [
        np.bincount(of_row[labelled], weights=value[labelled], minlength=len(paths)).astype(np.int64)
        for value in values
    ]
    return _largest(level, model, typical, sums, paths.__getitem__)


def _largest(
    level: str, model: str, typical: int, sums: Sequence[Int64], path_of: Callable[[int], Path]
) -> LargestGang:
    """Return the largest gang of a level; ``sums``: by domain, as `Values`."""
    gpus, nodes, members = sums
    fullest, best = int(gpus.argmax()), int(members.argmax())
    return LargestGang(
        level=level,
        model=model,
        whole_nodes=int(nodes[fullest]),
        whole_gpus=int(gpus[fullest]),
        whole_path=path_of(fullest),
        typical=typical,
        members=int(members[best]),
        gpus=int(members[best]) * typical,
        path=path_of(best),
    )
