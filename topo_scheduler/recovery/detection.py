"""Which nodes failed, and since when that is believed.

A problem counts once it has lasted for the debounce; that a node was deleted after a blink, in which those that go with
it are gathered. When most nodes of a domain have one by then, the domain failed: that is one event, for all of them. A
node that failed is in quarantine for a while when it comes back, longer the more often it failed of late: nothing is
planned onto it.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from topo_scheduler.api.migrations import Cause
from topo_scheduler.api.recovery import RecoverySpec
from topo_scheduler.recovery.health import NodeHealth, NodeProblem, problem_of

MOST_DOUBLINGS: Final = 6
GATHER: Final = 0.25
"""Seconds from when a node was deleted until that counts: who deletes a leaf does so node by node."""
DELETED_HOLDS: Final = 60.0
"""Seconds for which a node that was deleted may be taken for one that this side does not see."""

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DomainFailure:
    """Nodes that failed together. ``text`` a sentence, ``nodes`` in order of name, ``since`` in seconds."""

    cause: Cause
    text: str
    nodes: tuple[str, ...]
    since: float


@dataclass(slots=True)
class _WatchedNode:
    """A node. ``domains`` outermost first, as they were when its problem began, and while it has none as they are.

    ``since`` when its problem began; ``told`` which were confirmed since it was well, or was dead or not.
    """

    health: NodeHealth
    domains: tuple[Path, ...] = ()
    problem: NodeProblem | None = None
    since: float = 0.0
    told: set[Cause] = field(default_factory=set)

    @property
    def dead(self) -> bool:
        """Whether nothing can be expected of it."""
        return self.problem is not None and self.problem.cause.dead

    @property
    def fresh(self) -> bool:
        """Whether its problem was not confirmed yet; of a dead node it is always the same."""
        return self.problem is not None and not (self.told if self.dead else self.problem.cause in self.told)


@dataclass(slots=True)
class _Deleted:
    """A node that was deleted. ``told`` whether that was: then it only counts for its domains, for a while."""

    at: float
    domains: tuple[Path, ...]
    told: bool = False


@dataclass(slots=True)
class _Down:
    """Of a domain: ``fresh`` nodes that are dead or gone and were not told; ``told`` how many that went were."""

    fresh: set[str] = field(default_factory=set)
    told: int = 0


@dataclass(slots=True)
class _FailureRecord:
    """Failures that are not forgotten. ``until`` the end of the quarantine."""

    times: int = 0
    until: float = 0.0


@dataclass(slots=True)
class Detection:
    """All nodes, and what is wrong with them. ``domains_of`` paths of the domains of a node, outermost first."""

    spec: RecoverySpec
    domains_of: Callable[[str], Sequence[Path]]
    _nodes: dict[str, _WatchedNode] = field(default_factory=dict)
    _failing: dict[str, _WatchedNode] = field(default_factory=dict)
    _gone: dict[str, _Deleted] = field(default_factory=dict)
    _records: dict[str, _FailureRecord] = field(default_factory=dict)
    _by_pods: dict[str, NodeProblem] = field(default_factory=dict)
    """What is wrong with nodes by their pods."""
    held: str = ""
    """Why nothing is begun at the moment; empty when there is no such reason."""

    # ------------------------------------------------------------ facts in

    def seen(self, health: NodeHealth, now: float) -> None:
        """Take over a node that appeared or changed."""
        known = self._nodes.get(health.name)
        if known is not None and known.health.uid != health.uid:
            self.gone(health.name, known.health.uid, now)
            known = None
        if known is None:
            known = self._nodes[health.name] = _WatchedNode(health)
            self._gone.pop(health.name, None)
        known.health = health
        self._locate(known)
        self._judge(known, now)

    def gone(self, name: str, uid: str, now: float) -> None:
        """A node was deleted."""
        known = self._nodes.get(name)
        if known is None or (uid and known.health.uid != uid):
            return
        del self._nodes[name]
        self._locate(known)
        # For less than that pods stay that say so.
        self._gone[name] = _Deleted(now, known.domains, told=known.dead and not known.fresh)
        self._failing.pop(name, None)

    def pods_tell(self, problems: Mapping[str, NodeProblem], now: float) -> None:
        """Take over what is wrong with nodes by their pods, by name."""
        before, self._by_pods = self._by_pods, dict(problems)
        for name in sorted(before.keys() | problems.keys()):
            if name in self._nodes and before.get(name) != problems.get(name):
                self._judge(self._nodes[name], now)

    def configure(self, spec: RecoverySpec, now: float) -> None:
        """Take over a new configuration."""
        self.spec = spec
        for node in self._nodes.values():
            self._judge(node, now)

    # ------------------------------------------------------------ what failed

    def due(self, now: float) -> list[DomainFailure]:
        """Return what has failed for long enough by now, each failure once."""
        ripe = [name for name, node in self._failing.items() if self._ripe(node, now)]
        gone = self._deleted(now)
        if not ripe and not gone:
            self.held = "" if not self._failing else self.held
            return []
        self.held = self._cut_off(now)
        if self.held:
            return []
        failures: list[DomainFailure] = []
        left = dict.fromkeys([*sorted(ripe), *sorted(gone)])
        several = len(self._failing) + len(self._gone) > 1
        down, sizes = (self._down(), self._sizes()) if several else ({}, {})
        while left:
            name = next(iter(left))
            failure = self._as_domain(name, down, sizes) or self._single(name)
            for one in failure.nodes:
                left.pop(one, None)
                self._confirm(one, now)
                for path in self._domains(one) if several else ():
                    down[path].fresh.discard(one)
                    down[path].told += one in self._gone
            failures.append(failure)
        return failures

    def next_due(self) -> float | None:
        """Return when `due` must be asked next."""
        untold = [node.at for node in self._gone.values() if not node.told]
        if self.held:
            return min(untold) + DELETED_HOLDS if untold else None
        waits = [node.since + self.spec.debounce for node in self._failing.values() if node.fresh]
        return min((*waits, *(at + GATHER for at in untold)), default=None)

    def problem(self, name: str) -> NodeProblem | None:
        """Return what is wrong with a node now; one that is not there was deleted."""
        known = self._nodes.get(name)
        return known.problem if known is not None else NodeProblem(Cause.DELETED, "was deleted")

    def names(self) -> set[str]:
        """Return the nodes that are known."""
        return set(self._nodes)

    def well(self, name: str) -> bool:
        """Return whether a node is there, and nothing is wrong with it."""
        known = self._nodes.get(name)
        return known is not None and known.problem is None

    def ill(self, name: str) -> bool:
        """Return whether it is known that something is wrong with a node."""
        known = self._nodes.get(name)
        return known is not None and known.problem is not None

    def lasts(self, name: str, now: float) -> bool:
        """Return whether a problem has lasted for the debounce, or was told with its domain; or the node is gone."""
        known = self._nodes.get(name)
        if known is None or known.problem is None:
            return known is None
        return not known.fresh or known.since + self.spec.debounce <= now

    def died(self, name: str, now: float) -> bool:
        """Return whether a node that is there has been dead for the debounce, or was told with its domain."""
        known = self._nodes.get(name)
        return known is not None and known.dead and self.lasts(name, now)

    def reported(self, name: str, now: float) -> DomainFailure | None:
        """Return the failure of a node that lasts and was reported before; None where it is well, or yet to be."""
        if name in self._gone or name in self._failing:
            known = self._nodes.get(name)
            return None if known is not None and known.fresh else self._single(name)
        return None if name in self._nodes else DomainFailure(Cause.DELETED, f"node {name} was deleted", (name,), now)

    def health(self, name: str) -> NodeHealth | None:
        """Return what is known of a node."""
        known = self._nodes.get(name)
        return known.health if known is not None else None

    def avoided(self, now: float) -> set[str]:
        """Return the nodes onto which nothing is planned: those with a problem, however new, and in quarantine."""
        for name in [name for name, one in self._records.items() if one.until + self.spec.quarantine < now]:
            del self._records[name]
        return set(self._failing) | {name for name, one in self._records.items() if now < one.until}

    # ------------------------------------------------------------ inside

    def _locate(self, node: _WatchedNode) -> None:
        """Remember where a node without a problem is: later it may have no labels, or be gone."""
        if node.problem is None:
            node.domains = tuple(self.domains_of(node.health.name)) or node.domains

    def _judge(self, node: _WatchedNode, now: float) -> None:
        name = node.health.name
        before, node.problem = node.problem, problem_of(node.health, self.spec) or self._by_pods.get(name)
        if node.problem is None:
            node.told = set()
            self._failing.pop(name, None)
        elif before is None or before.cause is not node.problem.cause:
            dead = node.problem.cause.dead
            if before is None or before.cause.dead != dead:
                node.since, node.told = now, set()
            elif not dead and node.told:
                node.since = now
            # Else it goes on: not ready and unreachable are the same failure, and of what does not kill a node one
            # thing may come and go while another lasts.
            self._failing[name] = node

    def _ripe(self, node: _WatchedNode, now: float) -> bool:
        return node.fresh and node.since + self.spec.debounce <= now

    def _deleted(self, now: float) -> list[str]:
        """Return the nodes whose deletion is to be told, once that of one is; forget those that were told for long."""
        for name in [name for name, one in self._gone.items() if one.told and one.at + self.spec.debounce < now]:
            del self._gone[name]
        untold = [name for name, one in self._gone.items() if not one.told]
        return untold if any(self._gone[name].at + GATHER <= now for name in untold) else []

    def _confirm(self, name: str, now: float) -> None:
        if name in self._gone:
            self._gone[name].told = True
            return
        node = self._failing[name]
        assert node.problem is not None
        node.told.add(node.problem.cause)
        if node.problem.cause is Cause.SCALE_DOWN:
            return  # nothing is wrong with it, if it stays after all
        record = self._records.setdefault(name, _FailureRecord())
        record.times += 1
        record.until = now + self.spec.quarantine * 2 ** min(MOST_DOUBLINGS, record.times - 1)

    def _cut_off(self, now: float) -> str:
        gone = sum(not one.told and now < one.at + DELETED_HOLDS for one in self._gone.values())
        dead, total = gone + sum(node.dead for node in self._failing.values()), gone + len(self._nodes)
        if total < 3 or dead <= self.spec.hold_above * total:
            return ""
        return f"{dead} of {total} nodes are not ready: nothing is moved while that is so, as this side may be cut off"

    def _single(self, name: str) -> DomainFailure:
        if name in self._gone:
            return DomainFailure(Cause.DELETED, f"node {name} was deleted", (name,), self._gone[name].at)
        node = self._failing[name]
        assert node.problem is not None
        return DomainFailure(node.problem.cause, f"node {name} {node.problem.text}", (name,), node.since)

    def _as_domain(self, name: str, down: Mapping[Path, _Down], sizes: Mapping[Path, int]) -> DomainFailure | None:
        """Return the failure of the outermost domain of a node of which most nodes failed; None where there is none.

        ``sizes`` how many nodes each domain has, or had.
        """
        for path in self._domains(name):
            inside, size = down.get(path, _Down()), sizes.get(path, 0)
            if name not in inside.fresh:
                return None
            count = len(inside.fresh) + inside.told
            total = len(self._nodes) + len(self._gone)
            if count > 1 and count > self.spec.domain_share * size and size < total:
                gone = inside.told + len(inside.fresh & self._gone.keys())
                state = "not ready" if not gone else "gone" if gone == count else "gone or not ready"
                text = f"{'/'.join(path)} failed: {count} of its {size} nodes are {state}"
                since = min(self._since(one) for one in inside.fresh)
                return DomainFailure(Cause.DOMAIN, text, tuple(sorted(inside.fresh)), since)
        return None

    def _since(self, name: str) -> float:
        return self._gone[name].at if name in self._gone else self._failing[name].since

    def _domains(self, name: str) -> tuple[Path, ...]:
        one = self._gone.get(name) or self._nodes[name]
        return one.domains

    def _down(self) -> dict[Path, _Down]:
        """Return the nodes that are dead or were deleted of late, by each of their domains."""
        found: defaultdict[Path, _Down] = defaultdict(_Down)
        for name, node in self._failing.items():
            for path in node.domains:
                if node.dead and node.fresh:
                    found[path].fresh.add(name)
        for name, one in self._gone.items():
            for path in one.domains:
                if one.told:
                    found[path].told += 1
                else:
                    found[path].fresh.add(name)
        return found

    def _sizes(self) -> Mapping[Path, int]:
        sizes: dict[Path, int] = {}
        for name, node in self._nodes.items():
            for path in (self.domains_of(name) if node.problem is None else ()) or node.domains:
                sizes[path] = sizes.get(path, 0) + 1
        for deleted in self._gone.values():
            for path in deleted.domains:
                sizes[path] = sizes.get(path, 0) + 1
        return sizes
