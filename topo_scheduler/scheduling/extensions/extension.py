"""What plugins are made of, the built-in one included: batch-shaped functions, arrays in, arrays out.

Plugins import these names from `topo_scheduler.plugins`. N rows of nodes (used or not), L leaves in the order of the
fabric, D levels. Arrays that are handed to a plugin can't be written to. CPU is in milli-CPU, memory in bytes, GPUs and
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
from topo_scheduler.state.classes import PodClass
from topo_scheduler.state.fabric import Path
from topo_scheduler.state.nodes import Int64
from topo_scheduler.state.typical import Typical

Bool = npt.NDArray[np.bool_]
T = TypeVar("T")

GROUP: Final = "topo_scheduler.plugins"
"""Entry points of this group are plugins; the entry point's name is the plugin's."""
VERSION: Final = 1
"""Of what is in this module. It is raised when a plugin must be changed to go on working."""
WHOLE: Final = 1000
"""The best score, in thousandths; the worst is 0."""


class PluginError(Exception):
    """A plugin did not do its part. ``reason`` is one of raised, answer, slow, set_aside, dropped."""

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
        """int64[N, resources]: what it has; ``column`` tells the column of a resource."""
        ...

    @property
    def requested(self) -> Int64:
        """int64[N, resources]: what its pods ask for, those that are assumed included."""
        ...

    @property
    def model(self) -> Int64:
        """int64[N]: index of its GPU model in ``models``, -1 where no label tells."""
        ...

    @property
    def bandwidth(self) -> Int64:
        """int64[N]: Mbit/s, -1 where neither a label nor the configuration tells."""
        ...

    @property
    def reserved_bandwidth(self) -> Int64:
        """int64[N]: Mbit/s that gangs have reserved."""
        ...

    @property
    def spare(self) -> Bool:
        """bool[N]: whether it is kept free for recovery."""
        ...

    @property
    def gpu_sharing(self) -> Bool:
        """bool[N]: whether its GPUs may be shared by pods."""
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
        """Every set of taints there is."""
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
        """By row: the node's name, empty where there is none."""
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
        """Return the column of a resource, -1 when neither a node nor a pod has named it; ``gpu`` is all GPUs."""
        ...

    def labels_of(self, row: int) -> Mapping[str, str]:
        """Return all labels of one node; `label_column` is a thousand times faster for many."""
        ...

    def label_column(self, key: str) -> Int64:
        """Return int64[N]: ids of the values of a label, -1 where it is absent; see ``values`` and ``value_id``."""
        ...

    def value_id(self, value: str) -> int:
        """Return the id of a label value: equal strings, equal ids, and one that no row has when no node has it."""
        ...

    def known_value(self, value: str) -> int:
        """Return the id of a label value, -1 when it is none of any node."""
        ...

    def model_id(self, name: str) -> int:
        """Return the index of a GPU model, -1 when no node has it."""
        ...


class Request(NamedTuple):
    """What is to be placed: ``members`` pods of one class, in a gang or one alone.

    ``aligned`` what a labelled leaf is worth in thousandths: 1000 within the size rule, less beyond. ``preferred``
    leaves of the preferred domain as (first, last + 1). ``typical`` the pods that the cluster usually sees, for scores
    of pods placed alone only.
    """

    cls: PodClass
    members: int
    gang: bool
    strategy: str
    aligned: int = WHOLE
    preferred: tuple[int, int] | None = None
    typical: Typical | None = None


class Leaves(NamedTuple):
    """The fabric's innermost domains. ``capacity`` and ``used`` of the resource placements are judged by.

    ``rows`` int64[nodes] in the order of the fabric, ``offsets`` int64[L + 1] each leaf's range of it. ``fit``
    int64[N], members each row holds now. ``aligned`` int64[L], 1 where every level is labelled. ``record`` int64[L],
    how placements there went lately. The others int64[L] as well.
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
    """Members to be seated in one leaf.

    ``rows`` int64[n], the leaf's rows in order. By row of the node table, int64[N] each: ``fit`` members it holds,
    ``free`` of the scarce resource, ``preference`` how much the pod prefers it, ``siblings`` how many of the same
    workload it has (empty unless the strategy keeps apart). ``ask`` what one member takes of the scarce resource,
    ``members`` how many, ``most_nodes`` how many rows may be used, 0 for any number.
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
    """A rule and the reason it gives for the nodes it rejects, such as ``node(s) were too hot``.

    ``accepts`` (nodes, class, rows int64[n]) -> bool[n]. It is asked once per class and node, and again when facts of
    the node change (labels, taints, readiness, allocatable): it must depend on nothing else.
    """

    reason: str
    accepts: Callable[[Nodes, PodClass, Int64], Bool]


@dataclass(frozen=True, slots=True)
class Score:
    """A part of the score, in thousandths, with its weight unless ``scoringWeights.plugins`` gives another.

    Either ``nodes`` (nodes, request, rows int64[n]) -> int64[n], for nodes that can take a member now: a leaf then has
    the mean of its nodes, and among nodes that the pod itself prefers alike the better comes first. Or ``leaves``
    (leaves, request) -> int64[L]. Asked anew for every decision.
    """

    name: str
    nodes: Callable[[Nodes, Request, Int64], Int64] | None = None
    leaves: Callable[[Leaves, Request], Int64] | None = None
    weight: float = 0.1


class Prefers(IntEnum):
    """Which leaves a strategy likes, by the share of them that is in use."""

    FULL = 0
    EMPTY = 1
    EVEN = 2
    """Near the mean of the whole cluster."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """How members are dealt to the leaves that were chosen, and to the nodes of each. Pods name it in an annotation.

    ``leaves`` (limits int64[k], members) -> int64[k], at most the limits; they may sum to less than ``members`` only if
    the limits do. ``nodes`` (seating) -> int64[n], members on each of ``seating.rows``, or None when it can't.
    ``apart``: pods placed alone keep away from the leaves of their siblings, and are told of them.
    """

    name: str
    leaves: Callable[[Int64, int], Int64]
    nodes: Callable[[LeafSeats], Int64 | None]
    prefers: Prefers = Prefers.EVEN
    apart: bool = False


@dataclass(frozen=True, slots=True)
class Demand:
    """What a rule asks of a gang's leaves.

    ``nodes`` from how many nodes on; ``leaves`` at most so many, 0 for any number; ``level`` all of them within one
    domain of it, empty for any; ``required``: the gang waits for it, otherwise it is tried first and then done without.
    """

    name: str
    nodes: int = 1
    leaves: int = 0
    level: str = ""
    required: bool = True


@dataclass(frozen=True, slots=True)
class Gang:
    """A gang of ``members`` pods, those that run included, most of them of one class.

    ``nodes`` it needs at least; ``leaves`` the fewest that could hold it; ``levels`` of the fabric, outermost first.
    """

    cls: PodClass
    members: int
    nodes: int
    leaves: int
    levels: Sequence[str]


@dataclass(frozen=True, slots=True)
class Binding:
    """A placement before it is written, or after it was. ``annotations`` and ``labels`` are those of the pod.

    ``written`` is what the scheduler itself writes on the Binding.
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
    """What a plugin adds to a Binding, or why it must not be written (then the pod is placed anew, after a pause)."""

    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Plugin:
    """Everything a plugin adds. Its name is that of its entry point; leave it empty.

    ``annotations`` and ``labels`` of pods that it reads: pods that differ in them are of different classes, and only
    these can be asked of a `PodClass` (annotations also stand on owners, labels on the pod alone). ``node_labels`` that
    it asks `Nodes.label_column` for. ``opt_in``: it concerns only pods that carry one of those annotations or labels;
    for others it is not called, so its failures don't touch them. ``alone`` scores of nodes for pods placed alone: the
    one decides that ``smallPods.scoring`` names. They are kept for each class of pods and asked again only for nodes
    that changed, so they must depend on the node, the class and ``Request.typical`` alone.
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
        """Return the same under another name."""
        return replace(self, name=name)

    def concerns(self, cls: PodClass) -> bool:
        """Return whether the plugin is asked about pods of a class."""
        return not self.opt_in or bool(
            {f"annotation:{name}" for name in self.annotations} & cls.extra.keys()
            or {f"label:{name}" for name in self.labels} & cls.extra.keys()
        )

    def problem(self) -> str:
        """Return what is wrong with it, or an empty string."""
        if self.version != VERSION:
            return f"it is written for version {self.version} of the plugin interface; this scheduler has {VERSION}"
        for name in self.annotations:
            if name.startswith(PREFIX) and name not in KNOWN:
                return f"it reads annotation {name}, but names under {PREFIX} are this scheduler's own"
        if self.opt_in and not self.annotations and not self.labels:
            return "it is opt_in, but reads no annotation and no label that pods could carry"
        if lame := next((score.name for score in self.scores if (score.nodes is None) == (score.leaves is None)), None):
            return f"score {lame} must have either nodes or leaves"
        if lame := next((score.name for score in self.alone if score.nodes is None), None):
            return f"score {lame} is for pods placed alone and must have nodes"
        if wrong := next((score.name for score in self.scores if not 0 <= score.weight <= 1), None):
            return f"the weight of score {wrong} is not between 0 and 1"
        return ""


Factory = Callable[[Mapping[str, Any]], Plugin]
"""What an entry point names: made with the arguments of the configuration. May raise ValueError for bad ones."""


class PluginGuard(Protocol):
    """Calls what is not ours, so that it can do no harm."""

    def call(self, plugin: str, point: str, work: Callable[[], T]) -> T:
        """Return what the work returns.

        Raises:
            PluginError: it raised, or took too long.
        """
        ...

    def begin(self) -> None:
        """A decision begins: what plugins may take together counts from here."""
        ...

    def pardon(self) -> None:
        """Forget what plugins did: the configuration changed."""
        ...


def told(error: BaseException) -> str:
    """Return an exception in one line of bounded length."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
