"""An observed engine: listeners get its calls, what it queries during a call, and its results.

All inputs that could make two engines differ go through this module. These are the calls with their times, clock
readings that end a step, owners that the engine queries during a call, and answers of plugins. An engine without
listeners is a plain one, at no extra cost.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from topo_scheduler.api.config import Configuration
from topo_scheduler.api.devices import ResourceClaim
from topo_scheduler.api.groups import GroupApi
from topo_scheduler.api.objects import DisruptionBudget, Node, PartialObject, Pod
from topo_scheduler.kube.reading.sinks import Deleted
from topo_scheduler.kube.reading.storage import StoreSink, store_sinks
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.scheduling.extensions.extension import PluginError, PluginGuard
from topo_scheduler.scheduling.extensions.registry import Extensions
from topo_scheduler.scheduling.instructions import BindOutcome, EvictionOutcome, Instruction, PodRef
from topo_scheduler.scheduling.intake.arrivals import Resolve
from topo_scheduler.scheduling.intake.understand import Lineage
from topo_scheduler.scheduling.reserving.replacements import ReservedSeat
from topo_scheduler.state.devices.claim_writes import ClaimWrite
from topo_scheduler.state.pods.pod_groups import GroupKey, PodGroup, Serving
from topo_scheduler.state.storage.storage_objects import VolumeWrite

log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class ObservedCall:
    """One call.

    Attributes:
        name: name of the method.
        arguments: arguments without the clock.
        owners: pods whose owners the engine queried, with the answer; None where they were unknown.
        answers: answers of plugins, or their failures.
        clock: readings of the clock.
        out: the resulting instructions.
        raised: the exception with which the call ended; empty for none.
    """

    name: str
    arguments: Sequence[Any]
    owners: list[tuple[Pod, Lineage | None]] = field(default_factory=list)
    answers: list[object] = field(default_factory=list)
    clock: list[float] = field(default_factory=list)
    out: Sequence[Instruction] = ()
    raised: str = ""


class CallListener(Protocol):
    """A listener. It must be fast, because decisions wait for it. A listener that raises gets no further calls."""

    def engine_made(self, engine: Engine) -> None:
        """Note a new engine, which has no state yet."""

    def call_starts(self, name: str, arguments: Sequence[Any]) -> None:
        """Note that the engine is about to be called."""

    def call_ended(self, call: ObservedCall) -> None:
        """Note that a call has ended."""

    def ends(self) -> None:
        """Note that the engine gets no further calls."""

    def listener_failed(self, error: Exception) -> None:
        """Note that this listener raised an exception, and gets no further calls of this engine."""


class CallNotifier:
    """Passes the calls of one engine to its listeners."""

    def __init__(self, resolve: Resolve, epoch: float, listeners: Sequence[CallListener]) -> None:
        self.epoch = epoch
        self._listeners = list(listeners)
        self.open: ObservedCall | None = None
        """The call in progress. Calls of the engine's own methods within it are part of it."""
        self._owners = resolve
        self.resolve: Resolve = self._resolve
        """The function that the engine gets; always the same object."""

    def _resolve(self, pod: Pod) -> Lineage | None:
        lineage = self._owners(pod)
        if self.open is not None:
            self.open.owners.append((pod, lineage))
        return lineage

    def observe(self, name: str, arguments: Sequence[Any], work: Callable[[ObservedCall], T]) -> T:
        """Make a call and notify the listeners."""
        self.notify_all(lambda listener: listener.call_starts(name, arguments))
        call = self.open = ObservedCall(name, arguments)
        try:
            result = work(call)
            if isinstance(result, list):
                call.out = result
            return result
        except Exception as error:
            call.raised = f"{type(error).__name__}: {error}"
            raise
        finally:
            self.open = None
            self.notify_all(lambda listener: listener.call_ended(call))

    def notify_all(self, notify: Callable[[CallListener], None]) -> None:
        """Notify each listener. A failure of a listener does not stop scheduling."""
        for listener in tuple(self._listeners):
            try:
                notify(listener)
            except Exception as error:
                self._listeners.remove(listener)
                log.exception("%s failed, and gets no more calls in this term", type(listener).__name__)
                listener.listener_failed(error)


class RecordingGuard:
    """A plugin guard that records the answers of plugins."""

    def __init__(self, inner: PluginGuard, notifier: CallNotifier) -> None:
        self.inner = inner
        self._notifier = notifier

    def call(self, plugin: str, point: str, work: Callable[[], T]) -> T:
        """Make a call and record its result."""
        try:
            answer = self.inner.call(plugin, point, work)
        except PluginError as error:
            self._note(error)
            raise
        self._note(answer)
        return answer

    def begin(self) -> None:
        """Start a decision."""
        self.inner.begin()

    def pardon(self) -> None:
        """Forget failures, because the configuration changed."""
        self.inner.pardon()

    def _note(self, answer: object) -> None:
        if self._notifier.open is not None:
            self._notifier.open.answers.append(answer)


class ObservedEngine(Engine):
    """An engine with listeners. It has each recorded method of the engine once more; iterators become lists."""

    def __init__(
        self,
        config: Configuration,
        resolve: Resolve,
        extensions: Extensions | None,
        epoch: float,
        listeners: Sequence[CallListener],
    ) -> None:
        self.notifier = CallNotifier(resolve, epoch, listeners)
        super().__init__(config, self.notifier.resolve, extensions, epoch)
        guard = self.extensions.guard
        self.extensions.guard = RecordingGuard(
            guard.inner if isinstance(guard, RecordingGuard) else guard, self.notifier
        )
        self.notifier.notify_all(lambda listener: listener.engine_made(self))

    # ------------------------------------------------------------ observed calls, as the engine defines them

    def configure(self, config: Configuration) -> None:
        self._observe(super().configure, config)

    def nodes_applied(self, nodes: Iterable[Node], now: float) -> None:
        self._observe(super().nodes_applied, list(nodes), now)

    def node_deleted(self, name: str, uid: str) -> None:
        self._observe(super().node_deleted, name, uid)

    def namespaces_applied(self, namespaces: Iterable[PartialObject]) -> None:
        self._observe(super().namespaces_applied, list(namespaces))

    def namespace_leaves(self, name: str, uid: str) -> None:
        self._observe(super().namespace_leaves, name, uid)

    def namespace_deleted(self, name: str) -> None:
        self._observe(super().namespace_deleted, name)

    def budgets_applied(self, budgets: Iterable[DisruptionBudget]) -> None:
        self._observe(super().budgets_applied, list(budgets))

    def budget_deleted(self, namespace: str, name: str) -> None:
        self._observe(super().budget_deleted, namespace, name)

    def budgets_known(self) -> None:
        self._observe(super().budgets_known)

    def may_preempt(self, ready: bool = True) -> None:
        self._observe(super().may_preempt, ready)

    def pods_applied(self, pods: Collection[Pod], now: float) -> None:
        self._observe(super().pods_applied, list(pods), now)

    def pod_deleted(self, uid: str, now: float) -> None:
        self._observe(super().pod_deleted, uid, now)

    def pods_reported(self, pods: Collection[Pod], now: float) -> None:
        self._observe(super().pods_reported, list(pods), now)

    def defer_gpu_tables(self) -> None:
        self._observe(super().defer_gpu_tables)

    def gpu_tables_ready(self, kind: int, weights: Sequence[int]) -> None:
        self._observe(super().gpu_tables_ready, kind, list(weights))

    def seats_kept(self, migration: str, seats: Sequence[ReservedSeat]) -> None:
        self._observe(super().seats_kept, migration, list(seats))

    def spares_avoid(self, nodes: Sequence[str]) -> None:
        self._observe(super().spares_avoid, list(nodes))

    def seat_taken(self, migration: str, pod: str, by: PodRef, origin: str, node: str) -> None:
        self._observe(super().seat_taken, migration, pod, by, origin, node)

    def moved_for(self, pods: Sequence[str], workload: str, namespace: str, until: float, now: float) -> None:
        self._observe(super().moved_for, list(pods), workload, namespace, until, now)

    def search_wanted(self) -> None:
        self._observe(super().search_wanted)

    def groups_applied(self, groups: Iterable[PodGroup], now: float) -> None:
        self._observe(super().groups_applied, list(groups), now)

    def group_deleted(self, key: GroupKey, uid: str, now: float) -> None:
        self._observe(super().group_deleted, key, uid, now)

    def groups_served(self, api: GroupApi, serving: Serving, requested_at: float, now: float) -> None:
        self._observe(super().groups_served, api, serving, requested_at, now)

    def groups_remembered(self, api: GroupApi, now: float) -> None:
        self._observe(super().groups_remembered, api, now)

    def owner_changed(self, uid: str, now: float) -> None:
        self._observe(super().owner_changed, uid, now)

    def reread(self, now: float, clock: Callable[[], float]) -> None:
        self._observe_timed(super().reread, now, clock)

    def bind_finished(self, uid: str, outcome: BindOutcome, message: str, now: float) -> None:
        self._observe(super().bind_finished, uid, outcome, message, now)

    def rehearsed(self, uid: str, outcome: BindOutcome, message: str, now: float) -> None:
        self._observe(super().rehearsed, uid, outcome, message, now)

    def volumes_written(self, uid: str, done: Iterable[tuple[VolumeWrite, str]], problem: str) -> None:
        self._observe(super().volumes_written, uid, list(done), problem)

    def claims_written(
        self, uid: str, done: Iterable[tuple[ClaimWrite, ResourceClaim]], problem: str, now: float
    ) -> None:
        self._observe(super().claims_written, uid, list(done), problem, now)

    def eviction_finished(self, uid: str, outcome: EvictionOutcome, message: str, now: float) -> None:
        self._observe(super().eviction_finished, uid, outcome, message, now)

    def rollback_refused(self, uid: str, message: str, now: float) -> None:
        self._observe(super().rollback_refused, uid, message, now)

    def bind_hangs(self, uid: str, now: float) -> None:
        self._observe(super().bind_hangs, uid, now)

    def bind_recalled(self, uid: str, waited: bool, now: float) -> None:
        self._observe(super().bind_recalled, uid, waited, now)

    def may_bind(self, uid: str) -> str:
        return self._observe(super().may_bind, uid)

    def step(self, now: float, clock: Callable[[], float], budget: float = 0.005) -> list[Instruction]:
        return self._observe_timed(super().step, now, clock, budget)

    # ------------------------------------------------------------ inside

    def _observe(self, method: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Make a call and notify the listeners, unless it is part of another call."""
        if self.notifier.open is not None:
            return method(*arguments, **named)
        return self.notifier.observe(method.__name__, arguments, lambda _: method(*arguments, **named))

    def _observe_timed(
        self,
        method: Callable[Concatenate[float, Callable[[], float], P], T],
        now: float,
        clock: Callable[[], float],
        *arguments: P.args,
        **named: P.kwargs,
    ) -> T:
        """Make a call that gets a clock, and record the readings of the clock as well."""
        if self.notifier.open is not None:
            return method(now, clock, *arguments, **named)

        def timed(call: ObservedCall) -> T:
            def read() -> float:
                call.clock.append(clock())
                return call.clock[-1]

            return method(now, read, *arguments, **named)

        return self.notifier.observe(method.__name__, (now, *arguments), timed)


def new_engine(
    config: Configuration,
    resolve: Resolve,
    extensions: Extensions | None,
    epoch: float,
    listeners: Sequence[CallListener] = (),
) -> Engine:
    """Return a plain engine, or an observed one if there are listeners."""
    if not listeners:
        return Engine(config, resolve, extensions, epoch)
    return ObservedEngine(config, resolve, extensions, epoch, listeners)


class _ObservedSink:
    """Observes changes of storage, which do not go through methods of the engine."""

    def __init__(self, sink: StoreSink[Any, Any], notifier: CallNotifier) -> None:
        self.resource = sink.resource
        self._sink = sink
        self._notifier = notifier

    def applied(self, objects: Sequence[Any]) -> None:
        """Pass on objects that exist now."""
        self._notifier.observe(
            "storage_applied", [self.resource.plural, objects], lambda _: self._sink.applied(objects)
        )

    def deleted(self, references: Sequence[Deleted]) -> None:
        """Pass on objects that no longer exist."""
        arguments = [self.resource.plural, references]
        self._notifier.observe("storage_deleted", arguments, lambda _: self._sink.deleted(references))

    def synced(self) -> None:
        """Pass on that a list is complete."""
        self._notifier.observe("storage_synced", [self.resource.plural], lambda _: self._sink.synced())

    def refused(self) -> None:
        """Pass on that the API server refuses to list the kind."""
        self._notifier.observe("storage_refused", [self.resource.plural], lambda _: self._sink.refused())


def sinks_of_storage(engine: Engine, changed: Callable[[], None]) -> Sequence[StoreSink[Any, Any] | _ObservedSink]:
    """Return the sinks for objects of storage, observed if the engine is."""
    world = engine.world
    sinks = store_sinks(world.around.storage, world.inventory, changed, world.numa_zones)
    return [_ObservedSink(sink, engine.notifier) for sink in sinks] if isinstance(engine, ObservedEngine) else sinks
