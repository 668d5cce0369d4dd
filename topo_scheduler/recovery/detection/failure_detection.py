"""Detects failed nodes and failed domains, and when each failure began.

A problem counts once it has lasted for the debounce. A deletion counts after `GATHER_SECONDS`, so that nodes deleted
together are handled together. If most nodes of a domain have failed by then, the domain failed: one event for all its
nodes. A node that failed is in quarantine for a while after it returns, and longer if it failed repeatedly. While it is
in quarantine, no pod is planned onto it.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from topo_scheduler.api.migrations import Cause
from topo_scheduler.api.recovery import RecoverySpec
from topo_scheduler.api.text import few_for
from topo_scheduler.recovery.detection.node_health import NodeHealth, NodeProblem, problem_of

MAX_DOUBLINGS: Final = 6
NAMED_PODS: Final = 3
"""Pods named in a message at most."""
GATHER_SECONDS: Final = 0.25
"""Seconds from the deletion of a node until it counts: the nodes of a deleted leaf go one by one."""
DELETED_NODE_SECONDS: Final = 60.0
"""Seconds for which a deleted node still counts as not ready in the check for a network partition."""

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DomainFailure:
    """Nodes that failed together. ``text`` is a sentence, ``nodes`` are sorted by name, ``since`` is in seconds.

    ``pods`` indicate it, as in `NodeProblem`.
    """

    cause: Cause
    text: str
    nodes: tuple[str, ...]
    since: float
    pods: tuple[str, ...] = ()

    def described(self, reader: str = "") -> str:
        """Return the text with the pods that indicate the failure; ``reader`` is as in `few_for`."""
        return f"{self.text}: {few_for(self.pods, reader, 'pod', NAMED_PODS)}" if self.pods else self.text


@dataclass(slots=True)
class _WatchedNode:
    """A node. ``domains``, outermost first, are those from before its problem began, or else the current ones.

    ``since`` is when its problem began. ``reported`` are the causes reported since it was last healthy, or since it
    became dead or stopped being dead.
    """

    health: NodeHealth
    domains: tuple[Path, ...] = ()
    problem: NodeProblem | None = None
    since: float = 0.0
    reported: set[Cause] = field(default_factory=set)

    @property
    def dead(self) -> bool:
        """Whether the node is dead, so that its pods do not run."""
        return self.problem is not None and self.problem.cause.dead

    @property
    def fresh(self) -> bool:
        """Whether its problem was not reported yet; all causes of a dead node count as one problem."""
        return self.problem is not None and not (self.reported if self.dead else self.problem.cause in self.reported)


@dataclass(slots=True)
class _DeletedNode:
    """A node that was deleted. Once ``reported``, it counts for its domains only, for the debounce.

    ``uid`` is that of the node if its deletion is certain: it can't come back. ``unseen``: it was deleted before
    recovery saw it.
    """

    at: float
    domains: tuple[Path, ...]
    reported: bool = False
    uid: str = ""
    unseen: bool = False


@dataclass(slots=True)
class _Down:
    """Failures in a domain: unreported dead or deleted nodes (``fresh``), and the number of reported deletions."""

    fresh: set[str] = field(default_factory=set)
    reported: int = 0


@dataclass(slots=True)
class _FailureRecord:
    """The failures of a node that are remembered. ``until`` is the end of the quarantine, in seconds."""

    times: int = 0
    until: float = 0.0


@dataclass(slots=True)
class Detection:
    """All nodes and their problems. ``domains_of`` returns the paths of the domains of a node, outermost first."""

    spec: RecoverySpec
    domains_of: Callable[[str], Sequence[Path]]
    _nodes: dict[str, _WatchedNode] = field(default_factory=dict)
    _failing: dict[str, _WatchedNode] = field(default_factory=dict)
    _deleted_nodes: dict[str, _DeletedNode] = field(default_factory=dict)
    _records: dict[str, _FailureRecord] = field(default_factory=dict)
    _by_pods: dict[str, NodeProblem] = field(default_factory=dict)
    """Problems of nodes that their pods indicate."""
    held: str = ""
    """Why no failure is handled at the moment, with the numbers of when that began; empty if there is no such reason.
    """
    _held_until: float | None = None
    """When ``held`` may end by itself, as a deleted node no longer counts; None if only other nodes can end it."""

    # ------------------------------------------------------------ input

    def seen(self, health: NodeHealth, now: float) -> None:
        """Handle a node that appeared or changed."""
        node, deleted = self._nodes.get(health.name), self._deleted_nodes.get(health.name)
        if node is None and deleted is not None and health.uid and deleted.uid == health.uid:
            return  # another watch was faster: it reported the deletion before this change
        if node is not None and node.health.uid != health.uid:
            self.gone(health.name, node.health.uid, now)
            node = None
        if node is None:
            node = self._nodes[health.name] = _WatchedNode(health)
            self._deleted_nodes.pop(health.name, None)
        node.health = health
        self._locate(node)
        self._judge(node, now)

    def gone(self, name: str, uid: str, now: float) -> None:
        """Handle the deletion of a node."""
        node = self._nodes.get(name)
        if node is None or (uid and node.health.uid != uid):
            return
        del self._nodes[name]
        self._locate(node)
        # Its pods stay for less time than that, and then report the failure.
        self._deleted_nodes[name] = _DeletedNode(now, node.domains, reported=node.dead and not node.fresh, uid=uid)
        self._failing.pop(name, None)

    def forget(self, name: str) -> None:
        """Forget a node of which it is not certain whether it was deleted."""
        del self._nodes[name]
        self._failing.pop(name, None)

    def absent(self, name: str, now: float) -> None:
        """Handle a node that was deleted before recovery saw it; `AbsentNodes` decides when that is certain."""
        assert name not in self._nodes
        self._deleted_nodes.setdefault(name, _DeletedNode(now, (), unseen=True))

    def set_pod_problems(self, problems: Mapping[str, NodeProblem], now: float) -> None:
        """Replace the problems of nodes that their pods indicate, by name."""
        before, self._by_pods = self._by_pods, dict(problems)
        for name in sorted(before.keys() | problems.keys()):
            if name in self._nodes and before.get(name) != problems.get(name):
                self._judge(self._nodes[name], now)

    def configure(self, spec: RecoverySpec, now: float) -> None:
        """Apply a changed configuration."""
        self.spec = spec
        for node in self._nodes.values():
            self._judge(node, now)

    # ------------------------------------------------------------ failures

    def due(self, now: float) -> list[DomainFailure]:
        """Return the failures that have lasted long enough by ``now``, each failure once."""
        ripe = [name for name, node in self._failing.items() if node.fresh and self._counts_at(node) <= now]
        deleted = self._deleted(now)
        if not ripe and not deleted:
            if self.held:
                self._check_partition(now)
            return []
        self._check_partition(now)
        if self.held:
            return []
        failures: list[DomainFailure] = []
        names = dict.fromkeys([*sorted(ripe), *sorted(deleted)])
        several = len(self._failing) + len(self._deleted_nodes) > 1
        down, sizes = (self._down(), self._sizes()) if several else ({}, {})
        while names:
            name = next(iter(names))
            failure = self._as_domain(name, down, sizes) or self._single(name)
            for member in failure.nodes:
                names.pop(member, None)
                self._confirm(member, now)
                for path in self._domains(member) if several else ():
                    down[path].fresh.discard(member)
                    down[path].reported += member in self._deleted_nodes
            failures.append(failure)
        return failures

    def next_due(self) -> float | None:
        """Return when `due` must be called next, in seconds."""
        if self.held:
            return self._held_until
        unreported = [node.at for node in self._deleted_nodes.values() if not node.reported]
        due = [self._counts_at(node) for node in self._failing.values() if node.fresh]
        return min((*due, *(at + GATHER_SECONDS for at in unreported)), default=None)

    def problem(self, name: str) -> NodeProblem | None:
        """Return the current problem of a node; None if it has none, or is not known."""
        node = self._nodes.get(name)
        return node.problem if node is not None else None

    def names(self) -> set[str]:
        """Return the names of all nodes."""
        return set(self._nodes)

    def saw_deletion(self, name: str) -> bool:
        """Return whether the deletion of a node was seen lately."""
        return name in self._deleted_nodes

    def dead_names(self) -> set[str]:
        """Return the nodes that are dead."""
        return {name for name, node in self._failing.items() if node.dead}

    def is_healthy(self, name: str) -> bool:
        """Return whether a node exists and has no problem."""
        return name in self._nodes and name not in self._failing

    def has_problem(self, name: str) -> bool:
        """Return whether a node exists and has a problem."""
        return name in self._failing

    def dead_for_debounce(self, name: str, now: float) -> bool:
        """Return whether an existing node has been dead for the debounce, or was reported with its domain."""
        node = self._nodes.get(name)
        return node is not None and node.dead and (not node.fresh or self._counts_at(node) <= now)

    def reported(self, name: str, now: float) -> DomainFailure | None:
        """Return the reported failure of a node that still lasts; None if it is healthy or not yet reported.

        The node is one that exists, or is known to be gone.
        """
        if name in self._deleted_nodes or name in self._failing:
            node = self._nodes.get(name)
            return None if node is not None and node.fresh else self._single(name)
        return None if name in self._nodes else DomainFailure(Cause.DELETED, f"node {name} was deleted", (name,), now)

    def health(self, name: str) -> NodeHealth | None:
        """Return the health of a node; None if it does not exist."""
        node = self._nodes.get(name)
        return node.health if node is not None else None

    def avoided(self, now: float) -> set[str]:
        """Return the nodes that are no target: those with a problem, however new, and those in quarantine."""
        for name in [name for name, record in self._records.items() if record.until + self.spec.quarantine < now]:
            del self._records[name]
        return set(self._failing) | {name for name, record in self._records.items() if now < record.until}

    # ------------------------------------------------------------ helpers

    def _counts_at(self, node: _WatchedNode) -> float:
        """Return when the problem of a node counts, in seconds."""
        least = node.problem.least_seconds if node.problem is not None else 0.0
        return node.since + max(self.spec.debounce, least)

    def _locate(self, node: _WatchedNode) -> None:
        """Record the domains of a node without a problem: later it may have no labels, or be deleted."""
        if node.problem is None:
            node.domains = tuple(self.domains_of(node.health.name)) or node.domains

    def _judge(self, node: _WatchedNode, now: float) -> None:
        name = node.health.name
        before, node.problem = node.problem, problem_of(node.health, self.spec) or self._by_pods.get(name)
        if node.problem is None:
            node.reported = set()
            self._failing.pop(name, None)
        elif before is None or before.cause is not node.problem.cause:
            dead = node.problem.cause.dead
            if before is None or before.cause.dead != dead:
                node.since, node.reported = now, set()
            elif not dead and node.reported:
                node.since = now
            # Otherwise the failure goes on: not ready and unreachable are the same failure. Of the causes that do not
            # kill a node, one may come and go while another lasts.
            self._failing[name] = node

    def _deleted(self, now: float) -> list[str]:
        """Return unreported deleted nodes once one of them is due; forget those reported before the debounce."""
        for name in [
            name
            for name, deleted in self._deleted_nodes.items()
            if deleted.reported and deleted.at + self.spec.debounce < now
        ]:
            del self._deleted_nodes[name]
        unreported = [name for name, deleted in self._deleted_nodes.items() if not deleted.reported]
        return unreported if any(self._deleted_nodes[name].at + GATHER_SECONDS <= now for name in unreported) else []

    def _confirm(self, name: str, now: float) -> None:
        if name in self._deleted_nodes:
            self._deleted_nodes[name].reported = True
            return
        node = self._failing[name]
        assert node.problem is not None
        node.reported.add(node.problem.cause)
        if node.problem.cause is Cause.SCALE_DOWN:
            return  # the node has no problem, if it stays after all
        record = self._records.setdefault(name, _FailureRecord())
        record.times += 1
        record.until = now + self.spec.quarantine * 2 ** min(MAX_DOUBLINGS, record.times - 1)

    def _check_partition(self, now: float) -> None:
        """Hold failures back while so many nodes are not ready that this process may be partitioned from them."""
        # Those that recovery never saw say nothing of a partition: pods may name nodes that never existed.
        ends = [
            deleted.at + DELETED_NODE_SECONDS
            for deleted in self._deleted_nodes.values()
            if not deleted.reported and not deleted.unseen
        ]
        counted = [at for at in ends if now < at]
        dead = len(counted) + sum(node.dead for node in self._failing.values())
        total = len(counted) + len(self._nodes)
        self._held_until = min(counted, default=None)
        if total < 3 or dead <= self.spec.pause_above_not_ready_share * total:
            self.held = ""
        elif not self.held:  # new numbers would rewrite every Migration that waits
            self.held = (
                f"{dead} of {total} nodes are not ready: the scheduler moves no pod meanwhile, as it may be"
                " partitioned; check the network of the control plane (the limit is recovery.pauseAboveNotReadyShare)"
            )

    def _single(self, name: str) -> DomainFailure:
        if name in self._deleted_nodes:
            return DomainFailure(Cause.DELETED, f"node {name} was deleted", (name,), self._deleted_nodes[name].at)
        node = self._failing[name]
        assert node.problem is not None
        text, pods = f"node {name} {node.problem.text}", node.problem.pods
        return DomainFailure(node.problem.cause, text, (name,), node.since, pods)

    def _as_domain(self, name: str, down: Mapping[Path, _Down], sizes: Mapping[Path, int]) -> DomainFailure | None:
        """Return the failure of the outermost failed domain of a node; None if no domain failed.

        ``sizes`` has the number of nodes of each domain, deleted ones included.
        """
        for path in self._domains(name):
            failed, size = down.get(path, _Down()), sizes.get(path, 0)
            if name not in failed.fresh:
                return None
            count = len(failed.fresh) + failed.reported
            total = len(self._nodes) + len(self._deleted_nodes)
            if count > 1 and count > self.spec.domain_failure_share * size and size < total:
                deleted = failed.reported + len(failed.fresh & self._deleted_nodes.keys())
                state = "not ready" if not deleted else "gone" if deleted == count else "gone or not ready"
                text = f"{'/'.join(path)} failed: {count} of its {size} nodes are {state}"
                since = min(
                    self._deleted_nodes[node].at if node in self._deleted_nodes else self._failing[node].since
                    for node in failed.fresh
                )
                return DomainFailure(Cause.DOMAIN, text, tuple(sorted(failed.fresh)), since)
        return None

    def _domains(self, name: str) -> tuple[Path, ...]:
        node = self._deleted_nodes.get(name) or self._nodes[name]
        return node.domains

    def _down(self) -> dict[Path, _Down]:
        """Return the nodes that are dead or were deleted lately, by each of their domains."""
        failed: defaultdict[Path, _Down] = defaultdict(_Down)
        for name, node in self._failing.items():
            for path in node.domains:
                if node.dead and node.fresh:
                    failed[path].fresh.add(name)
        for name, deleted in self._deleted_nodes.items():
            for path in deleted.domains:
                if deleted.reported:
                    failed[path].reported += 1
                else:
                    failed[path].fresh.add(name)
        return failed

    def _sizes(self) -> Mapping[Path, int]:
        sizes: Counter[Path] = Counter()
        for name, node in self._nodes.items():
            sizes.update((self.domains_of(name) if node.problem is None else ()) or node.domains)
        for deleted in self._deleted_nodes.values():
            sizes.update(deleted.domains)
        return sizes
