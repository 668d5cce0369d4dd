"""Runs recovery in the event loop of the daemon: gives it what is seen, and has its instructions carried out.

While recovery is on, kopf runs in an additional thread. If the definition of Migrations is not installed, the daemon
schedules on, logs that, and checks again from time to time.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cache, partial
from math import inf
from typing import Any, Final, NoReturn

from topo_scheduler.api.migrations import DEFINITION, Migration
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.recovery import RecoverySpec
from topo_scheduler.kube.connection.client import Client
from topo_scheduler.kube.connection.errors import KubeError, NotFound, with_remedy
from topo_scheduler.kube.connection.fair_slots import FairSlots
from topo_scheduler.kube.connection.outage import Outage
from topo_scheduler.kube.connection.waiting import set_or_due
from topo_scheduler.kube.reading.owners import OwnerDirectory
from topo_scheduler.kube.reading.sinks import Deleted
from topo_scheduler.kube.writing.events import EventRecorder
from topo_scheduler.kube.writing.migrations import MigrationWriter, Unreadable
from topo_scheduler.observability.metrics import Metrics
from topo_scheduler.recovery.controller.controller_reader import ControllerReader
from topo_scheduler.recovery.controller.disabled import Answer, malformed, not_ours, without_recovery
from topo_scheduler.recovery.controller.eviction_guard import EvictionGuard
from topo_scheduler.recovery.controller.handlers import (
    MigrationChanged,
    MigrationGone,
    MigrationsListed,
    NodeGone,
    Watcher,
    WatchFailed,
    WatchWorks,
)
from topo_scheduler.recovery.controller.instruction_executor import InstructionExecutor
from topo_scheduler.recovery.controller.kopf_session import WATCHED
from topo_scheduler.recovery.controller.migration_reader import MigrationReader
from topo_scheduler.recovery.controller.moved_owners import MovedOwners
from topo_scheduler.recovery.controller.pod_reader import PodReader
from topo_scheduler.recovery.core.machine import Recovery
from topo_scheduler.recovery.detection.node_health import NodeHealth
from topo_scheduler.recovery.detection.pod_failures import PodFailures
from topo_scheduler.recovery.model.instructions import (
    CountRecoveryFailure,
)
from topo_scheduler.recovery.model.ownership import NamedPods, answers_at, bound_pods, reason_not_ours
from topo_scheduler.scheduling.barrier import kind_of
from topo_scheduler.scheduling.pauses import doubled
from topo_scheduler.scheduling.scheduler_view import SchedulerControl, SchedulerView

log = logging.getLogger(__name__)

DEFINITION_CHECK_SECONDS: Final = 30.0
"""Seconds after which the runner checks again whether Migrations are defined."""
ANSWER_SECONDS: Final = 5.0
"""Seconds between lists of Migrations while recovery is off, to report that in their status."""
LIST_SECONDS: Final = 5.0
"""Longest wait for the first list of Migrations, before scheduling begins without the seats that they hold."""
MAX_DEATHS: Final = 5
"""Restarts of the thread after faults of its own within `DEATHS_WITHIN_SECONDS`, before it stays dead."""
DEATHS_WITHIN_SECONDS: Final = 600.0
LONGEST_RESTART_SECONDS: Final = 60.0
"""Longest pause before the thread is restarted: it lists all nodes."""
REST_FACTOR: Final = 3.0
"""Rest after a step, as a multiple of its time: each change of a pod or node causes a step, and tenants make many."""
LONGEST_REST_SECONDS: Final = 0.05
"""Longest of these rests: so much later at most is a failed node handled."""
EVICTIONS_IN_FLIGHT: Final = 16
EVICTIONS_IN_FLIGHT_OF_NAMESPACE: Final = 6
"""Evictions in flight, in all and per namespace, as webhooks may hang."""


@dataclass(eq=False)
class RecoveryRunner:
    """Recovery in one term of leadership.

    Args:
        client: connection to the API server.
        view: provides the state of the engine.
        control: holds the seats, and reads pods.
        spec: the configuration.
        gpu_resources: names of GPU resources.
        events: records events.
        metrics: metrics to update.
        owners: knows the controllers of pods.
        clock: returns seconds, as the engine uses them.
        epoch: offset of these to seconds since the epoch.
        start: starts a task that ends by itself, as part of the term.
        changed: called after the state of the engine changed.
    """

    client: Client
    view: SchedulerView
    control: SchedulerControl
    spec: RecoverySpec
    _: KW_ONLY
    gpu_resources: Sequence[str]
    events: EventRecorder
    metrics: Metrics
    owners: OwnerDirectory
    clock: Callable[[], float]
    epoch: float
    start: Callable[[Coroutine[Any, Any, None], str], None]
    changed: Callable[[], None]

    def __post_init__(self) -> None:
        self._writer = MigrationWriter(self.client)
        self._reader = MigrationReader(self._writer, self.start, self._read_migration, self._migration_missing)
        self._answered: dict[tuple[str, str], tuple[str, str]] = {}
        """Uid and version of the Migrations that need no answer, or have one, while recovery is off."""
        self._pods_of_round: Callable[[], NamedPods] = cache(partial(bound_pods, self.view))
        """Bound pods as they were in this round of answers: one pass over all pods, however many Migrations ask."""
        self._pod_failures = PodFailures(
            self.view.scheduler_name, self.spec.pod_failures, self.epoch, self.view.decided
        )
        self._wake = asyncio.Event()
        self._reconfigured = asyncio.Event()
        self._watcher: Watcher | None = None
        self._machine: Recovery | None = None
        self._connect()
        self._last_warning = ""
        self._deaths: list[tuple[float, bool]] = []
        """When the thread ended lately, and whether by a refusal of the API server."""
        self._dead = ""
        self._heard: dict[str, float] = {}
        """When the watch of each resource last showed a sign of life, in seconds of the monotonic clock."""
        self._unseen: dict[str, Outage] = {}
        """Failures of the watch of each resource."""

    def _connect(self) -> None:
        """Set up what reads pods and carries out instructions."""

        def machine() -> Recovery | None:
            return self._machine

        pods = PodReader(self.client, self.control, self.owners, self.clock, self.start, machine, self._wake.set)
        self._controllers = ControllerReader(self.client)
        self._moved_owners = MovedOwners(self.owners, self._controllers.read, self.start, self._wake.set)
        self._guard = EvictionGuard(self._moved_owners, machine)
        self._executor = InstructionExecutor(
            self.client,
            self._writer,
            pods,
            self._guard,
            FairSlots(EVICTIONS_IN_FLIGHT, EVICTIONS_IN_FLIGHT_OF_NAMESPACE),
            self.events,
            self.metrics,
            self.clock,
            self.start,
            machine,
            self._wake.set,
        )

    # ------------------------------------------------------------ calls of the term

    async def prepare(self) -> None:
        """Read all Migrations before the first decision, so that no workload takes the seats that they hold."""
        if not self.spec.enabled:
            return
        try:
            async with asyncio.timeout(LIST_SECONDS):
                await self._begin()
        except TimeoutError:
            log.warning(
                "scheduling without having read Migrations within %g s: nodes that they reserve may be used by other"
                " pods; the API server is slow, or other lines name a missing permission",
                LIST_SECONDS,
            )

    async def run(self) -> NoReturn:
        """Watch and heal whenever recovery is enabled, until cancelled."""
        while True:
            self._reconfigured.clear()
            if not self.spec.enabled:
                await self._answer_without_recovery()
            elif self._machine is None and not await self._begin():
                await self._pause(DEFINITION_CHECK_SECONDS)
            elif self._dead:
                await self._reconfigured.wait()
            else:
                await self._serve()

    def pods_applied(self, pods: Sequence[Pod]) -> None:
        """Handle pods that appeared or changed."""
        for pod in pods if self.spec.enabled else ():
            try:
                self._pod_failures.applied((pod,), self.clock())
            except Exception:  # the engine decides whether the pod is valid
                log.exception("pod %s can't be watched for failures", pod.key)

    def pods_deleted(self, uids: Iterable[str]) -> None:
        """Handle pods that are gone."""
        self._pod_failures.deleted(uids)

    def nodes_deleted(self, nodes: Iterable[Deleted]) -> None:
        """Handle nodes that are gone. kopf does not report those that were deleted while its watch was away."""
        if self._machine is not None:
            for node in nodes:
                self._machine.detection.gone(node.name, node.uid, self.clock())

    def owner_changed(self, uid: str) -> None:
        """Handle an owner that changed, or was deleted."""
        if self.needs_owner(uid):
            self._moved_owners.owner_changed(uid)
            self._wake.set()

    def needs_owner(self, uid: str) -> bool:
        """Return whether a Migration moves pods below an owner."""
        return self._moved_owners.needs(uid)

    def facts_changed(self) -> None:
        """Handle a change of pods or nodes."""
        if self._machine is not None:
            self._wake.set()

    def configure(self, spec: RecoverySpec) -> None:
        """Apply a changed configuration."""
        if spec != self.spec:
            self.spec = spec
            self._reconfigured.set()
            self._wake.set()

    def wrong(self) -> str:
        """Return the problem of the watching thread, or an empty string."""
        return self._dead or (self._watcher.wrong() if self._watcher is not None else "")

    def staleness(self) -> dict[str, float]:
        """Return for each watch of recovery the seconds since its last sign of life; empty while recovery is off."""
        if self._machine is None:
            return {}
        now = time.monotonic()
        return {resource: now - heard for resource, heard in self._heard.items()}

    @property
    def under_way(self) -> int:
        """Number of Migrations that are not over."""
        return len(self._machine.migrations) if self._machine is not None else 0

    # ------------------------------------------------------------ life cycle

    async def _begin(self) -> bool:
        """Read all Migrations; return whether their definition is installed."""
        self._pod_failures.configure(self.spec.pod_failures)
        machine = Recovery(self.view, self.control, self.spec, self.epoch, self._pod_failures, self.clock)
        try:
            await self._read_all(machine)
        except NotFound:
            self._warn_once(
                f"recovery is off: the definition {DEFINITION} is not installed; pods are scheduled all the same"
            )
            return False
        except KubeError as error:
            self._warn_once(f"recovery is off, as Migrations can't be listed: {with_remedy(error)}")
            return False
        self._last_warning = ""
        self._machine = machine
        self._heard.update(dict.fromkeys(WATCHED.values(), time.monotonic()))
        # The kernels of the search for relocations are compiled now, so that a failure does not wait for them.
        self.control.search_wanted()
        self.changed()
        self._step()
        log.info("recovery is on", extra={"migrations": len(machine.migrations), "dryRun": self.spec.dry_run})
        return True

    async def _read_all(self, machine: Recovery) -> set[str]:
        """Give each Migration to the machine, one after the other; return their namespaces and names."""
        keys: set[str] = set()
        async for migration in self._writer.each():
            if isinstance(migration, Unreadable):
                self._unreadable(migration)
            else:
                keys.add(migration.key)
                machine.migration_seen(migration, self.clock())
        return keys

    async def _answer_without_recovery(self) -> None:
        """While recovery is off, write to each Migration that no pod moves; until the configuration changes."""
        while not self._reconfigured.is_set():
            pause = ANSWER_SECONDS
            try:
                await self._answer_each()
            except NotFound:
                pause = DEFINITION_CHECK_SECONDS
            except KubeError as error:
                self._warn_once(
                    f"Migrations can't be listed, so that none reports that recovery is off: {with_remedy(error)}"
                )
            await self._pause(pause)
        self._reader.clear()
        self._answered.clear()

    async def _answer_each(self) -> None:
        """Answer the Migrations that have changed since their last answer.

        Only their identities are listed, and a few at a time are read: the runner keeps nothing that tenants write.
        """
        self._pods_of_round = cache(partial(bound_pods, self.view))
        listed: dict[tuple[str, str], tuple[str, str]] = {}
        async for meta in self._writer.identities():
            key, state = (meta.namespace, meta.name), (meta.uid, meta.resource_version)
            listed[key] = state
            if self._answered.get(key) != state:
                self._reader.changed(*key, *state)
        self._answered = {key: state for key, state in self._answered.items() if listed.get(key) == state}

    def _answer_one(self, migration: Migration | Unreadable) -> None:
        wall = self.epoch + self.clock()
        if isinstance(migration, Unreadable):
            if not migration.name:
                return  # nothing of it can be read
            key, state = (migration.namespace, migration.name), (migration.uid, migration.version)
            answer = malformed(migration, self.view.scheduler_name, wall)
        else:
            meta = migration.metadata
            key, state = (meta.namespace, meta.name), (meta.uid, meta.resource_version)
            # A pod may have been bound since this round began: no scheduler answers at once that there is none.
            at = answers_at(self.view, migration, first=False, bound=self._pods_of_round)
            if wall < at < inf:
                return  # the next round reads it again
            answer = None
            if -inf < at <= wall and (why := reason_not_ours(self.view, migration, bound=self._pods_of_round)):
                answer = not_ours(migration, why, self.view.scheduler_name, wall)
            elif at <= wall:
                answer = without_recovery(migration, self.view.scheduler_name, wall)
        if answer is None:
            self._answered[key] = state
        else:
            self._answer(answer)

    def _unreadable(self, unreadable: Unreadable) -> None:
        """Write to an invalid Migration what is wrong with it; the machine forgets an earlier version of it."""
        if self._machine is not None:
            self._machine.migrations.gone(f"{unreadable.namespace}/{unreadable.name}")
        answer = malformed(unreadable, self.view.scheduler_name, self.epoch + self.clock())
        if unreadable.name and answer is not None:
            self._answer(answer)

    def _answer(self, answer: Answer) -> None:
        for instruction in answer:
            self._executor.carry_out(instruction)

    async def _serve(self) -> None:
        """Watch until the configuration changes."""
        assert self._machine is not None
        self._machine.configure(self.spec, self.clock())
        self._watcher = Watcher(
            self.spec, tuple(self.gpu_resources), self.client.connection, self._wake.set, self._heard
        )
        self._watcher.start()
        try:
            while not self._reconfigured.is_set() and not self._watcher.wrong():
                self._wake.clear()
                began = self.clock()
                self._handle_messages()
                self._step()
                rest_until = (ended := self.clock()) + min(LONGEST_REST_SECONDS, REST_FACTOR * (ended - began))
                await set_or_due(self._wake, self._machine.next_due(), self.clock)
                if (rest := rest_until - self.clock()) > 0:
                    await asyncio.sleep(rest)
        finally:
            watcher, self._watcher = self._watcher, None
            wrong, refused = watcher.wrong(), watcher.refused
            await watcher.stop()
            self._reader.clear()
        if wrong:
            await self._restart(wrong, refused=refused)
        elif not self.spec.enabled:
            self._machine.release_all()
            self._machine = None
            self._moved_owners.clear()
            self.changed()
            log.info("recovery is off")

    async def _restart(self, wrong: str, *, refused: bool) -> None:
        """Restart after the end of the thread. After a few faults of its own it stays dead, and `/livez` fails.

        kopf also ends when the API server refuses its watch, for example after the definition of Migrations was
        deleted. A restart of the process would not help there.
        """
        now = self.clock()
        self._deaths = [*(death for death in self._deaths if now - death[0] < DEATHS_WITHIN_SECONDS), (now, refused)]
        faults = sum(not refused for _, refused in self._deaths)
        if faults > MAX_DEATHS:
            self._dead = wrong
            log.error("%s, for the %d. time: not restarting it", wrong, faults)
            return
        pause = doubled(2.0, len(self._deaths), LONGEST_RESTART_SECONDS)
        log.warning("%s; restarting it in %.0f s", wrong, pause)
        await self._pause(pause)
        machine = self._machine
        assert machine is not None
        try:
            self._read_unlisted(machine, await self._read_all(machine))
        except NotFound:
            machine.release_all()
            self._machine = None
            self._moved_owners.clear()
        except KubeError as error:
            log.warning("Migrations can't be listed: %s", with_remedy(error))
            return
        machine.forget_unknown_nodes()
        self.changed()

    async def _pause(self, seconds: float) -> None:
        await set_or_due(self._reconfigured, self.clock() + seconds, self.clock)

    def _warn_once(self, text: str) -> None:
        if text != self._last_warning:
            self._last_warning = text
            log.warning(text)

    def _handle_messages(self) -> None:
        machine, now = self._machine, self.clock()
        assert machine is not None and self._watcher is not None
        for message in self._watcher.take():
            try:
                match message:
                    case NodeHealth():
                        machine.detection.seen(message, now)
                    case NodeGone(name, uid):
                        machine.detection.gone(name, uid, now)
                    case MigrationChanged(namespace, name, uid, version):
                        if not machine.migrations.knows(f"{namespace}/{name}", uid, version):
                            self._reader.changed(namespace, name, uid, version)
                    case MigrationGone(namespace, name, uid):
                        self._reader.gone(namespace, name)
                        machine.migrations.gone(f"{namespace}/{name}", uid)
                    case MigrationsListed(keys):
                        self._read_unlisted(machine, keys)
                    case WatchFailed():
                        self._watch_failed(message, now)
                    case WatchWorks(resource):
                        if (seconds := self._unseen.setdefault(resource, Outage()).over(now)) is not None:
                            log.warning("recovery sees changes of %s again after %.0f s", resource, seconds)
            except Exception as error:
                log.exception("recovery skips an event that raised: %s", type(message).__name__)
                self._executor.carry_out(CountRecoveryFailure(kind_of(error)))
        if self._watcher.forget_unknown(self.view.nodes.row_of):
            machine.forget_unknown_nodes()

    def _read_migration(self, migration: Migration | Unreadable) -> None:
        """Handle a Migration that was read after a change."""
        if self._machine is None:
            if not self.spec.enabled:
                self._answer_one(migration)
            return
        if isinstance(migration, Unreadable):
            self._unreadable(migration)
        else:
            self._machine.migration_seen(migration, self.clock())
        self._wake.set()

    def _watch_failed(self, failed: WatchFailed, now: float) -> None:
        if not self._unseen.setdefault(failed.resource, Outage()).failed(now):
            return
        advice = f" (grant get, list and watch on {failed.resource} in the cluster)" if failed.code == 403 else ""
        log.warning(
            "recovery does not see changes of %s: %d %s%s", failed.resource, failed.code, failed.message, advice
        )

    def _read_unlisted(self, machine: Recovery, listed: Collection[str]) -> None:
        """Read the known Migrations that a list lacks: they are gone, or were created after it."""
        for key, uid, version in machine.migrations.unlisted(listed):
            namespace, name = key.split("/")
            self._reader.changed(namespace, name, uid, version)

    def _migration_missing(self, namespace: str, name: str, uid: str) -> None:
        if self._machine is not None:
            self._machine.migrations.gone(f"{namespace}/{name}", uid)
            self._wake.set()

    def _step(self) -> None:
        if self._machine is None:
            return
        self._guard.end_ownerless()
        for key, owners in self._moved_owners.take_read():
            self._machine.owners_read(key, owners)
        out = self._machine.step(self.clock())
        self._moved_owners.update(self._machine.take_changed())
        for instruction in out:
            self._executor.carry_out(instruction)
        if out:
            self.changed()  # seats may have been held or released
