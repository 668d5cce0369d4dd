"""Fragmentation: the largest gang that would fit now, by level of the fabric and GPU model, and stranded GPUs.

Two sizes of member are looked at. A *whole node* takes all GPUs of a node of which none is used. The *typical member*
has as many GPUs as the pods have that hold most of the cluster's GPUs together, at most a node of the model; where
nothing runs, it is a whole node. A GPU is *stranded* when it is free, and neither a whole node nor a typical member can
have it: what is left over on a node, and all that is free where there is no CPU, memory or place for a pod any more.

What a level holds is the most that one of its domains has free, without the configured limits per leaf. GPUs of nodes
that are not ready, or cordoned, are neither free nor stranded.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from topo_scheduler.scheduling.world import World
from topo_scheduler.state.accelerators import Accelerators
from topo_scheduler.state.fabric import Layout, Path
from topo_scheduler.state.nodes import UNKNOWN, Int64
from topo_scheduler.state.resources import CPU, GPU, MEMORY, PODS


@dataclass(frozen=True, slots=True)
class LargestGang:
    """The most that one domain of a level takes of one GPU model.

    ``model`` empty for nodes that tell none; ``whole_nodes`` and ``whole_gpus`` as members of whole nodes, in domain
    ``whole_path``; ``members`` and ``gpus`` as typical ones of ``typical`` GPUs each, in domain ``path``.
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
    """Of the whole cluster. ``gangs`` the outermost level first; ``free`` and ``stranded`` GPUs by model."""

    gangs: tuple[LargestGang, ...]
    free: Mapping[str, int]
    stranded: Mapping[str, int]


def fragmentation(world: World) -> Fragmentation:
    """Measure the fragmentation of a cluster as it is."""
    layout, nodes = world.layout, world.nodes
    order = layout.order
    capacity = nodes.allocatable[order, GPU]
    held = world.held()[order]
    used = held[:, GPU]
    spare = nodes.allocatable[order] - held
    usable = nodes.ready[order] & ~nodes.unschedulable[order]
    free = np.where(usable, np.maximum(0, capacity - used), 0)
    open_ = (spare[:, CPU] > 0) & (spare[:, MEMORY] > 0) & (spare[:, PODS] > 0)
    takes = np.where(open_, free, 0)
    whole = (used == 0) & (takes > 0)
    gangs: list[LargestGang] = []
    free_of: dict[str, int] = {}
    stranded: dict[str, int] = {}
    models = nodes.model[order]
    for model in np.unique(models[capacity > 0]).tolist():
        here = models == model
        name = "" if model == UNKNOWN else nodes.models[model]
        typical = typical_member(world, int(capacity[here].max()))
        members = np.where(here, takes // typical, 0)
        taken = np.where(whole, takes, members * typical)
        free_of[name] = int(free[here].sum())
        stranded[name] = int((free - taken)[here].sum())
        gangs += _by_level(layout, name, typical, np.where(here & whole, takes, 0), here & whole, members)
        if (tree := layout.accelerators) is not None:
            taking = np.where(here & whole, takes, 0), here & whole, members
            gangs += [_in_second_tree(layout, tree, level, name, typical, *taking) for level in tree.levels]
    return Fragmentation(tuple(gangs), free_of, stranded)


def typical_member(world: World, most: int) -> int:
    """Return the GPUs of a typical member on nodes that have so many at most."""
    sizes = {gpus: gpus * pods for gpus, pods in world.ledger.sizes.items() if gpus > 0 and pods > 0}
    return min(most, max(sizes, key=lambda gpus: (sizes[gpus], gpus))) if sizes else most


def _by_level(
    layout: Layout, model: str, typical: int, whole: Int64, nodes: npt.NDArray[np.bool_], members: Int64
) -> list[LargestGang]:
    found = []
    for depth in range(layout.depth + 1):
        starts = layout.offsets[layout.domains[depth][:-1]]
        gpus, count = np.add.reduceat(whole, starts), np.add.reduceat(nodes.astype(np.int64), starts)
        typicals = np.add.reduceat(members, starts)
        at, best = int(gpus.argmax()), int(typicals.argmax())
        found.append(
            LargestGang(
                level=layout.levels[depth - 1] if depth else "cluster",
                model=model,
                whole_nodes=int(count[at]),
                whole_gpus=int(gpus[at]),
                whole_path=layout.domain_path(depth, at),
                typical=typical,
                members=int(typicals[best]),
                gpus=int(typicals[best]) * typical,
                path=layout.domain_path(depth, best),
            )
        )
    return found


def _in_second_tree(
    layout: Layout,
    tree: Accelerators,
    level: str,
    model: str,
    typical: int,
    whole: Int64,
    nodes: npt.NDArray[np.bool_],
    members: Int64,
) -> LargestGang:
    of_row = tree.of_row(level)[layout.order]
    told = of_row >= 0

    def sums(values: npt.NDArray[np.generic]) -> Int64:
        counted = np.bincount(of_row[told], weights=values[told], minlength=len(tree.paths(level)))
        return counted.astype(np.int64)

    gpus, count, typicals = sums(whole), sums(nodes), sums(members)
    at, best = int(gpus.argmax()), int(typicals.argmax())
    return LargestGang(
        level=level,
        model=model,
        whole_nodes=int(count[at]),
        whole_gpus=int(gpus[at]),
        whole_path=tree.paths(level)[at],
        typical=typical,
        members=int(typicals[best]),
        gpus=int(typicals[best]) * typical,
        path=tree.paths(level)[best],
    )
