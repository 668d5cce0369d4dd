"""A cluster in memory with an engine and a recovery machine over it, of which every write can be the last."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tests.helpers import EPOCH, SCHEDULER, Owner, controlled_by, make_pod, timestamp
from tests.scheduling.driver import Driver, configured, copies, fabric
from topo_scheduler.api.config import Configuration
from topo_scheduler.api.migration_reasons import MigrationReason
from topo_scheduler.api.migrations import (
    GROUP,
    KIND,
    VERSION,
    Migration,
    MigrationSpec,
    MigrationStatus,
    MigrationWrite,
    Phase,
)
from topo_scheduler.api.objects import ConditionStatus, Node, ObjectMeta, Pod, PodCondition
from topo_scheduler.api.recovery import RecoverySpec
from topo_scheduler.recovery.core.machine import Recovery
from topo_scheduler.recovery.detection.node_health import NodeHealth
from topo_scheduler.recovery.model.instructions import (
    CountRecoveryFailure,
    CreateMigration,
    DeleteMigration,
    EmitMigrationEvent,
    EvictPod,
    FindNode,
    LearnPods,
    PhaseDuration,
    RecoveryInstruction,
    Warn,
    WriteStatus,
)
from topo_scheduler.scheduling.instructions import BindOutcome, PodRef
from topo_scheduler.scheduling.scheduler_view import SchedulerView
from topo_scheduler.state.nodes.resources import GPU


class Killed(Exception):
    """The daemon is no more."""


@dataclass
class Kill:
    """Kills the daemon before or after its write of a number, counted from 0."""

    write: int = -1
    after: bool = False
    count: int = 0

    def around(self, do: Callable[[], Any]) -> Any:
        """Do a write, or be killed."""
        number, self.count = self.count, self.count + 1
        if number == self.write and not self.after:
            raise Killed
        result = do()
        if number == self.write:
            raise Killed
        return result


@dataclass
class World:
    """Nodes, pods, Migrations and controllers; and one daemon, which may be another one a moment later."""

    spec: RecoverySpec
    leaves: Mapping[str, int]
    config: str = "{}"
    kill: Kill = field(default_factory=Kill)
    kubelets_dead: set[str] = field(default_factory=set)
    blocked: set[str] = field(default_factory=set)
    """Uids of pods that a disruption budget keeps."""
    unreadable: set[str] = field(default_factory=set)
    """Uids of pods that the API server does not give out."""
    unlearned: list[LearnPods] = field(default_factory=list)
    """What could not be read."""
    clock: Callable[[], float] = lambda: 0.0
    """Tells recovery how long a step takes."""
    scheduler: str = SCHEDULER
    """Name of the daemon, and of the scheduler of the pods that appear."""
    controllers_stand: bool = False
    """Whether controllers make no replacements."""

    def __post_init__(self) -> None:
        self.node_objects: dict[str, Node] = {node.metadata.name: node for node in fabric(self.leaves)}
        self.extra: dict[str, dict[str, Any]] = {}
        """Further fields of the status of nodes."""
        self.migrations: dict[str, Migration] = {}
        self.chains: dict[str, Sequence[Owner]] = {}
        self.pods: dict[str, Pod] = {}
        self.evictions: list[tuple[str, bool]] = []
        self.emitted: list[RecoveryInstruction] = []
        self.revision = 0
        self.made = 0
        self.now = 0.0
        self.start()

    # ------------------------------------------------------------ the daemon

    def start(self) -> None:
        """A new daemon reads everything."""
        base = configured(self.config)
        config = Configuration(base.scheduler.model_copy(update={"scheduler_name": self.scheduler}), base.topology)
        self.d = self._driver(config)
        self.d.now = self.now
        self.d.chains = dict(self.chains)
        self.d.engine.budgets_known()
        for pod in self.pods.values():
            self.d.apply(copies([pod])[0])
        self.view = SchedulerView(self.d.engine)
        self.recovery = Recovery(self.view, self.d.engine, self.spec, EPOCH, clock=self.clock)
        for migration in self.migrations.values():
            self.recovery.migration_seen(copy_of(migration), self.now)
        for name in self.node_objects:
            self.tell_node(name)

    def _driver(self, config: Configuration) -> Driver:
        """Return an engine that knows all but the pods."""
        return Driver(copies_of(self.node_objects.values()), config)

    def run(self, seconds: float = 0.0, step: float = 1.0) -> None:
        """Let time pass; the daemon does what it does, and starts again when it is killed."""
        end = self.now + seconds
        while True:
            try:
                self.settle()
            except Killed:
                self.start()
                continue
            if self.now >= end:
                return
            self.now = self.d.now = min(end, self.now + step)

    def run_when_due(self, seconds: float, took: float) -> None:
        """Let time pass as the daemon does: it comes when that is due, and each step has taken ``took`` seconds."""
        end = self.now + seconds
        while self.now < end:
            self.settle()
            due = self.recovery.next_due()
            self.now = self.d.now = min(end, max(self.now + took, end if due is None else due))

    def settle(self) -> None:
        """Carry out everything there is to do now."""
        for _ in range(20_000):
            out = self.recovery.step(self.now)  # first: what Migrations hold is not free
            self.recovery.take_changed()  # the runner follows their owners
            for instruction in out:
                self.carry_out(instruction)
            self.d.step()
            moved = self._binds()
            if not out and not moved:
                return
        raise AssertionError(f"it never comes to rest: {out}")

    def _binds(self) -> bool:
        for uid in list(self.d.flight):
            bind = self.d.flight.pop(uid)
            if self.d.engine.may_bind(uid):
                self.d.engine.bind_finished(uid, BindOutcome.WITHDRAWN, "no", self.now)
                continue
            pod = self.pods.get(uid)
            if pod is None:
                self.d.engine.bind_finished(uid, BindOutcome.GONE, "gone", self.now)
                continue

            def write(pod: Pod = pod, bind: Any = bind) -> None:
                pod.spec.node_name = bind.node
                pod.status.conditions = [PodCondition("PodScheduled", "True")]
                pod.metadata.annotations |= bind.annotations

            self.kill.around(write)
            self.d.engine.bind_finished(uid, BindOutcome.BOUND, "", self.now)
            self.d.apply(copies([pod])[0])
            return True
        return False

    def carry_out(self, instruction: RecoveryInstruction) -> None:
        """Do what recovery wants done."""
        match instruction:
            case CreateMigration(namespace, name, spec):
                created = self.kill.around(lambda: self._create(namespace, name, spec))
                outcome = MigrationWrite.WRITTEN if created is not None else MigrationWrite.STALE
                self.recovery.wrote(instruction, outcome, "", created, self.now)
            case WriteStatus():
                written = self.kill.around(lambda: self._patch(instruction))
                kept = instruction.key in self.migrations
                missed = MigrationWrite.STALE if kept else MigrationWrite.GONE
                outcome = MigrationWrite.WRITTEN if written is not None else missed
                self.recovery.wrote(instruction, outcome, "", written, self.now)
            case DeleteMigration(namespace, name, uid, version):
                deleted = self.kill.around(lambda: self._delete(f"{namespace}/{name}", uid, version))
                outcome = MigrationWrite.WRITTEN if deleted else MigrationWrite.STALE
                self.recovery.wrote(instruction, outcome, "", None, self.now)
                if deleted:
                    self.recovery.migrations.gone(instruction.key, uid)
            case EvictPod(migration, pod, force):
                refused = self.kill.around(lambda: self._evict(pod.uid, force=force))
                self.recovery.migrations.evicted(
                    migration,
                    pod.uid,
                    reason=MigrationReason.DISRUPTION_BUDGET if refused else None,
                    message=refused,
                    now=self.now,
                )
                self.tell_pod(pod.uid)
            case LearnPods(pods):
                for namespace in {pod.namespace: None for pod in pods}:
                    self._read([pod for pod in pods if pod.namespace == namespace])
            case FindNode(name):
                self.recovery.absent_nodes.answered(name, name in self.node_objects, self.now)
            case EmitMigrationEvent() | PhaseDuration() | Warn() | CountRecoveryFailure():
                self.emitted.append(instruction)

    def _read(self, pods: Sequence[PodRef]) -> None:
        """Read pods of one namespace."""
        if unread := [pod for pod in pods if pod.uid in self.unreadable]:
            self.unlearned.append(LearnPods(tuple(pods)))
            for pod in unread:
                self.recovery.migrations.unread(pod, "503 Service Unavailable", self.now)
            return
        present = [self.pods[pod.uid] for pod in pods if pod.uid in self.pods]
        self.d.engine.pods_reported(copies(present), self.now)
        self.recovery.learned([pod.uid for pod in pods])

    # ------------------------------------------------------------ the API server

    def _create(self, namespace: str, name: str, spec: MigrationSpec) -> Migration | None:
        key = f"{namespace}/{name}"
        if key in self.migrations:
            return None
        self.revision += 1
        meta = ObjectMeta(
            name=name,
            namespace=namespace,
            uid=f"migration-{self.revision}",
            resource_version=str(self.revision),
            creation_timestamp=timestamp(self.now),
        )
        self.migrations[key] = Migration(f"{GROUP}/{VERSION}", KIND, meta, spec)
        return copy_of(self.migrations[key])

    def _patch(self, write: WriteStatus) -> Migration | None:
        known = self.migrations.get(f"{write.namespace}/{write.name}")
        if known is None or (known.metadata.uid, known.metadata.resource_version) != (write.uid, write.version):
            return None
        self.revision += 1
        known.metadata.resource_version = str(self.revision)
        known.status = msgspec.convert(msgspec.to_builtins(write.status), MigrationStatus)
        return copy_of(known)

    def _delete(self, key: str, uid: str, version: str) -> bool:
        known = self.migrations.get(key)
        if known is None or (known.metadata.uid, known.metadata.resource_version) != (uid, version):
            return False
        assert known.phase is not None and known.phase.over, f"{key} is under way"
        del self.migrations[key]
        return True

    def _evict(self, uid: str, *, force: bool) -> str:
        pod = self.pods.get(uid)
        self.evictions.append((pod.metadata.name if pod else uid, force))
        if pod is None:
            return ""
        if uid in self.blocked:
            return "a disruption budget keeps it"
        if force or pod.spec.node_name not in self.kubelets_dead:
            self._remove(pod)
        else:
            pod.metadata.deletion_timestamp = timestamp(self.now)
        return ""

    def _remove(self, pod: Pod) -> None:
        del self.pods[pod.metadata.uid]
        if not self.controllers_stand:
            self.replace(pod)

    def replace(self, pod: Pod) -> None:
        """A controller makes a pod in place of one that is gone."""
        owner = pod.metadata.controller
        if owner is None:
            return
        self.made += 1
        base = pod.metadata.name.rpartition(".")[0] or pod.metadata.name
        fresh = msgspec.convert(msgspec.to_builtins(pod), Pod)
        fresh.metadata.uid, fresh.metadata.name = f"{base}-again-{self.made}", f"{base}.{self.made}"
        fresh.metadata.annotations = {
            key: value for key, value in fresh.metadata.annotations.items() if key in self.asked[base]
        }
        fresh.metadata.deletion_timestamp = None
        fresh.metadata.creation_timestamp = timestamp(self.now)
        fresh.spec.node_name = ""
        fresh.status.conditions = []
        self.pods[fresh.metadata.uid] = fresh

    def tell_pod(self, uid: str) -> None:
        """The watch reports a pod, and all that came of it."""
        if uid not in self.pods:
            self.d.delete(Pod(metadata=ObjectMeta(uid=uid)))
        for pod in self.pods.values():
            known = self.d.pods.get(pod.metadata.uid)
            if known is None or known != pod:
                self.d.apply(copies([pod])[0])

    def finish_pod(self, uid: str) -> None:
        """A kubelet confirms that a pod is gone."""
        self._remove(self.pods[uid])
        self.tell_pod(uid)

    # ------------------------------------------------------------ what happens

    @property
    def asked(self) -> dict[str, frozenset[str]]:
        """Annotations that pods were made with, by the name of the first."""
        return self._asked

    _asked: dict[str, frozenset[str]] = field(default_factory=dict)

    def gang(
        self, name: str, size: int, *, gpus: int = 8, priority: int = 0, said: Mapping[str, str] | None = None
    ) -> list[Pod]:
        """A Job of indexed pods, which is a gang."""
        owner = controlled_by("Job", name)
        annotations = {"gang-name": name, "gang-size": str(size), **(said or {})}
        pods = [
            make_pod(
                f"{name}-{n}",
                gpus=gpus,
                uid=f"{name}-{n}",
                scheduler=self.scheduler,
                owner=owner,
                annotations=annotations,
                priority=priority,
                created=self.now,
                labels={"batch.kubernetes.io/job-completion-index": str(n)},
            )
            for n in range(size)
        ]
        self.add(*pods)
        return pods

    def add(self, *pods: Pod) -> None:
        """Pods appear."""
        for pod in pods:
            self._asked[pod.metadata.name] = frozenset(pod.metadata.annotations)
            self.pods[pod.metadata.uid] = pod
            controller = pod.metadata.controller
            if controller is not None and controller.uid not in self.chains:
                self.chains[controller.uid] = [Owner(controller.kind, controller.name, uid=controller.uid)]
        self.d.chains = dict(self.chains)
        for pod in pods:
            self.d.apply(copies([pod])[0])

    def put(
        self,
        name: str,
        node: str,
        gpus: int,
        *,
        ran: float = 0.0,
        priority: int = 0,
        said: Mapping[str, str] | None = None,
        namespace: str = "default",
        bare: bool = False,
    ) -> Pod:
        """A pod of a controller of its own, or of none, where it runs already."""
        pod = make_pod(
            name,
            namespace=namespace,
            gpus=gpus,
            uid=name,
            owner=None if bare else controlled_by("ReplicaSet", name),
            annotations=said or {},
            priority=priority,
            created=self.now - ran,
        )
        self.add(pod)
        self.d.step()
        self.d.flight.clear()
        self.d.tried.clear()
        pod.spec.node_name = node
        pod.status.conditions = [PodCondition("PodScheduled", "True")]
        pod.status.start_time = timestamp(self.now - ran)
        self.tell_pod(name)
        return pod

    def tell_node(self, name: str) -> None:
        """The watch of nodes reports a node."""
        node = self.node_objects[name]
        ready = node.status.conditions[0].status
        more = self.extra.get(name, {})
        self.recovery.detection.seen(NodeHealth(name, node.metadata.uid, ready=ready, **more), self.now)

    def fail(self, *names: str, ready: str = "Unknown") -> None:
        """Nodes fall silent."""
        for name in names:
            self.kubelets_dead.add(name)
            self._set_ready(name, ready)

    def heal(self, *names: str) -> None:
        """Nodes come back."""
        for name in names:
            self.kubelets_dead.discard(name)
            self._set_ready(name, "True")

    def delete_nodes(self, *names: str, watched: bool = True) -> None:
        """Nodes are deleted; nothing reports that to a daemon that has not ``watched``."""
        for name in names:
            node = self.node_objects.pop(name)
            self.kubelets_dead.add(name)
            if watched:
                self.recovery.detection.gone(name, node.metadata.uid, self.now)
                self.d.drop_node(name, node.metadata.uid)

    def label(self, name: str, **labels: str) -> None:
        """A node gets labels, so that it may suit pods that it did not suit before."""
        self.node_objects[name].metadata.labels.update(labels)
        self._changed(name)

    def cordon(self, name: str) -> None:
        """A user cordons a node."""
        self.node_objects[name].spec.unschedulable = True
        self._changed(name)

    def _set_ready(self, name: str, ready: str) -> None:
        self.node_objects[name].status.conditions = [ConditionStatus("Ready", ready)]
        self._changed(name)

    def _changed(self, name: str) -> None:
        self.d.nodes(*copies_of([self.node_objects[name]]))
        self.tell_node(name)

    def request(self, name: str, *pods: str, namespace: str = "default", **spec: Any) -> None:
        """A user creates a Migration."""
        wanted = msgspec.convert({"pods": [{"name": pod} for pod in pods], **spec}, MigrationSpec)
        created = self._create(namespace, name, wanted)
        assert created is not None
        self.recovery.migration_seen(created, self.now)

    def cancel(self, key: str) -> None:
        """A user deletes a Migration."""
        migration = self.migrations.pop(key)
        self.recovery.migrations.gone(migration.key, migration.metadata.uid)

    def edit(self, key: str, change: Callable[[Migration], None]) -> None:
        """A client changes a Migration, and the watch reports it."""
        migration = self.migrations[key]
        change(migration)
        self.revision += 1
        migration.metadata.resource_version = str(self.revision)
        self.recovery.migration_seen(copy_of(migration), self.now)

    # ------------------------------------------------------------ what came of it

    def one(self) -> Migration:
        """Return the only Migration."""
        (migration,) = self.migrations.values()
        return migration

    def phases(self) -> list[Phase | None]:
        """Return how far all Migrations are."""
        return [migration.phase for migration in self.migrations.values()]

    def condition(self, type_: str) -> tuple[str, str, str]:
        """Return status, reason and message of a condition of the only Migration."""
        condition = next(candidate for candidate in self.one().status.conditions if candidate.type == type_)
        return condition.status, condition.reason, condition.message

    def nodes_of(self, prefix: str) -> dict[str, str]:
        """Return the node of each bound pod whose name begins so, by the name without what was generated."""
        return {
            pod.metadata.name.partition(".")[0]: pod.spec.node_name
            for pod in self.pods.values()
            if pod.metadata.name.startswith(prefix) and pod.spec.node_name
        }

    def check(self) -> None:
        """What must hold at every moment."""
        used: dict[str, int] = {}
        for pod in self.pods.values():
            if pod.spec.node_name:
                gpus = int(pod.spec.containers[0].resources.limits.get("nvidia.com/gpu", 0))
                used[pod.spec.node_name] = used.get(pod.spec.node_name, 0) + gpus
        assert all(count <= 8 for count in used.values()), used
        if not any(phase is not None and phase.running for phase in self.phases()):
            assert not self.d.engine.preempting.replacements, "seats of Migrations that are over"
        nodes = self.d.engine.world.nodes
        for name, row in nodes.row_of.items():
            assert int(nodes.requested[row, GPU]) == used.get(name, 0), name


def copy_of(migration: Migration) -> Migration:
    """Return a Migration as it comes from the wire."""
    return msgspec.convert(msgspec.to_builtins(migration), Migration)


def leaf(node: str) -> str:
    """Return the leaf of a node."""
    return node.rpartition("-")[0]


def copies_of(nodes: Any) -> list[Node]:
    """Return nodes as they come from the wire."""
    return [msgspec.convert(msgspec.to_builtins(node), Node) for node in nodes]


RECOVERY_ENABLED = RecoverySpec(enabled=True)
THREE_LEAVES = {"s1/l1": 4, "s1/l2": 4, "s2/l1": 4}


def run_gang(world: World, name: str, size: int = 2) -> dict[str, str]:
    """Run a gang, and return the node of each of its pods."""
    world.gang(name, size)
    world.run()
    where = world.nodes_of(f"{name}-")
    assert len(where) == size
    return where
