"""The interface of plugins, which the built-in plugin uses too: functions over batches, with arrays as in- and output.

Plugins import these names from `topo_scheduler.plugins`. Shapes: N rows of nodes (used or not), L leaves in the order
of the fabric, D levels. Arrays that a plugin gets are read-only. Units: CPU in milli-CPU, memory in bytes, GPUs and
pods in whole numbers, scores in thousandths.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from topo_scheduler.api.annotations import KNOWN
from topo_scheduler.api.labels import PREFIX
from topo_scheduler.api.objects import Taint
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.pods.classes import PodClass
from topo_scheduler.state.statistics.typical_pods import Typical
from topo_scheduler.state.topology.fabric import Path

Bool = npt.NDArray[np.bool_]
T = TypeVar("T")

GROUP: Final = "topo_scheduler.plugins"
"""Entry points of this group are plugins; the entry point's name is the plugin's."""
VERSION: Final = 1
"""Version of this interface. It increases when existing plugins must change."""
WHOLE: Final = 1000
"""The best score, in thousandths; the worst is 0."""


class PluginError(Exception):
    """A plugin failed. ``reason`` is one of raised, answer, slow, disabled, dropped."""

    def __init__(self, plugin: str, point: str, reason: str, why: str) -> None:
        super().__init__(f"plugin {plugin} failed: {point}: {why}")
        self.plugin, self.point, self.reason = plugin, point, reason


class Nodes(Protocol):
    """All nodes as arrays. A row that no node has is False in ``exists``."""

    @property
    def exists(self) -> Bool:
        """bool[N]: whether a node has the row."""
        ...

    @property
    def ready(self) -> Bool:
        """bool[N]: whether the condition Ready is True."""
        ...

    @property
    def unschedulable(self) -> Bool:
        """bool[N]: whether it is cordoned."""
        ...

    @property
    def allocatable(self) -> Int64:
        """int64[N, resources]: allocatable amount; ``column`` returns the column of a resource."""
        ...

    @property
    def requested(self) -> Int64:
        """int64[N, resources]: sum of the requests of its pods, including assumed pods."""
        ...

    @property
    def model(self) -> Int64:
        """int64[N]: index of its GPU model in ``models``, -1 without a label."""
        ...

    @property
    def bandwidth(self) -> Int64:
        """int64[N]: Mbit/s, -1 if neither a label nor the configuration sets it."""
        ...

    @property
    def reserved_bandwidth(self) -> Int64:
        """int64[N]: Mbit/s that gangs have reserved."""
        ...

    @property
    def spare(self) -> Bool:
        """bool[N]: whether it is a spare node for recovery."""
        ...

    @property
    def gpu_sharing(self) -> Bool:
        """bool[N]: whether pods may share its GPUs."""
        ...

    @property
    def gpu_free(self) -> Int64:
        """int64[N, d]: free thousandths of each GPU where they are shared, 0 elsewhere and beyond a node's GPUs."""
        ...

    @property
    def taint_set(self) -> Int64:
        """int64[N]: index of its taints in ``taint_sets``."""
        ...

    @property
    def taint_sets(self) -> Sequence[tuple[Taint, ...]]:
        """All distinct sets of taints of nodes."""
        ...

    @property
    def features(self) -> Sequence[frozenset[str]]:
        """By row: features the node declares."""
        ...

    @property
    def models(self) -> Sequence[str]:
        """Names of GPU models."""
        ...

    @property
    def names(self) -> Sequence[str]:
        """By row: the node's name, empty for an unused row."""
        ...

    @property
    def values(self) -> Sequence[str]:
        """Label values by id."""
        ...

    @property
    def row_of(self) -> Mapping[str, int]:
        """Rows by name of the node."""
        ...

    def column(self, resource: str) -> int:
        """Return the column of a resource, -1 if neither a node nor a pod has it. ``gpu`` stands for all GPUs."""
        ...

    def labels_of(self, row: int) -> Mapping[str, str]:
        """Return all labels of one node. For many nodes, `label_column` is a thousand times faster."""
        ...

    def label_column(self, key: str) -> Int64:
        """Return int64[N]: IDs of the values of a label, -1 where it is absent; see ``values`` and ``value_id``."""
        ...

    def value_id(self, value: str) -> int:
        """Return the ID of a label value. Equal strings have equal IDs. A value of no node has an ID of no row."""
        ...

    def known_value(self, value: str) -> int:
        """Return the ID of a label value, -1 if no node has the value."""
        ...

    def model_id(self, name: str) -> int:
        """Return the index of a GPU model, -1 when no node has it."""
        ...


class Request(NamedTuple):
    """The pods to place: ``members`` pods of one class, in a gang or a single one.

    ``aligned``: value of a labelled leaf in thousandths, 1000 within the size rule and less beyond. ``preferred``:
    leaves of the preferred domain as (first, last + 1). ``typical``: the usual pods of the cluster, only for scores of
    single pods.
    """

    cls: PodClass
    members: int
    gang: bool
    strategy: str
    aligned: int = WHOLE
    preferred: tuple[int, int] | None = None
    typical: Typical | None = None


class Leaves(NamedTuple):
    """The innermost domains of the fabric.

    ``rows`` int64[nodes]: rows in the order of the fabric. ``offsets`` int64[L + 1]: range of each leaf in ``rows``.
    ``fit`` int64[N]: members that each row takes now. ``capacity`` and ``used`` int64[L]: amounts of the resource by
    which placements are rated. ``aligned`` int64[L]: 1 if every level is labelled. ``record`` int64[L]: recent success
    of placements there, in thousandths.
    """

    paths: Sequence[Path]
    rows: Int64
    offsets: Int64
    fit: Int64
    capacity: Int64
    used: Int64
    aligned: Int64
    record: Int64


class LeafSeats(NamedTuple):
    """Members to assign to the nodes of one leaf.

    ``rows`` int64[n]: the leaf's rows in order. By row of the node table, int64[N] each: ``fit`` members that it takes,
    ``free`` amount of the scarce resource, ``preference`` of the pod for it, ``siblings`` pods of the same workload
    there. ``siblings`` is empty unless the strategy has ``apart``. ``ask``: amount of the scarce resource for one
    member. ``members``: number of members. ``most_nodes``: rows that may be used at most, 0 for no limit.
    """

    rows: Int64
    fit: Int64
    free: Int64
    preference: Int64
    siblings: Int64
    ask: int
    members: int
    most_nodes: int


@dataclass(frozen=True, slots=True)
class Filter:
    """A rule, and its reason for the nodes that it rejects, such as ``node(s) were too hot``.

    ``accepts`` (nodes, class, rows int64[n]) -> bool[n]. The engine calls it once per class and node, and again when
    facts of the node change (labels, taints, readiness, allocatable). The result must depend on nothing else.
    """

    reason: str
    accepts: Callable[[Nodes, PodClass, Int64], Bool]


@dataclass(frozen=True, slots=True)
class Score:
    """A part of the score, in thousandths, with its weight unless ``scoringWeights.plugins`` sets another.

    Either ``nodes`` (nodes, request, rows int64[n]) -> int64[n], for nodes that can take a member now. A leaf then has
    the mean score of its nodes. Among nodes that the pod prefers equally, the higher score comes first. Or ``leaves``
    (leaves, request) -> int64[L]. The engine calls it for every decision.
    """

    name: str
    nodes: Callable[[Nodes, Request, Int64], Int64] | None = None
    leaves: Callable[[Leaves, Request], Int64] | None = None
    weight: float = 0.1


class Prefers(IntEnum):
    """Which leaves a strategy prefers, by their utilisation."""

    FULL = 0
    EMPTY = 1
    EVEN = 2
    """Leaves near the mean utilisation of the cluster."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """How to distribute members over the chosen leaves, and over the nodes of each. Pods name it in an annotation.

    ``leaves`` (limits int64[k], members) -> int64[k], at most the limits. The result may sum to less than ``members``
    only if the limits do. ``nodes`` (`LeafSeats`) -> int64[n], members on each of its ``rows``, or None if impossible.
    ``apart``: single pods avoid the leaves of their siblings, and `LeafSeats` has the siblings.
    """

    name: str
    leaves: Callable[[Int64, int], Int64]
    nodes: Callable[[LeafSeats], Int64 | None]
    prefers: Prefers = Prefers.EVEN
    apart: bool = False


@dataclass(frozen=True, slots=True)
class Demand:
    """The demand of a rule on the leaves of a gang.

    ``nodes``: applies to gangs of at least so many nodes. ``leaves``: leaves at most, 0 for no limit. ``level``: all
    leaves must be in one domain of this level, empty for none. ``required``: the gang stays pending until the demand
    can be met; otherwise the planner first tries with the demand, then without.
    """

    name: str
    nodes: int = 1
    leaves: int = 0
    level: str = ""
    required: bool = True


@dataclass(frozen=True, slots=True)
class Gang:
    """A gang of ``members`` pods, including running ones. ``cls`` is the class of most of them.

    ``nodes``: nodes that it needs at least. ``leaves``: the fewest leaves that could hold it. ``levels``: levels of the
    fabric, the outermost first.
    """

    cls: PodClass
    members: int
    nodes: int
    leaves: int
    levels: Sequence[str]


@dataclass(frozen=True, slots=True)
class Binding:
    """A Binding before or after the scheduler writes it. ``annotations`` and ``labels`` are those of the pod.

    ``written``: annotations that the scheduler itself sets on the Binding.
    """

    namespace: str
    name: str
    uid: str
    node: str
    annotations: Mapping[str, str]
    labels: Mapping[str, str]
    written: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Answer:
    """The additions of a plugin to a Binding, or its ``refusal``. A refused pod is placed again after a pause.

    ``refusal``: reason why the Binding must not be written; empty for none.
    """

    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Plugin:
    """All functions of a plugin. Leave ``name`` empty: the plugin has the name of its entry point.

    ``annotations`` and ``labels``: those of pods that the plugin reads. Pods that differ in them are of different
    classes, and a `PodClass` has only these (annotations also of owners, labels only of the pod). ``node_labels``:
    labels that the plugin may pass to `Nodes.label_column`. ``opt_in``: the plugin concerns only pods with one of its
    annotations or labels. The engine does not call it for other pods, so its failures do not affect them. ``alone``:
    scores of nodes for single pods, of which the one that ``smallPods.scoring`` names applies. The engine caches them
    for each class and calls them again only for changed nodes. So they must depend only on the node, the class and
    ``Request.typical``.
    """

    name: str = ""
    version: int = VERSION
    annotations: Sequence[str] = ()
    labels: Sequence[str] = ()
    node_labels: Sequence[str] = ()
    opt_in: bool = False
    filters: Sequence[Filter] = ()
    scores: Sequence[Score] = ()
    alone: Sequence[Score] = ()
    strategies: Sequence[Strategy] = ()
    size_rule: Callable[[Gang], Demand | None] | None = None
    bind: Callable[[Binding], Answer] | None = None
    post_bind: Callable[[Binding], None] | None = None

    def named(self, name: str) -> "Plugin":
        """Return a copy of the plugin with another name."""
        return replace(self, name=name)

    def concerns(self, cls: PodClass) -> bool:
        """Return whether the engine calls the plugin for pods of a class."""
        return not self.opt_in or bool(
            {f"annotation:{name}" for name in self.annotations} & cls.extra.keys()
            or {f"label:{name}" for name in self.labels} & cls.extra.keys()
        )

    def problem(self) -> str:
        """Return why the plugin is invalid, or an empty string."""
        if self.version != VERSION:
            return f"it is written for version {self.version} of the plugin interface; this scheduler has {VERSION}"
        for name in self.annotations:
            if name.startswith(PREFIX) and name not in KNOWN:
                return f"it reads annotation {name}, but names under {PREFIX} are this scheduler's own"
        if self.opt_in and not self.annotations and not self.labels:
            return "it is opt_in, but reads no annotation and no label that pods could carry"
        if invalid := next(
            (score.name for score in self.scores if (score.nodes is None) == (score.leaves is None)), None
        ):
            return f"score {invalid} must have either nodes or leaves"
        if invalid := next((score.name for score in self.alone if score.nodes is None), None):
            return f"score {invalid} is for pods placed alone and must have nodes"
        if invalid_weight := next((score.name for score in self.scores if not 0 <= score.weight <= 1), None):
            return f"the weight of score {invalid_weight} is not between 0 and 1"
        return ""


Factory = Callable[[Mapping[str, Any]], Plugin]
"""Type of an entry point: it gets the arguments of the configuration. It may raise ValueError for invalid ones."""


class PluginGuard(Protocol):
    """Calls functions of plugins, and limits the damage that they can do."""

    def call(self, plugin: str, point: str, work: Callable[[], T]) -> T:
        """Return the result of ``work``.

        Raises:
            PluginError: the function raised, or took too long.
        """
        ...

    def begin(self) -> None:
        """Start a decision: the common time limit of plugins counts from here."""
        ...

    def pardon(self) -> None:
        """Forget the failures of plugins, because the configuration changed."""
        ...


def error_text(error: BaseException) -> str:
    """Return an exception as one line of limited length."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
