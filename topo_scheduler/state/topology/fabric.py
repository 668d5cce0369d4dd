"""The fabric: the position of each node in the network, kept as an order of rows.

Nodes are ordered by their path (outermost domain first), then by name; numbers in names compare as numbers. So every
domain of every level is one contiguous range, a level is an array of offsets, and neighbouring domains are
neighbouring ranges. A domain is identified by its whole path: two spines may both have a ``leaf-1``.

A node without a label for a level belongs to a child called ``unlabelled`` of its known parent.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from topo_scheduler.api.labels import LEVELS, UNLABELLED, network_families, zone_family
from topo_scheduler.api.links import uplink_label
from topo_scheduler.api.process import FabricSettings as FabricConfig
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.topology.accelerators import Accelerators, AcceleratorTree
from topo_scheduler.state.topology.label_conflicts import LabelConflicts, LeafLabels
from topo_scheduler.state.topology.natural_sort import NaturalKey, natural_key
from topo_scheduler.state.topology.rails import RailReader

Path = tuple[str, ...]


def _path_key(path: Path) -> tuple[tuple[bool, NaturalKey], ...]:
    # Unlabelled domains sort after all named ones.
    return tuple((name == UNLABELLED, natural_key(name)) for name in path)


class LevelReader:
    """Reads a node's position from its labels: one domain name for each level, None where no label has it."""

    def __init__(self, config: FabricConfig) -> None:
        self.names: tuple[str, ...] = tuple(level.name for level in config.levels) or LEVELS
        self._own = tuple(level.labels for level in config.levels)
        zones = zone_family(config.families)
        around = dict(zones.keys) if zones else {}
        self._families = [
            (family, [{**family.keys, **around}.get(level, "") for level in self.names])
            for family in network_families(config.families)
        ]
        self._around = [around.get(level, "") for level in self.names]
        level = config.rails.level
        self.rails = RailReader(config.rails.labels, self.names.index(level) if level in self.names else -1)

    def levels_by_key(self) -> dict[str, str]:
        """Return the level of each node label; the first label family with the label decides."""
        if self._own:
            pairs = [(key, name) for name, keys in zip(self.names, self._own, strict=True) for key in keys]
        else:
            key_lists = [*(keys for _, keys in self._families), self._around]
            pairs = [(key, name) for keys in key_lists for name, key in zip(self.names, keys, strict=True) if key]
        rails = [(key, self.names[self.rails.level]) for key in self.rails.labels]
        return dict(reversed([*pairs, *rails]))

    def keys_read(self) -> set[str]:
        """Return the keys of all labels on which the position of a node depends."""
        families = {key for family, keys in self._families for key in (*family.markers, *family.keys.values(), *keys)}
        return {*families, *self._around, *self.rails.labels, *(key for keys in self._own for key in keys)}

    def read(self, labels: Mapping[str, str]) -> tuple[str | None, ...]:
        """Return the name of the domain at each level of ``names``."""
        place = self._read(labels)
        unit = self.rails.unit(labels)
        if unit is None:
            return place
        return (*place[: self.rails.level], unit, *place[self.rails.level + 1 :])

    def conflicting_labels(self, labels: Mapping[str, str]) -> LeafLabels | None:
        """Return the labels with a node's leaf and its position by those not used; None for fewer than two labels."""
        if self._own:
            keys = [key for key in self._own[-1] if labels.get(key)]
            outer = self._read(labels)[:-1] if len(keys) > 1 else ()
            leaves = [(key, (*outer, labels[key])) for key in keys]
        else:
            labelled = [(family, keys) for family, keys in self._families if labels.get(keys[-1])]
            applying = [keys for family, keys in labelled if len(labelled) > 1 and family.applies(labels)]
            leaves = [(keys[-1], tuple(labels.get(key) or None for key in keys)) for keys in applying]
        if len(leaves) < 2 or self.rails.unit(labels) is not None or leaves[0][1] != self._read(labels):
            return None
        return leaves[0][0], tuple(leaves[1:])

    def _read(self, labels: Mapping[str, str]) -> tuple[str | None, ...]:
        if self._own:
            return tuple(next((labels[k] for k in keys if labels.get(k)), None) for keys in self._own)
        keys = self._around
        for family, keys_of_family in self._families:
            if family.applies(labels):
                keys = keys_of_family
                break
        return tuple([labels.get(key) or None for key in keys])


@dataclass(slots=True)
class Leaf:
    """An innermost domain and its rows in order of node name."""

    path: Path
    key: object
    members: list[tuple[NaturalKey, str, int]] = field(default_factory=list)
    rows: Int64 = field(default_factory=lambda: np.empty(0, np.int64))

    def refresh(self) -> None:
        """Update the array ``rows`` from the members."""
        self.rows = np.fromiter((row for _, _, row in self.members), np.int64, len(self.members))


@dataclass(frozen=True, slots=True)
class Layout:
    """The fabric as arrays. D levels, outermost first; L leaves; N nodes.

    ``order`` int64[N]: rows in order. ``offsets`` int64[L+1]: a leaf's range of ``order``. ``domains[d]`` int64[n+1]: a
    domain's range of leaves at level d. The root is the first entry: ``domains[0]`` is [0, L], and ``domains[-1]`` has
    one leaf each. ``aligned`` int64[L]: 1 where every level of the leaf's path is labelled. ``leaf_of_row``
    int64[rows]: a row's leaf, -1 without a node. ``position`` int64[rows]: a row's index in ``order``.
    """

    generation: int
    levels: tuple[str, ...]
    paths: tuple[Path, ...]
    order: Int64
    offsets: Int64
    domains: tuple[Int64, ...]
    aligned: Int64
    leaf_of_row: Int64
    position: Int64

    accelerators: Accelerators | None = None
    """The accelerator tree over the same nodes, None where no node has its labels."""
    woven: tuple[str, ...] = ()
    """Accelerator levels that are part of ``levels``, after the level that cuts them; see `crossing`."""
    cut: str = ""
    """The network level that cuts the domains of ``woven`` into parts, empty where they are whole."""
    plain: "Layout | None" = None
    """The fabric of the network alone, if this one has accelerator levels."""
    inner: "Layout | None" = None
    """The full fabric, if this one has its outer levels only."""
    blocks: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    """int64[L+1]: the range of leaves of ``inner`` in each leaf of this fabric."""
    _outer: dict[int, "Layout"] = field(default_factory=dict, compare=False, repr=False)
    _index: dict[Path, int] = field(default_factory=dict, compare=False, repr=False)
    _crossed: dict[tuple[str, ...], "Layout"] = field(default_factory=dict, compare=False, repr=False)

    @property
    def network(self) -> "Layout":
        """The fabric of the network alone: its leaves are the leaf switches that operators know."""
        return self.plain or self

    @property
    def every_level(self) -> tuple[str, ...]:
        """Levels that a workload may request: those of this fabric and those of the accelerator tree."""
        second = self.accelerators.levels if self.accelerators is not None else ()
        return (*self.levels, *(level for level in second if level not in self.levels))

    @property
    def depth(self) -> int:
        """Number of levels."""
        return len(self.levels)

    @property
    def index(self) -> Mapping[Path, int]:
        """Leaves by path."""
        if not self._index:
            self._index.update((path, leaf) for leaf, path in enumerate(self.paths))
        return self._index

    def outer(self, depth: int) -> "Layout":
        """Return the fabric down to a depth, whose domains become its leaves; the fabric itself at full depth."""
        if not 0 < depth < self.depth:
            return self
        outer = self._outer.get(depth)
        if outer is None:
            blocks = self.domains[depth]
            paths = tuple(self.paths[leaf][:depth] for leaf in blocks[:-1].tolist())
            leaf_of_row = np.searchsorted(blocks, self.leaf_of_row, side="right").astype(np.int64) - 1
            outer = self._outer[depth] = replace(
                self,
                levels=self.levels[:depth],
                paths=paths,
                offsets=self.offsets[blocks],
                domains=tuple(np.searchsorted(blocks, domain).astype(np.int64) for domain in self.domains[: depth + 1]),
                aligned=_aligned(paths),
                leaf_of_row=leaf_of_row,
                inner=self,
                blocks=blocks,
                _outer={},
                _index={},
                _crossed={},
            )
        return outer

    def domain_path(self, depth: int, index: int) -> Path:
        """Return the path of a domain; depth 0 is the whole fabric, with the empty path."""
        return self.paths[int(self.domains[depth][index])][:depth]

    def leaves_of(self, rows: Iterable[int]) -> set[int]:
        """Return the leaves of the nodes in the given rows; rows without a node have none."""
        return set(self.leaf_of_row[np.fromiter(rows, np.int64)].tolist()) - {-1}

    def domain_of_leaf(self, depth: int, leaf: int) -> int:
        """Return the index of the domain at this depth that contains a leaf."""
        return int(np.searchsorted(self.domains[depth], leaf, side="right")) - 1

    def find(self, name: str) -> list[tuple[int, int]]:
        """Return (depth, index) of the domains whose path ends in ``name`` (parts separated by slashes)."""
        suffix = tuple(name.split("/"))
        domains = []
        for depth in range(len(suffix), self.depth + 1):
            for index in range(len(self.domains[depth]) - 1):
                path = self.domain_path(depth, index)
                if path[depth - len(suffix) :] == suffix:
                    domains.append((depth, index))
        return domains


class Fabric:
    """Keeps the order of nodes up to date while nodes appear, disappear and change their labels."""

    def __init__(self, config: FabricConfig) -> None:
        self.reader = LevelReader(config)
        self.accelerators = AcceleratorTree(config)
        self.generation = 0
        self._place: dict[int, tuple[str, tuple[str | None, ...]]] = {}
        self._carried = [0] * len(self.reader.names)
        self._active: tuple[int, ...] = ()
        self._leaves: dict[Path, Leaf] = {}
        self._sorted: list[tuple[object, Path]] = []
        self._stale_leaves: set[Path] = set()
        self._rebuild = False
        self._layout: Layout | None = None
        self._label_conflicts = LabelConflicts()
        self._keys_read = frozenset(self.reader.keys_read() | self.accelerators.levels_by_key().keys())

    def levels_by_key(self) -> dict[str, str]:
        """Return the level of either tree for each node label."""
        second = self.accelerators.levels_by_key()
        return {**dict(reversed(second.items())), **self.reader.levels_by_key()}

    def label_keys(self) -> list[str]:
        """Return the keys of all node labels that give positions, or the uplinks of a level."""
        return [*self.levels_by_key(), *map(uplink_label, self.reader.names)]

    def tells_apart(self, before: Mapping[str, str], after: Mapping[str, str]) -> bool:
        """Return whether any label differs that gives positions."""
        return not self._keys_read.isdisjoint([key for key, _ in before.items() ^ after.items()])

    def put(self, row: int, name: str, labels: Mapping[str, str]) -> bool:
        """Put a node at the position of its labels; return whether anything changed."""
        place = self.reader.read(labels)
        moves = self._place.get(row) != (name, place)
        if moves:
            self.remove(row)
        self._label_conflicts.put(row, self.reader.conflicting_labels(labels))
        changed = self.accelerators.put(row, labels)
        if moves:
            self._place[row] = (name, place)
            self._count(place, 1)
            if not self._rebuild:
                self._insert(row, name, self._path(place))
        if moves or changed:
            self._touch()
        return moves or changed

    def remove(self, row: int) -> None:
        """Remove a node from the fabric."""
        previous = self._place.pop(row, None)
        if previous is None:
            return
        name, place = previous
        self.accelerators.remove(row)
        self._label_conflicts.remove(row)
        if not self._rebuild:
            self._delete(row, name, self._path(place))
        self._count(place, -1)
        self._touch()

    def layout(self, rows: int) -> Layout:
        """Return the fabric as arrays; ``rows`` is the length of the node table."""
        if self._layout is not None and len(self._layout.leaf_of_row) == rows:
            return self._layout
        if self._rebuild:
            self._build()
        self._layout = self._lay_out(rows)
        return self._layout

    def unlabelled(self) -> list[str]:
        """Return the names of the nodes that lack a label for a level, in order."""
        return sorted(
            (name for name, place in self._place.values() if any(place[level] is None for level in self._levels())),
            key=natural_key,
        )

    def complaints(self) -> list[str]:
        """Return messages on nodes in two leaves, each once until it is corrected."""
        return self._label_conflicts.complaints(self._place)

    # ------------------------------------------------------------ inside

    def _levels(self) -> tuple[int, ...]:
        # Without any label there is still one leaf, so that rules have a domain to apply to.
        return self._active or (len(self.reader.names) - 1,)

    def _path(self, place: tuple[str | None, ...]) -> Path:
        return tuple(place[level] or UNLABELLED for level in self._levels())

    def _count(self, place: tuple[str | None, ...], change: int) -> None:
        counts = self._carried
        toggled = False
        for level, name in enumerate(place):
            if name is not None:
                count = counts[level]
                counts[level] = count + change
                toggled = toggled or not count or not count + change
        if toggled:
            # A level appeared or disappeared, so every path changes.
            self._active = tuple(level for level, count in enumerate(counts) if count)
            self._rebuild = True

    def _touch(self) -> None:
        self.generation += 1
        self._layout = None

    def _insert(self, row: int, name: str, path: Path) -> None:
        leaf = self._leaves.get(path)
        if leaf is None:
            leaf = self._leaves[path] = Leaf(path, _path_key(path))
            insort(self._sorted, (leaf.key, path))
        insort(leaf.members, (natural_key(name), name, row))
        self._stale_leaves.add(path)

    def _delete(self, row: int, name: str, path: Path) -> None:
        leaf = self._leaves[path]
        del leaf.members[bisect_left(leaf.members, (natural_key(name), name, row))]
        self._stale_leaves.add(path)
        if not leaf.members:
            del self._leaves[path]
            del self._sorted[bisect_left(self._sorted, (leaf.key, path))]

    def _build(self) -> None:
        self._leaves = {}
        for row, (name, place) in self._place.items():
            path = self._path(place)
            leaf = self._leaves.get(path)
            if leaf is None:
                leaf = self._leaves[path] = Leaf(path, _path_key(path))
            leaf.members.append((natural_key(name), name, row))
        for leaf in self._leaves.values():
            leaf.members.sort()
        self._sorted = sorted((leaf.key, path) for path, leaf in self._leaves.items())
        self._stale_leaves = set(self._leaves)
        self._rebuild = False

    def _lay_out(self, rows: int) -> Layout:
        for path in self._stale_leaves:
            if path in self._leaves:
                self._leaves[path].refresh()
        self._stale_leaves.clear()
        paths = tuple(path for _, path in self._sorted)
        arrays = [self._leaves[path].rows for path in paths]
        order = np.concatenate(arrays) if arrays else np.empty(0, np.int64)
        sizes = np.fromiter((len(array) for array in arrays), np.int64, len(arrays))
        offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)))
        levels = tuple(self.reader.names[level] for level in self._levels())
        layout = layout_of(self.generation, levels, paths, order, offsets, rows)
        return replace(layout, accelerators=self.accelerators.snapshot(rows))


def layout_of(
    generation: int, levels: tuple[str, ...], paths: Sequence[Path], order: Int64, offsets: Int64, rows: int
) -> Layout:
    """Return the layout with these nodes in order, and these leaves; ``rows`` is the length of the node table."""
    leaf_of_row = np.full(rows, -1, np.int64)
    leaf_of_row[order] = np.repeat(np.arange(len(paths), dtype=np.int64), np.diff(offsets))
    position = np.full(rows, -1, np.int64)
    position[order] = np.arange(len(order), dtype=np.int64)
    return Layout(
        generation=generation,
        levels=levels,
        paths=tuple(paths),
        order=order,
        offsets=offsets,
        domains=_domains_of(paths, len(levels)),
        aligned=_aligned(paths),
        leaf_of_row=leaf_of_row,
        position=position,
    )


def _aligned(paths: Sequence[Path]) -> Int64:
    return np.fromiter((UNLABELLED not in path for path in paths), np.int64, len(paths))


def _domains_of(paths: Iterable[Path], depth: int) -> tuple[Int64, ...]:
    """Return the ranges of leaves (int64[n+1]) of the domains at each depth up to ``depth``, for leaves in order."""
    starts: list[list[int]] = [[] for _ in range(depth + 1)]
    previous: Path | None = None
    count = 0
    for leaf, path in enumerate(paths):
        count += 1
        common = 0
        if previous is None:
            starts[0].append(0)
        else:
            while path[common] == previous[common]:
                common += 1
        for level in range(common + 1, depth + 1):
            starts[level].append(leaf)
        previous = path
    return tuple(np.array([*level, count] if level else [0], np.int64) for level in starts)
