"""What the test checks while a cluster lives: the API's objects, and what the daemon believes of them."""

import logging
import traceback
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Final

from tests.attacks import hostile
from tests.breaking.invariants import HALF_SECONDS, believed, no_gpu_twice, true
from tests.breaking.world import Process, World, owner_of
from topo_scheduler.api.groups import GroupApi
from topo_scheduler.kube.connection.resources import NODES, PODS
from topo_scheduler.kube.reading.decoding import Codec
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.scheduling.instructions import Bind
from topo_scheduler.simulation.apiserver import Json, StoreEvent
from topo_scheduler.state.pods.pod_groups import Serving

PASSED_OVER_SECONDS: Final = 30.0
"""How long a pod of another tenant may be pending though a scheduler that just began would bind it."""
CATCHES_UP_SECONDS: Final = 150.0
RIGHT_TO_EVICT: Final = frozenset({"Preempted"})
"""Reasons of events on pods that were preempted for another workload. None has a priority here."""


@dataclass
class _Gang:
    size: int
    created: float
    bound: dict[str, bool] = field(default_factory=dict)
    """By pod that is there."""
    complete: bool = False
    half_since: float = -1.0


@dataclass
class Watch:
    """Follows the objects of a world. ``violations`` is what must not happen, in words."""

    world: World
    violations: list[str] = field(default_factory=list)
    level: int = logging.ERROR
    """From which on what is logged is a violation; an internal error always is."""
    waits: list[float] = field(default_factory=list)
    """Seconds from a workload's creation to the bind of its last pod, of all that are not hostile."""
    longest_half: float = 0.0
    looks: int = 0
    _gangs: dict[str, _Gang] = field(default_factory=dict)
    _pods: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.world.store.observe(self._notice)
        logging.getLogger("topo_scheduler").addHandler(_Errors(self.violations, self.level))

    def _notice(self, table: str, event: StoreEvent) -> None:
        record = event.after if event.after is not None else event.before
        assert record is not None
        if record.key.namespace == hostile.NAMESPACE:
            return
        now = self.world.loop.time()
        if table == "jobs.batch":
            if event.after is None:
                self._gangs.pop(record.key.name, None)
            else:
                size = int(event.after["spec"].get("parallelism", 1))
                self._gangs.setdefault(record.key.name, _Gang(size, now))
        elif table == "pods":
            self._pod(record.obj, event.after is not None, now)
        elif table == "events.events.k8s.io" and event.before is None and record["reason"] in RIGHT_TO_EVICT:
            self.violations.append(f"at {now:.0f} s: {record['note']}")

    def _pod(self, pod: Json, exists: bool, now: float) -> None:
        gang = self._gangs.get(owner_of(pod))
        if gang is None:
            return
        uid = str(pod["metadata"]["uid"])
        if exists and not pod["metadata"].get("deletionTimestamp"):
            gang.bound[uid] = bool(pod["spec"].get("nodeName"))
        else:
            gang.bound.pop(uid, None)
        bound = sum(gang.bound.values())
        if bound >= gang.size and not gang.complete:
            gang.complete = True
            self.waits.append(now - gang.created)
        half = 0 < bound < gang.size and not gang.complete
        if gang.half_since >= 0:
            self.longest_half = max(self.longest_half, now - gang.half_since)
        gang.half_since = (gang.half_since if gang.half_since >= 0 else now) if half else -1.0

    def excuse(self) -> None:
        """Count from now on how long gangs are partially bound: what happened before was a fault's doing."""
        for gang in self._gangs.values():
            if gang.half_since >= 0:
                gang.half_since = self.world.loop.time()

    def look(self, process: Process) -> None:
        """Look at what holds at every moment."""
        self.looks += 1
        now = self.world.loop.time()
        no_gpu_twice(self.world)
        for name, gang in self._gangs.items():
            if gang.half_since >= 0 and now - gang.half_since > HALF_SECONDS:
                self.violations.append(f"at {now:.0f} s: {name} partially bound for {now - gang.half_since:.0f} s")
        term = process.daemon.term
        if not process.leads or term is None:
            self.violations.append(f"at {now:.0f} s: the daemon does not lead")

    def passed_over(self, process: Process) -> None:
        """Look whether a scheduler that just began would bind pods of other tenants that have been pending for long."""
        term, now = process.daemon.term, self.world.loop.time()
        if term is None or believed(term.engine) != true(self.world):
            return  # its watches broke a moment ago
        waiting = [
            name
            for name, gang in self._gangs.items()
            if not gang.complete and now - gang.created > PASSED_OVER_SECONDS and not any(gang.bound.values())
        ]
        if not waiting:
            return
        engine = _fresh(self.world, process, set(waiting), now)
        would = Counter(
            name
            for instruction in engine.step(now, lambda: 0.0)
            if isinstance(instruction, Bind)
            for name in waiting
            if instruction.pod.name.startswith(f"{name}-")
        )
        held = term.engine.reserving.holds or term.engine.preempting.replacements
        if would and not held:
            self.violations.append(f"at {now:.0f} s: pending though there is room: {dict(would)}")


def _fresh(world: World, process: Process, waiting: set[str], now: float) -> Engine:
    """Return an engine that knows the nodes, what runs, and these workloads."""
    term = process.daemon.term
    assert term is not None
    engine = Engine(process.daemon.configuration, term._resolve, epoch=term.engine.world.epoch)
    for api in GroupApi:
        engine.groups_served(api, Serving.ABSENT, now, now)
    engine.budgets_known()
    nodes, pods = Codec(NODES), Codec(PODS)
    engine.nodes_applied([nodes.one(record.encoded()) for record in world.store.list("nodes")], now)
    chosen = [
        record
        for record in world.store.list("pods")
        if record["spec"].get("nodeName") or owner_of(record.obj) in waiting
    ]
    engine.pods_applied([pods.one(record.encoded()) for record in chosen], now)
    return engine


class _Errors(logging.Handler):
    """Takes what the daemon logs as an error, or as an internal one, for a violation."""

    def __init__(self, violations: list[str], level: int) -> None:
        super().__init__(logging.WARNING)
        self._found, self._level = violations, level
        self._times: dict[str, int] = defaultdict(int)

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.levelno >= self._level or "internal error" in text or record.exc_info:
            self._times[record.msg] += 1
            if self._times[record.msg] <= 3:
                error = record.exc_info[1] if record.exc_info else None
                why = "".join(traceback.format_exception(error)[-4:]) if error is not None else ""
                self._found.append(f"logged by {record.name}: {text[:300]} {why}")
