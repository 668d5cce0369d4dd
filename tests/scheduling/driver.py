"""An engine, the truth that it is shown, and a client that carries out what it decides."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from tests.helpers import EPOCH, Owner, controlled_by, make_node, make_pod, timestamp
from tests.recording.kept import make_engine
from topo_scheduler.api.annotations import GANG_COMPLETE
from topo_scheduler.api.config import Configuration, load_configuration
from topo_scheduler.api.contention import Contention
from topo_scheduler.api.groups import GroupApi
from topo_scheduler.api.objects import Node, Pod, PodCondition
from topo_scheduler.api.reasons import Reason
from topo_scheduler.api.sharing import GpusByAnnotation
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.scheduling.explaining.explainer import FAULT, Explanation
from topo_scheduler.scheduling.instructions import (
    Bind,
    BindOutcome,
    DryRunBind,
    EmitEvent,
    Evict,
    EvictionOutcome,
    Instruction,
    LogWarning,
    MarkComplete,
    MarkGroup,
    MarkUnschedulable,
    Nominate,
    Preempt,
    RecordDecision,
)
from topo_scheduler.scheduling.intake.understand import Lineage
from topo_scheduler.scheduling.reserving.holds import Reservation
from topo_scheduler.state.decision import Decision
from topo_scheduler.state.nodes.resources import GPU
from topo_scheduler.state.pods.pod_groups import PodGroup, Serving
from topo_scheduler.state.pods.victim_info import DEFAULT_GRACE_SECONDS
from topo_scheduler.state.pods.workloads import Stage

CONFIG = "apiVersion: topology.scheduler/v1alpha1\nkind: TopologySchedulerConfig\nspec: "


def configured(spec: str = "{}", *, permits: bool = True) -> Configuration:
    """Return a configuration with this ``spec`` of a TopologySchedulerConfig.

    ``permits`` GPUs that only annotations ask for to all namespaces, unless the spec names some, and reservations for
    gangs of bare pods: many tests ask so.
    """
    configuration = load_configuration({"test": CONFIG + spec})
    if not permits or configuration.topology.spec.gpus_by_annotation.namespaces:
        return configuration
    reservation = configuration.topology.spec.reservation
    update = {
        "gpus_by_annotation": GpusByAnnotation(namespaces=("*",)),
        "reservation": reservation.model_copy(update={"bare_gangs": True}),
    }
    topology = configuration.topology.model_copy(update={"spec": configuration.topology.spec.model_copy(update=update)})
    return Configuration(configuration.scheduler, topology)


def without_room_for_others(config: Configuration) -> Configuration:
    """Return a configuration that leaves no room on nodes for pods of other schedulers."""
    update = {"other_schedulers": Contention(reserved_pods_per_node=0)}
    topology = config.topology.model_copy(update={"spec": config.topology.spec.model_copy(update=update)})
    return Configuration(config.scheduler, topology)


class Driver:
    """Tells an engine what happens, in an order the test decides, and keeps what it answers."""

    def __init__(
        self, nodes: Iterable[Node] = (), config: Configuration | None = None, *, leaves_room: bool = False
    ) -> None:
        """``leaves_room`` for pods of other schedulers; not where those are but there to fill nodes."""
        self.now = 0.0
        self.chains: dict[str, Sequence[Owner]] = {}
        """Owners by uid of the controller, nearest first; what is not here is not known yet."""
        self.gone: dict[str, str] = {}
        """What the API server says of owners that were deleted, or are being deleted, by uid of the controller."""
        self.doubts: dict[str, str] = {}
        """Why owners can't be read, by uid of the controller."""
        self.pods: dict[str, Pod] = {}
        self.flight: dict[str, Bind] = {}
        """Binds that were asked for and not answered, by uid of the pod."""
        self.tried: dict[str, Bind] = {}
        """Rehearsals that were asked for and not answered, by uid of the pod."""
        self.answers_trials = True
        """Whether each rehearsal succeeds at once; otherwise tests answer them."""
        self.clock: Callable[[], float] = lambda: 0.0
        """What measures decisions; where it stands still, no step ends early."""
        self.said: list[Instruction] = []
        config = config or configured()
        self.engine = self._make_engine(config if leaves_room else without_room_for_others(config))
        self.engine.nodes_applied(nodes, self.now)

    def _make_engine(self, config: Configuration) -> Engine:
        return make_engine(config, self._resolve, None, EPOCH)

    def _resolve(self, pod: Pod) -> Lineage | None:
        controller = pod.metadata.controller
        if controller is None:
            return Lineage()
        chain = self.chains.get(controller.uid)
        deletion, doubt = self.gone.get(controller.uid, ""), self.doubts.get(controller.uid, "")
        return None if chain is None else Lineage(chain, gone=deletion, doubt=doubt)

    # ------------------------------------------------------------ facts

    def own(self, *chain: Owner) -> None:
        """Make a chain of owners known."""
        self.chains[chain[0].uid] = chain
        for owner in chain:
            self.engine.owner_changed(owner.uid, self.now)

    def disown(self, uid: str, why: str = "Job train was deleted") -> None:
        """An owner is deleted: it is not known any more, and the API server says so."""
        self.chains[uid], self.gone[uid] = (), why
        self.engine.owner_changed(uid, self.now)

    def apply(self, *pods: Pod) -> None:
        """Pods appear or change."""
        for pod in pods:
            self.pods[pod.metadata.uid] = pod
        self.engine.pods_applied(copies(pods), self.now)

    def tell_again(self, *pods: Pod) -> None:
        """The watch repeats what is so already."""
        self.engine.pods_applied(copies(pods), self.now)

    def delete(self, *pods: Pod) -> None:
        """Pods vanish."""
        for pod in pods:
            self.pods.pop(pod.metadata.uid, None)
            self.engine.pod_deleted(pod.metadata.uid, self.now)

    def finish(self, pod: Pod, phase: str = "Succeeded", reason: str = "") -> None:
        """A pod that is bound ends."""
        pod.status.phase, pod.status.reason = phase, reason
        self.apply(pod)

    def nodes(self, *nodes: Node) -> None:
        """Nodes appear or change."""
        self.engine.nodes_applied(nodes, self.now)

    def drop_node(self, name: str, uid: str = "") -> None:
        """A node vanishes."""
        self.engine.node_deleted(name, uid or f"uid-{name}")

    def groups(self, *groups: PodGroup) -> None:
        """PodGroups appear or change; their APIs are served from now on."""
        for api in {group.key.api for group in groups}:
            self.serve(api)
        self.engine.groups_applied(groups, self.now)

    def serve(self, api: GroupApi, serving: Serving = Serving.LISTED) -> None:
        """It becomes known whether an API is served."""
        self.engine.groups_served(api, serving, self.now, self.now)

    # ------------------------------------------------------------ steps and answers

    def step(self, seconds: float = 0) -> list[Instruction]:
        """Let time pass, then let the engine do all it has to do now; return what it said."""
        self.now += seconds
        said: list[Instruction] = []
        for _ in range(10_000):
            fresh = self.engine.step(self.now, self.clock)
            said += fresh
            tried = [instruction.bind for instruction in fresh if isinstance(instruction, DryRunBind)]
            self.tried |= {bind.pod.uid: bind for bind in tried}
            if tried and self.answers_trials:
                for bind in tried:
                    self.rehearsed(bind.pod.uid)
            elif not self.engine.pending_work:
                break
        else:
            raise AssertionError("the engine never comes to rest")
        for instruction in said:
            if isinstance(instruction, Bind):
                self.flight[instruction.pod.uid] = instruction
        self.said += said
        return said

    def explain(self, seconds: float = 0) -> list[Instruction]:
        """Let time pass and the engine explain all that waits; return what it said."""
        self.now += seconds
        said = self.engine.explain(self.now, self.clock, 1.0)
        assert not any(isinstance(instruction, LogWarning) and FAULT in instruction.message for instruction in said), (
            said
        )
        self.said += said
        return said

    def answer(
        self,
        uid: str,
        outcome: BindOutcome = BindOutcome.BOUND,
        message: str = "the server said so",
        *,
        reported: bool = True,
    ) -> None:
        """A bind ends; when it was written, the watch reports it unless ``reported`` is False."""
        bind = self.flight.pop(uid)
        if outcome is BindOutcome.BOUND:
            self.write(bind)
        self.engine.bind_finished(uid, outcome, message, self.now)
        if outcome is BindOutcome.BOUND and reported:
            self.tell_again(self.pods[uid])

    def rehearsed(self, uid: str, outcome: BindOutcome = BindOutcome.BOUND, message: str = "no") -> None:
        """A rehearsal ends."""
        del self.tried[uid]
        self.engine.rehearsed(uid, outcome, message, self.now)

    def write(self, bind: Bind) -> Pod:
        """Carry out a bind at the API server, without a report to the engine."""
        pod = self.pods[bind.pod.uid]
        pod.spec.node_name = bind.node
        pod.metadata.annotations |= bind.annotations
        return pod

    def write_conditions(self) -> None:
        """Write on pods what they were marked with, as the API server keeps it, without a report to the engine."""
        for said in self.said:
            if isinstance(said, MarkUnschedulable) and (pod := self.pods.get(said.pod.uid)) is not None:
                since = timestamp(said.since)
                mark = PodCondition("PodScheduled", "False", "Unschedulable", said.message, since)
                pod.status.conditions = [mark]
            if isinstance(said, MarkComplete) and (pod := self.pods.get(said.pod.uid)) is not None:
                pod.status.conditions = [PodCondition(GANG_COMPLETE, "True")]

    def refused(self, uid: str) -> str:
        """Ask what the daemon asks before it writes; a refusal ends the bind."""
        why = self.engine.may_bind(uid)
        if why:
            self.answer(uid, BindOutcome.WITHDRAWN, why)
        return why

    def settle(self, seconds: float = 0) -> list[Instruction]:
        """Step and answer every bind with success until nothing happens any more."""
        said = self.step(seconds)
        while self.flight:
            for uid in list(self.flight):
                self.answer(uid)
            said += self.step()
        return said

    def run(self, *pods: Pod) -> dict[str, str]:
        """Pods appear and everything succeeds; return where they run."""
        self.apply(*pods)
        self.settle()
        return self.where(*pods)

    # ------------------------------------------------------------ what came of it

    def where(self, *pods: Pod) -> dict[str, str]:
        """Return the node of each pod that has one, by name."""
        return {p.metadata.name: p.spec.node_name for p in pods if p.spec.node_name}

    def told(self, pod: Pod | None = None, reason: Reason | None = None) -> list[str]:
        """Return what was reported, of one pod, for one reason."""
        return [
            said.message
            for said in self.said
            if isinstance(said, EmitEvent)
            and (pod is None or said.pod.uid == pod.metadata.uid)
            and (reason is None or said.reason is reason)
        ]

    def marked(self) -> set[str]:
        """Return the names of the pods that were marked as unschedulable."""
        return {said.pod.name for said in self.said if isinstance(said, MarkUnschedulable)}

    def evicted(self) -> list[str]:
        """Return the names of the pods that were to be evicted."""
        return [said.pod.name for said in self.said if isinstance(said, Evict)]

    def preempted(self) -> list[str]:
        """Return the names of the victims."""
        return sorted(said.pod.name for said in self.said if isinstance(said, Preempt))

    def nominated(self) -> dict[str, str]:
        """Return which node each pod was nominated to last, by name; those whose nomination was cleared have none."""
        last = {said.pod.name: said.node for said in self.said if isinstance(said, Nominate)}
        return {name: node for name, node in last.items() if node}

    def evict(self, *pods: Pod, outcome: EvictionOutcome = EvictionOutcome.GOING, vanish: bool = True) -> None:
        """Evictions end; the pods vanish unless they take their time."""
        for pod in pods:
            self.engine.eviction_finished(pod.metadata.uid, outcome, "the server said so", self.now)
            if outcome is EvictionOutcome.GOING:
                pod.metadata.deletion_timestamp = timestamp(self.now + DEFAULT_GRACE_SECONDS)
                self.apply(pod)
                if vanish:
                    self.delete(pod)

    def complaints(self) -> list[str]:
        """Return what was complained of."""
        return [said.message for said in self.said if isinstance(said, LogWarning)]

    def group_marks(self) -> list[MarkGroup]:
        """Return what was to be written on PodGroups."""
        return [said for said in self.said if isinstance(said, MarkGroup)]

    def decisions(self) -> list[Decision]:
        """Return the decisions made."""
        return [said.decision for said in self.said if isinstance(said, RecordDecision)]

    def binds(self) -> list[Bind]:
        """Return the binds asked for."""
        return [said for said in self.said if isinstance(said, Bind)]

    def forget(self) -> None:
        """Forget what was said so far."""
        self.said.clear()


def copies(pods: Sequence[Pod]) -> list[Pod]:
    """Return pods as they come from the wire: no other object refers to them."""
    return [msgspec.convert(msgspec.to_builtins(pod), Pod) for pod in pods]


def fabric(leaves: Mapping[str, int], gpus: int = 8) -> list[Node]:
    """Return so many nodes in each leaf, named after it: ``s1/l1`` has ``s1-l1-1`` and so on."""
    return [
        make_node(f"{path.replace('/', '-')}-{number}", path, gpus=gpus)
        for path, count in leaves.items()
        for number in range(1, count + 1)
    ]


def gang(size: int, *, controlled: bool = False, gpus: int = 8, name: str = "g") -> list[Pod]:
    """Return the pods of a gang of whole nodes."""
    annotations = {"gang-name": name, "gang-size": str(size)}
    by = controlled_by("ReplicaSet", name) if controlled else None
    return [make_pod(f"{name}-{n}", gpus=gpus, annotations=annotations, owner=by, created=n) for n in range(size)]


def held(d: Driver, node: str, column: int = GPU) -> int:
    """Return what pods hold of a node."""
    return int(d.engine.world.nodes.requested[d.engine.world.nodes.row_of[node], column])


def stage(d: Driver, pod: Pod) -> Stage | None:
    """Return how far a pod has come, None when it is not known."""
    entry = d.engine.workloads.of_pod(pod.metadata.uid)
    return entry[1].stage if entry else None


def fabric_driver(leaves: dict[str, int], config: Configuration | None = None) -> Driver:
    """Return a driver of a fabric whose PodDisruptionBudgets are known."""
    d = Driver(fabric(leaves), config)
    d.engine.budgets_known()
    return d


def reservations_by_name(d: Driver) -> dict[str, Reservation]:
    """Return the reservations by the name of their workload."""
    return {reservation.name.rpartition("/")[2]: reservation for reservation in d.engine.reserving.holds}


def explanation_of(d: Driver, pod: Pod) -> Explanation:
    """Return the explanation of a pod's workload after one step."""
    d.step()
    entry = d.engine.workloads.of_pod(pod.metadata.uid)
    assert entry is not None
    explanation = d.engine.why.explain(entry[0], d.now, d.now + EPOCH, lambda: 0.0)
    assert explanation is not None
    return explanation
