"""Recovery as a state machine without I/O: changes of nodes and Migrations go in, instructions come out.

The engine knows the pods. Recovery reads its state, and sets the seats to hold, between two steps of the engine.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial

import msgspec

from topo_scheduler.api.migrations import Migration, MigrationOwner, MigrationWrite
from topo_scheduler.api.recovery import RecoverySpec
from topo_scheduler.recovery.core.healing import Healing
from topo_scheduler.recovery.core.migrations import Migrations
from topo_scheduler.recovery.detection.absent_nodes import AbsentNodes
from topo_scheduler.recovery.detection.failure_detection import Detection, Path
from topo_scheduler.recovery.detection.lost_gpus import LostGPUs
from topo_scheduler.recovery.detection.pod_failures import PodFailures
from topo_scheduler.recovery.model.barrier import Guarded, failure_of
from topo_scheduler.recovery.model.instructions import (
    CreateMigration,
    DeleteMigration,
    FindNode,
    MigrationRequest,
    RecoveryInstruction,
    Warn,
    WriteStatus,
)
from topo_scheduler.recovery.optimisation.defragmentation import Defragmenting
from topo_scheduler.recovery.optimisation.improvement import Improving
from topo_scheduler.recovery.optimisation.largest_block import BlockEnlarging
from topo_scheduler.scheduling.instructions import PodRef
from topo_scheduler.scheduling.scheduler_view import SchedulerControl, SchedulerView


class Recovery:
    """Detection of failures, and their Migrations from the failure to the end.

    Changes of nodes go to ``detection``, answers about nodes that are not listed to ``absent_nodes``, and what concerns
    one Migration only to ``migrations``.
    """

    def __init__(
        self,
        view: SchedulerView,
        control: SchedulerControl,
        spec: RecoverySpec,
        epoch: float,
        pod_failures: PodFailures | None = None,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """``epoch`` is the offset of the times that are passed to seconds since the epoch.

        ``pod_failures`` are those so far. ``clock`` returns seconds and measures how long a step takes; if it stands
        still, a step does all its work at once.
        """
        self._view = view
        self._control = control
        self.pod_failures = pod_failures or PodFailures(view.scheduler_name, spec.pod_failures, epoch, view.decided)
        self.lost_gpus = LostGPUs(view)
        self.detection = Detection(spec, self._domains_of)
        self.absent_nodes = AbsentNodes(view, self.detection)
        self.migrations = Migrations(view, control, self.absent_nodes, spec, epoch, clock)
        self.healing = Healing(view, epoch, self.migrations.moved_pods, self.migrations.fresh_name)
        context = self.migrations.context
        searches = (Defragmenting(context, clock), BlockEnlarging(context, clock), Improving(context, clock))
        self._searches = [(search, Guarded(f"{type(search).__name__} of recovery", clock)) for search in searches]
        self._healed = Guarded("healing of failed nodes", clock)
        self._out: list[RecoveryInstruction] = []
        self._held = self._absence = ""
        self._avoided: frozenset[str] = frozenset()
        self._stepped = 0.0

    # ------------------------------------------------------------ input

    def configure(self, spec: RecoverySpec, now: float) -> None:
        """Apply a changed configuration."""
        self.migrations.context.spec = spec
        self.pod_failures.configure(spec.pod_failures)
        if not spec.unhealthy_gpus:
            self.lost_gpus = LostGPUs(self._view)
        self.detection.configure(spec, now)

    def forget_unknown_nodes(self) -> None:
        """Forget the nodes that the engine does not know. If they have pods, the API server is asked for them."""
        for name in self.detection.names() - self._view.nodes.row_of.keys():
            self.detection.forget(name)

    def migration_seen(self, migration: Migration, now: float) -> None:
        """Handle a Migration that appeared or changed; if that raises, skip the Migration."""
        self._guarded(migration.key, partial(self.migrations.seen, migration, now))

    def _guarded(self, key: str, handle: Callable[[], None]) -> None:
        """Handle a Migration; if that raises, skip it."""
        try:
            handle()
        except Exception as error:
            self._out += failure_of(f"Migration {key}", error, namespace=key.partition("/")[0])

    def wrote(
        self, request: MigrationRequest, outcome: MigrationWrite, message: str, migration: Migration | None, now: float
    ) -> None:
        """Handle the result of a write; ``migration`` is the object now, if the server returned it."""
        match request:
            case CreateMigration():
                self._out += self.healing.created(request, outcome, message, now)
                self._guarded(request.key, partial(self.migrations.created, request.key, migration, now))
                if migration is None and self.migrations.context.intended.pop(request.key, None) is not None:
                    text = f"Migration {request.key} is not created: {message or outcome.value}"
                    self._out.append(Warn(text, request.namespace))
            case WriteStatus():
                self.migrations.written(request, outcome, message, migration, now)
            case DeleteMigration():
                self.migrations.deleted(request.key, outcome, message, now)

    def learned(self, uids: Sequence[str]) -> None:
        """Handle the end of a `LearnPods`: the engine knows these pods, or they are gone."""
        self.migrations.learned(uids)
        self.healing.learned(uids)

    def awaits(self, pod: PodRef) -> bool:
        """Return whether a Migration, or a failed node, waits until a pod was read."""
        return self.migrations.context.index.is_read(pod.uid) or self.healing.awaits(pod)

    def holds_resources(self, uid: str) -> bool:
        """Return whether a pod holds resources of a node."""
        return self._view.entry(uid) is not None

    def owners_read(self, migration: str, owners: Sequence[MigrationOwner]) -> None:
        """Handle newly read topmost owners of a Migration's pods: the status keeps them for a later leader."""
        if (tracked := self.migrations.context.tracked.get(migration)) is not None:
            tracked.owners = owners

    def take_changed(self) -> dict[str, Migration | None]:
        """Return the Migrations that changed since the last call, by namespace and name; None for those that ended."""
        return self.migrations.context.take_changed()

    def release_all(self) -> None:
        """Release all seats, as recovery is turned off. The objects stay as they are."""
        for key in self.migrations.context.tracked:
            self.migrations.context.release(key)
        self._avoid_spares(frozenset())

    # ------------------------------------------------------------ steps

    def step(self, now: float) -> list[RecoveryInstruction]:
        """Return the instructions that are due now. Cheap if nothing failed and nothing moves."""
        self._stepped = now
        self._out += map(FindNode, self.absent_nodes.step(now))
        if self.absent_nodes.held != self._absence:
            self._absence = self.absent_nodes.held
            self._out += [Warn(self._absence)] if self._absence else []
        lost = self.lost_gpus.problems() if self.detection.spec.unhealthy_gpus else {}
        self.detection.set_pod_problems({**lost, **self.pod_failures.problems(now)}, now)
        self._avoid_spares(self.detection.avoided(now))
        self.healing.failed(self.detection.due(now), self.migrations.interference.due(now))
        if self.detection.held != self._held:
            self._held = self.detection.held
            self._out.append(Warn(self._held or "most nodes are ready again: failures are healed as before"))
        created = self._healed.run(lambda: self.healing.step(now), now)
        coming = self.healing.coming()
        for search, guarded in self._searches:
            created += guarded.run(partial(search.step, now), now)
        out, self._out = [*self._out, *created, *self.migrations.step(now, coming)], []
        return [self._to_send(instruction) for instruction in out]

    def next_due(self) -> float | None:
        """Return when `step` must be called next if nothing happens before.

        That may be in the past: a step may take longer than the work that it leaves to the next one can wait.
        """
        now = self._stepped
        times = (
            self.absent_nodes.next_due(),
            self.detection.next_due(),
            self.pod_failures.next_due(),
            self._healed.not_before(self.healing.next_due()),
            *(guarded.not_before(search.next_due(now)) for search, guarded in self._searches),
            self.migrations.next_due(now),
            self.migrations.interference.next_due(),
        )
        return min((at for at in times if at is not None), default=None)

    def _to_send(self, instruction: RecoveryInstruction) -> RecoveryInstruction:
        """Return an instruction as it is carried out.

        A Migration that it creates names this scheduler, so that no other one takes it up.
        """
        if not isinstance(instruction, CreateMigration):
            return instruction
        self.migrations.creating(instruction.key)
        spec = msgspec.structs.replace(instruction.spec, scheduler_name=self._view.scheduler_name)
        return replace(instruction, spec=spec)

    def _avoid_spares(self, avoided: Collection[str]) -> None:
        """Have the engine keep no avoided nodes as spare nodes."""
        if self._view.held.keeps_spares and avoided != self._avoided:
            self._avoided = frozenset(avoided)
            self._control.spares_avoid(sorted(avoided))

    def _domains_of(self, node: str) -> list[Path]:
        path = self._view.leaf_of(node)
        return [path[:depth] for depth in range(1, len(path) + 1)] if path else []
