"""Which nodes failed, and since when that is believed.

A problem counts once it has lasted for the debounce; a deleted node at once. When most nodes of a domain have one by
then, the domain failed: that is one event, for all of them. A node that failed is in quarantine for a while when it
comes back, longer the more often it failed of late: nothing is planned onto it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from topo_scheduler.api.migrations import Cause
from topo_scheduler.api.recovery import RecoverySpec
from topo_scheduler.recovery.health import NodeHealth, Problem, problem_of

MOST_DOUBLINGS: Final = 6

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Failure:
    """Nodes that failed together. ``text`` a sentence, ``nodes`` in order of name, ``since`` in seconds."""

    cause: Cause
    text: str
    nodes: tuple[str, ...]
    since: float


@dataclass(slots=True)
class _Node:
    """A node. ``since`` when its problem began; ``told`` which were confirmed since it was well, or was dead or not."""

    health: NodeHealth
    problem: Problem | None = None
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
class _Record:
    """Failures that are not forgotten. ``until`` the end of the quarantine."""

    times: int = 0
    until: float = 0.0


@dataclass(slots=True)
class Detection:
    """All nodes, and what is wrong with them. ``domains_of`` paths of the domains of a node, outermost first."""

    spec: RecoverySpec
    domains_of: Callable[[str], Sequence[Path]]
    _nodes: dict[str, _Node] = field(default_factory=dict)
    _failing: dict[str, _Node] = field(default_factory=dict)
    _gone: dict[str, float] = field(default_factory=dict)
    _records: dict[str, _Record] = field(default_factory=dict)
    _by_pods: dict[str, Problem] = field(default_factory=dict)
    """What is wrong with nodes by their pods."""
    _domains: dict[str, tuple[Path, ...]] = field(default_factory=dict)
    """Domains of nodes that have a problem, as they were when it began: a deleted node tells none any more."""
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
            known = self._nodes[health.name] = _Node(health)
            self._gone.pop(health.name, None)
        known.health = health
        self._judge(known, now)

    def gone(self, name: str, uid: str, now: float) -> None:
        """A node was deleted."""
        known = self._nodes.get(name)
        if known is None or (uid and known.health.uid != uid):
            return
        del self._nodes[name]
        self._domains.pop(name, None)
        if not known.dead or known.fresh:  # for less than that pods stay that say so
            self._gone[name] = now
        self._failing.pop(name, None)

    def pods_tell(self, problems: Mapping[str, Problem], now: float) -> None:
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

    def due(self, now: float) -> list[Failure]:
        """Return what has failed for long enough by now, each failure once."""
        ripe = [name for name, node in self._failing.items() if self._ripe(node, now)]
        if not ripe and not self._gone:
            self.held = "" if not self._failing else self.held
            return []
        self.held = self._cut_off()
        if self.held:
            return []
        gone, self._gone = self._gone, {}
        failures: list[Failure] = []
        left = dict.fromkeys(sorted(ripe))
        fresh, sizes = self._fresh(), self._sizes() if len(self._failing) > 1 else {}
        while left:
            name = next(iter(left))
            failure = self._as_domain(name, fresh, sizes) or self._single(name)
            for one in failure.nodes:
                left.pop(one, None)
                self._confirm(one, now)
                for path in self._domains.get(one, ()):
                    fresh.get(path, set()).discard(one)
            failures.append(failure)
        failures += [
            Failure(Cause.DELETED, f"node {name} was deleted", (name,), at) for name, at in sorted(gone.items())
        ]
        return failures

    def next_due(self) -> float | None:
        """Return when `due` must be asked next."""
        waits = [node.since + self.spec.debounce for node in self._failing.values() if node.fresh]
        return min(waits, default=None) if not self.held else None

    def problem(self, name: str) -> Problem | None:
        """Return what is wrong with a node now; one that is not there was deleted."""
        known = self._nodes.get(name)
        return known.problem if known is not None else Problem(Cause.DELETED, "was deleted")

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

    def _judge(self, node: _Node, now: float) -> None:
        name = node.health.name
        before, node.problem = node.problem, problem_of(node.health, self.spec) or self._by_pods.get(name)
        if node.problem is None:
            node.told = set()
            self._failing.pop(name, None)
            self._domains.pop(name, None)
        elif before is None or before.cause is not node.problem.cause:
            dead = node.problem.cause.dead
            if before is None or before.cause.dead != dead:
                node.since, node.told = now, set()
            elif not dead and node.told:
                node.since = now
            # Else it goes on: not ready and unreachable are the same failure, and of what does not kill a node one
            # thing may come and go while another lasts.
            self._failing[name] = node
            self._domains.setdefault(name, tuple(self.domains_of(name)))

    def _ripe(self, node: _Node, now: float) -> bool:
        return node.fresh and node.since + self.spec.debounce <= now

    def _confirm(self, name: str, now: float) -> None:
        node = self._failing[name]
        assert node.problem is not None
        node.told.add(node.problem.cause)
        if node.problem.cause is Cause.SCALE_DOWN:
            return  # nothing is wrong with it, if it stays after all
        record = self._records.setdefault(name, _Record())
        record.times += 1
        record.until = now + self.spec.quarantine * 2 ** min(MOST_DOUBLINGS, record.times - 1)

    def _cut_off(self) -> str:
        dead = sum(node.dead for node in self._failing.values())
        total = len(self._nodes) + len(self._gone)
        dead += len(self._gone)
        if total < 3 or dead <= self.spec.hold_above * total:
            return ""
        return f"{dead} of {total} nodes are not ready: nothing is moved while that is so, as this side may be cut off"

    def _single(self, name: str) -> Failure:
        node = self._failing[name]
        assert node.problem is not None
        return Failure(node.problem.cause, f"node {name} {node.problem.text}", (name,), node.since)

    def _as_domain(self, name: str, fresh: Mapping[Path, set[str]], sizes: Mapping[Path, int]) -> Failure | None:
        """Return the failure of the outermost domain of a node of which most nodes failed; None where there is none.

        ``fresh`` dead nodes that were not told of, by domain; ``sizes`` how many nodes each domain has.
        """
        for path in self._domains.get(name, ()):
            inside, size = fresh.get(path, set()), sizes.get(path, 0)
            if name not in inside:
                return None
            if len(inside) > 1 and len(inside) > self.spec.domain_share * size and size < len(self._nodes):
                since = min(self._failing[one].since for one in inside)
                text = f"{'/'.join(path)} failed: {len(inside)} of its {size} nodes are not ready"
                return Failure(Cause.DOMAIN, text, tuple(sorted(inside)), since)
        return None

    def _fresh(self) -> dict[Path, set[str]]:
        """Return the dead nodes that were not told of, by each of their domains."""
        found: dict[Path, set[str]] = {}
        for name, node in self._failing.items():
            if node.dead and node.fresh:
                for path in self._domains.get(name, ()):
                    found.setdefault(path, set()).add(name)
        return found

    def _sizes(self) -> Mapping[Path, int]:
        sizes: dict[Path, int] = {}
        for name in self._nodes:
            for path in self._domains.get(name) or self.domains_of(name):
                sizes[path] = sizes.get(path, 0) + 1
        return sizes
