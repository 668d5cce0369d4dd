"""Warnings about settings that do not fit the fabric: levels without nodes, and limits below the size of a leaf."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from topo_scheduler.api.annotations import Enforcement
from topo_scheduler.api.config import Configuration
from topo_scheduler.api.labels import UNLABELLED
from topo_scheduler.api.process import Level
from topo_scheduler.state.nodes.node_table import Int64, NodeTable
from topo_scheduler.state.nodes.resources import GPU
from topo_scheduler.state.topology.fabric import Layout

Bool = npt.NDArray[np.bool_]


class FabricWarnings:
    """Warnings about settings that do not fit the fabric of the node labels, once for each configuration."""

    def __init__(self, config: Configuration) -> None:
        self._config = config
        self._levels: tuple[str, ...] = ()
        self._limits: dict[str, int] = _limits_of(config)
        self._generation = -1

    @property
    def watches(self) -> bool:
        """Whether the configuration has settings that may not fit a fabric."""
        return bool(self._limits or self._config.topology.spec.placement_rules or _own_levels(self._config))

    def look(self, layout: Layout, nodes: NodeTable) -> list[str]:
        """Return new warnings about a fabric. Costs next to nothing if the fabric is unchanged."""
        out: list[str] = []
        if layout.every_level != self._levels:
            self._levels = layout.every_level
            out += [*missing_levels(self._config, nodes), *unknown_levels(self._config, self._levels)]
        if self._limits and layout.generation != self._generation:
            self._generation = layout.generation
            warnings = low_limits(self._limits, layout.network, nodes)
            self._limits = {name: limit for name, limit in self._limits.items() if name not in warnings}
            out += warnings.values()
        return out


def _limits_of(config: Configuration) -> dict[str, int]:
    constraints = config.topology.spec.topology_constraints
    named = (("maxNodesPerLeaf", constraints.max_nodes_per_leaf), ("maxGPUsPerLeaf", constraints.max_gpus_per_leaf))
    return {name: limit for name, limit in named if limit is not None}


def fabric_problems(config: Configuration, layout: Layout, nodes: NodeTable) -> list[str]:
    """Return all warnings: configured levels that no node is in, placement rules for such levels, and low limits."""
    low = low_limits(_limits_of(config), layout.network, nodes)
    return [*missing_levels(config, nodes), *unknown_levels(config, layout.every_level), *low.values()]


def leaves_above_limits(config: Configuration, layout: Layout, nodes: NodeTable) -> dict[str, int]:
    """Return for each configured limit per leaf how many leaves exceed it."""
    limits = _limits_of(config)
    sizes = _sizes_of_leaves(limits, layout.network, nodes)
    return {name: int((sizes[name] > limit).sum()) for name, limit in limits.items()}


def _sizes_of_leaves(limits: Iterable[str], layout: Layout, nodes: NodeTable) -> dict[str, Int64]:
    """Return for each limit the size of each leaf (int64[leaves]), in nodes or in GPUs."""
    rows = np.repeat(np.arange(len(layout.paths)), np.diff(layout.offsets))
    gpus = nodes.allocatable[layout.order, GPU]
    weights = {name: gpus if name == "maxGPUsPerLeaf" else None for name in limits}
    sizes = {name: np.bincount(rows, each, len(layout.paths)).astype(np.int64) for name, each in weights.items()}
    # Nodes without a label for their leaf share one path, which is not a leaf.
    return {name: np.where(_labelled(layout), each, 0) for name, each in sizes.items()}


def _labelled(layout: Layout) -> Bool:
    return np.fromiter((path[-1] != UNLABELLED for path in layout.paths), np.bool_, len(layout.paths))


def low_limits(limits: Mapping[str, int], layout: Layout, nodes: NodeTable) -> dict[str, str]:
    """Return a warning for each limit per leaf that some leaves exceed, by name of the limit."""
    out: dict[str, str] = {}
    if not len(layout.paths):
        return out
    for name, sizes in _sizes_of_leaves(limits, layout, nodes).items():
        limit = limits[name]
        if above := int((sizes > limit).sum()):
            largest = int(sizes.argmax())
            leaf = "/".join(layout.paths[largest])
            resource = "GPUs" if name == "maxGPUsPerLeaf" else "nodes"
            out[name] = (
                f"spec.topologyConstraints.{name} is {limit}, but {above} of {int(_labelled(layout).sum())}"
                f" leaves have more {resource} ({leaf} has {sizes[largest]}): gangs that fit into"
                f" one leaf are spread over several leaves; remove {name}, or set it to the size of a leaf"
            )
    return out


def _own_levels(config: Configuration) -> dict[str, Level]:
    """Return the levels that the configuration defines, by its field and their name.

    Simulated policies without topology have a level without labels, which no file defines.
    """
    topology = config.scheduler.topology
    return {
        f"{field}: {level.name}": level
        for field, levels in (("levels", topology.levels), ("accelerators", topology.accelerators or ()))
        for level in levels
        if level.labels
    }


def missing_levels(config: Configuration, nodes: NodeTable) -> list[str]:
    """Return warnings about levels that the configuration defines and no node is in; most often a key is misspelt."""
    rails, carried = config.scheduler.topology.rails, set(nodes.carried_keys())
    return [
        f"SchedulerConfig: topology.{where}: no node has the label {' or '.join(level.labels)}, so this level does not"
        " exist; correct the key, or label the nodes"
        for where, level in _own_levels(config).items()
        if carried.isdisjoint(level.labels) and (level.name != rails.level or carried.isdisjoint(rails.labels))
    ]


def unknown_levels(config: Configuration, levels: Sequence[str]) -> list[str]:
    """Return warnings about placement rules for levels that no node has."""
    return [
        f"TopologySchedulerConfig: spec.placementRules: {rule.name}: no node has a label for a level called"
        f" {rule.level}; there are {', '.join(levels)}. "
        + ("Its gangs stay pending" if rule.enforcement is Enforcement.REQUIRED else "It is ignored")
        for rule in config.topology.spec.placement_rules
        if rule.level is not None and rule.level not in levels
    ]
