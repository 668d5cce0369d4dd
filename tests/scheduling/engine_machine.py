"""A state machine for property tests: the engine beside a simulated API server.

The machine keeps the API server's objects. What happens there reaches the engine later, in order, sometimes twice;
binds are written, refused, lost, or written with their answer lost; pods vanish while they are being bound; nodes flap,
change their labels and are made again under their names; other schedulers take room.
"""

from collections import Counter, deque
from collections.abc import Callable, Container

import msgspec
import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.helpers import (
    EPOCH,
    Owner,
    controlled_by,
    in_group,
    job_owner,
    make_group,
    make_job,
    make_node,
    make_pod,
    owner,
    timestamp,
)
from tests.recording.kept import make_engine
from tests.scheduling.driver import configured
from topo_scheduler.api.config import Configuration
from topo_scheduler.api.groups import GroupApi
from topo_scheduler.api.objects import ContainerPort, Node, Pod
from topo_scheduler.api.selectors import Affinity, LabelSelector, PodAffinity, PodAffinityTerm
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.scheduling.instructions import (
    Bind,
    BindOutcome,
    DryRunBind,
    Evict,
    EvictionOutcome,
    Instruction,
    Nominate,
    Preempt,
    RecordDecision,
)
from topo_scheduler.scheduling.intake.understand import Lineage
from topo_scheduler.scheduling.queueing.queue import Place
from topo_scheduler.scheduling.surveying.link_survey import survey_links
from topo_scheduler.state.nodes.resources import GPU
from topo_scheduler.state.pods.pod_groups import GroupKey, PodGroup, Serving
from topo_scheduler.state.pods.victim_info import DEFAULT_GRACE_SECONDS
from topo_scheduler.state.pods.workloads import Stage

NODES = st.sampled_from(["n1", "n2", "n3", "n4", "n5"])
PATHS = st.sampled_from(["s1/l1", "s1/l1", "s1/l2", "s2/l1", "s2/", ""])
SHARING = {"topology.scheduler/gpu-sharing": "true"}
LUCK = st.sampled_from(["written", "written", "written", "refused", "answer lost", "never arrived", "stolen"])
BANDWIDTHS = st.sampled_from(["", "", "1Gb", "2Gb"])
CONFIGS = [
    configured(),
    configured("{topologyConstraints: {maxNodesPerLeaf: 2, enforcement: preferred}}"),
    configured("{links: [{level: leaf, capacity: 2Gb}], topologyConstraints: {maxNodesPerLeaf: 1}}"),
    configured("{reservation: {gangs: 2, after: 1s, afterWithoutEstimates: 3s}, repair: {enabled: true, after: 1s}}"),
]
NOTHING_HELD = configured("{reservation: {enabled: false}}")


class EngineMachine(RuleBasedStateMachine):
    """An engine and its twin beside a simulated API server, which any user and any failure may change."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.number = 0
        self.truth_nodes: dict[str, Node] = {}
        self.truth_pods: dict[str, Pod] = {}
        self.seen_nodes: dict[str, Node] = {}
        self.seen_pods: dict[str, Pod] = {}
        self.owners: dict[str, Owner] = {}
        self.groups: dict[str, PodGroup | None] = {}
        """PodGroups by name; None where pods name one that is not there."""
        self.bandwidths: dict[str, str] = {}
        """What gangs ask of the network, by name."""
        self.watch: deque[tuple[str, str, Node | Pod | None]] = deque()
        self.flight: dict[str, Bind] = {}
        self.evictions: dict[str, Preempt] = {}
        self.tried: dict[str, Bind] = {}
        self.disturbed: set[str] = set()
        """Gangs of which another client took a member away, or that can't be rolled back."""
        self.config = Configuration()
        self.engine, self.twin = self.new_engine(), self.new_engine()

    def new_engine(self) -> Engine:
        engine = make_engine(self.config, self.resolve, None, EPOCH)
        engine.groups_served(GroupApi.NATIVE, Serving.LISTED, 0, 0)
        engine.groups_applied([group for group in self.groups.values() if group is not None], 0)
        engine.budgets_known()
        return engine

    def resolve(self, pod: Pod) -> Lineage | None:
        controller = pod.metadata.controller
        if controller is None:
            return Lineage()
        owner = self.owners.get(controller.uid)
        return None if owner is None else Lineage([owner])

    def both(self, what: Callable[[Engine], None]) -> None:
        for engine in (self.engine, self.twin):
            what(engine)

    # ------------------------------------------------------------ the truth

    def told(self, kind: str, key: str, thing: Node | Pod | None) -> None:
        copy = None if thing is None else msgspec.convert(msgspec.to_builtins(thing), type(thing))
        self.watch.append((kind, key, copy))

    def put_node(self, node: Node) -> None:
        self.truth_nodes[node.metadata.name] = node
        self.told("node", node.metadata.name, node)

    def put_pod(self, pod: Pod) -> None:
        self.truth_pods[pod.metadata.uid] = pod
        self.told("pod", pod.metadata.uid, pod)

    def remove_pod(self, uid: str) -> None:
        if self.truth_pods.pop(uid, None) is not None:
            self.told("pod", uid, None)

    def name(self, what: str) -> str:
        self.number += 1
        return f"{what}-{self.number}"

    @initialize(count=st.integers(2, 5))
    def some_nodes(self, count: int) -> None:
        for number in range(1, count + 1):
            labels = SHARING if number == 2 else {}
            self.put_node(make_node(f"n{number}", "s1/l1" if number < 4 else "s2/l1", gpus=4, cpu="8", labels=labels))
        self.deliver(100)

    # ------------------------------------------------------------ what users and operators do

    @rule(
        name=NODES,
        path=PATHS,
        gpus=st.sampled_from([2, 4, 4, 8]),
        state=st.sampled_from(["", "", "", "down", "cordon"]),
        network=BANDWIDTHS,
        labels=st.sampled_from([{}, {}, SHARING]),
    )
    def node_appears_or_changes(
        self, name: str, path: str, gpus: int, state: str, network: str, labels: dict[str, str]
    ) -> None:
        known = self.truth_nodes.get(name)
        uid = known.metadata.uid if known else self.name("node")
        ready, shut = state != "down", state == "cordon"
        attributes = {"ready": ready, "unschedulable": shut, "bandwidth": network}
        self.put_node(
            make_node(name, path, gpus=gpus, cpu="8", uid=uid, labels=labels, **attributes)  # type: ignore[arg-type]
        )

    @rule(name=NODES, again=st.booleans())
    def node_vanishes(self, name: str, again: bool) -> None:
        node = self.truth_nodes.pop(name, None)
        if node is None:
            return
        if again:
            # Deleted and made again between two looks of the watch.
            self.put_node(make_node(name, "s1/l2", gpus=4, cpu="8", uid=self.name("node")))
        self.watch.append(("node gone", name, node))

    @rule(
        size=st.sampled_from([1, 2, 2, 3, 3, 4]),
        gpus=st.sampled_from([1, 2, 4]),
        late=st.sampled_from([0, 0, 0, 1, 2]),
        by=st.sampled_from(["", "ReplicaSet", "ReplicaSet", "Job", "PodGroup", "PodGroup"]),
        at_once=st.booleans(),
        priority=st.sampled_from([0, 0, 1, 2]),
        bandwidth=BANDWIDTHS,
    )
    def gang_is_submitted(
        self, size: int, gpus: int, late: int, by: str, at_once: bool, priority: int, bandwidth: str
    ) -> None:
        name = self.name(f"gang{priority}")
        self.bandwidths[name] = bandwidth
        if by == "Job":
            self.put_job(name, size, size * gpus)
        elif by == "PodGroup":
            self.owners[f"uid-{name}"] = owner("ReplicaSet", name)
            self.groups[name] = None
            if late != 1:
                self.put_group(name, size)
        elif by:
            self.owners[f"uid-{name}"] = owner(by, name, {"gang-size": str(size)})
        else:
            self.disturbed.add(f"default/{name}")
        for number in range(max(1, size - late)):
            self.new_member(name, number, size, gpus, by)
        if at_once:
            self.deliver(len(self.watch))
            self.step(0)

    def put_job(self, name: str, parallelism: int, gpus: int, succeeded: int = 0) -> None:
        job = make_job(name, parallelism=parallelism, succeeded=succeeded, annotations={"gpu-count": str(gpus)})
        self.owners[f"uid-{name}"] = job_owner(job)
        self.both(lambda engine: engine.owner_changed(f"uid-{name}", self.now))

    def put_group(self, name: str, minimum: int) -> None:
        group = self.groups[name] = make_group(name, minimum, key="topology.scheduler/spine" if minimum == 3 else "")
        self.both(lambda engine: engine.groups_applied([group], self.now))

    @precondition(lambda self: self.groups)
    @rule(data=st.data(), minimum=st.integers(0, 4))
    def group_comes_changes_or_goes(self, data: st.DataObject, minimum: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.groups)))
        known = self.groups[name]
        if known is not None:
            self.disturbed.add(known.key.id)
        if minimum:
            self.put_group(name, minimum)
        elif known is not None:
            self.groups[name] = None
            self.both(lambda engine: engine.group_deleted(known.key, known.uid, self.now))

    @precondition(lambda self: any(owner.job for owner in self.owners.values()))
    @rule(data=st.data(), parallelism=st.integers(1, 4), gpus=st.integers(1, 8))
    def job_is_scaled(self, data: st.DataObject, parallelism: int, gpus: int) -> None:
        name = data.draw(st.sampled_from(sorted(owner.name for owner in self.owners.values() if owner.job)))
        self.disturbed.add(f"default/uid-{name}")
        self.put_job(name, parallelism, gpus)

    @precondition(lambda self: self.truth_pods)
    @rule(data=st.data())
    def another_member_appears(self, data: st.DataObject) -> None:
        pods = [uid for uid, pod in self.truth_pods.items() if "gang" in pod.metadata.labels]
        if pods:
            self.succeed(self.truth_pods[data.draw(st.sampled_from(sorted(pods)))])

    def succeed(self, pod: Pod) -> None:
        """A controller makes another one like it."""
        labels = pod.metadata.labels
        if "gang" in labels:
            self.new_member(labels["gang"], 0, int(labels["size"]), int(labels["gpus"]), labels["by"])

    def new_member(self, name: str, number: int, size: int, gpus: int, by: str) -> None:
        annotations = {} if by else {"gang-name": name, "gang-size": str(size)}
        if bandwidth := self.bandwidths[name]:
            annotations["network-bandwidth"] = bandwidth
        if size % 2:
            annotations["expected-duration"] = f"{5 * gpus}s"
        limits = 0 if by == "Job" and number % 2 else gpus
        reference = controlled_by("ReplicaSet" if by == "PodGroup" else by, name) if by else None
        pod = make_pod(
            self.name(f"{name}-{number}"),
            gpus=limits,
            annotations=annotations,
            owner=reference,
            created=self.now,
            uid=self.name("pod"),
            priority=int(name.partition("-")[0].removeprefix("gang")),
            labels={"gang": name, "size": str(size), "gpus": str(gpus), "by": by},
        )
        self.put_pod(in_group(pod, name) if by == "PodGroup" else pod)

    @rule(
        gpus=st.sampled_from([0, 1, 2, 4]),
        fraction=st.sampled_from(["", "0.5", "0.3"]),
        strategy=st.sampled_from(["balanced", "distributed"]),
        priority=st.integers(0, 2),
        shy=st.sampled_from(["", "", "port", "shy", "guard"]),
    )
    def pod_is_submitted(self, gpus: int, fraction: str, strategy: str, priority: int, shy: str) -> None:
        asked = {"gpu-fraction": fraction} if fraction else {"gpu-count": "1"}
        pod = make_pod(
            self.name("pod"),
            gpus=gpus,
            priority=priority,
            created=self.now,
            uid=self.name("pod"),
            annotations={"placement-strategy": strategy, **(asked if gpus == 0 else {})},
            labels={"shy": shy} if shy else {},
        )
        if shy == "port":
            pod.spec.containers[0].ports = [ContainerPort(80)]
        elif shy:
            # The one keeps away from all of the kind, the other keeps all of the kind away from itself.
            far = PodAffinityTerm(LabelSelector({"shy": "shy"}), topology_key="topology.scheduler/leaf")
            pod.spec.affinity = Affinity(pod_anti_affinity=PodAffinity([far]))
        self.put_pod(pod)

    @precondition(lambda self: self.truth_nodes)
    @rule(data=st.data(), gpus=st.sampled_from([0, 1, 4]), daemon=st.booleans(), priority=st.integers(0, 2))
    def another_scheduler_takes_room(self, data: st.DataObject, gpus: int, daemon: bool, priority: int) -> None:
        node = data.draw(st.sampled_from(sorted(self.truth_nodes)))
        by = controlled_by("DaemonSet", "agent") if daemon else None
        name = self.name("other")
        uid = self.name("pod")
        self.put_pod(make_pod(name, gpus=gpus, scheduler="other", node=node, uid=uid, owner=by, priority=priority))

    @precondition(lambda self: self.truth_nodes)
    @rule(data=st.data(), gpus=st.sampled_from([1, 4]), priority=st.integers(0, 2))
    def another_scheduler_nominates(self, data: st.DataObject, gpus: int, priority: int) -> None:
        pod = make_pod(self.name("theirs"), gpus=gpus, scheduler="other", uid=self.name("pod"), priority=priority)
        pod.status.nominated_node_name = data.draw(st.sampled_from(sorted(self.truth_nodes)))
        self.put_pod(pod)

    @precondition(lambda self: self.truth_pods)
    @rule(data=st.data(), how=st.sampled_from(["deleted", "deleted", "finished", "failed", "terminating"]))
    def pod_ends(self, data: st.DataObject, how: str) -> None:
        pod = self.truth_pods[data.draw(st.sampled_from(sorted(self.truth_pods)))]
        self.disturb(pod)
        if how == "deleted":
            self.remove_pod(pod.metadata.uid)
            if pod.metadata.controller is not None:
                self.succeed(pod)
        elif how == "terminating":
            pod.metadata.deletion_timestamp = timestamp(self.now + DEFAULT_GRACE_SECONDS)
            self.put_pod(pod)
        elif pod.spec.node_name:
            pod.status.phase = "Succeeded" if how == "finished" else "Failed"
            self.put_pod(pod)

    def disturb(self, pod: Pod) -> None:
        controller = pod.metadata.controller
        self.disturbed.add(f"{pod.metadata.namespace}/{controller.uid}" if controller else "")
        if pod.spec.scheduling_group is not None:
            name = str(pod.spec.scheduling_group["podGroupName"])
            self.disturbed.add(GroupKey(GroupApi.NATIVE, "default", name).id)

    @precondition(lambda self: self.truth_pods)
    @rule(data=st.data())
    def pods_status_changes(self, data: st.DataObject) -> None:
        pod = self.truth_pods[data.draw(st.sampled_from(sorted(self.truth_pods)))]
        pod.status.message = self.name("status")
        self.put_pod(pod)

    @rule(number=st.integers(0, 3))
    def configuration_changes(self, number: int) -> None:
        self.config = CONFIGS[number]
        self.both(lambda engine: engine.configure(self.config))
        # What half runs now may break the rule by then.

    # ------------------------------------------------------------ the watch

    @rule(seconds=st.sampled_from([0, 1, 4]), luck=LUCK)
    def a_while_passes(self, seconds: float, luck: str) -> None:
        """Everything is delivered, decided and written; one bind has another fate than the others."""
        self.deliver(len(self.watch))
        self.step(seconds)
        for uid in sorted(self.tried):
            self.rehearse(uid, BindOutcome.REJECTED if luck == "refused" else BindOutcome.BOUND)
        for number, uid in enumerate(sorted(self.flight)):
            self.bind(uid, "written" if number else luck)
        for number, uid in enumerate(sorted(self.evictions)):
            self.eviction(uid, refused=not number and luck == "refused", slow=luck == "answer lost")

    @rule(count=st.integers(1, 4))
    def deliver(self, count: int) -> None:
        for _ in range(min(count, len(self.watch))):
            self.deliver_one(*self.watch.popleft())

    @precondition(lambda self: self.watch)
    @rule()
    def deliver_twice(self) -> None:
        event = self.watch.popleft()
        self.deliver_one(*event)
        self.deliver_one(*event)

    def deliver_one(self, kind: str, key: str, thing: Node | Pod | None) -> None:
        if kind == "node":
            assert isinstance(thing, Node)
            self.seen_nodes[key] = thing
            self.both(lambda engine: engine.nodes_applied([thing], self.now))
        elif kind == "node gone":
            assert isinstance(thing, Node)
            seen = self.seen_nodes.get(key)
            if seen is not None and seen.metadata.uid == thing.metadata.uid:
                del self.seen_nodes[key]
            self.both(lambda engine: engine.node_deleted(key, thing.metadata.uid))
        elif thing is None:
            self.seen_pods.pop(key, None)
            self.both(lambda engine: engine.pod_deleted(key, self.now))
        else:
            assert isinstance(thing, Pod)
            self.seen_pods[key] = thing
            self.both(lambda engine: engine.pods_applied([thing], self.now))

    # ------------------------------------------------------------ the daemon

    @rule(seconds=st.sampled_from([0, 0, 0, 1, 4]))
    def step(self, seconds: float) -> None:
        self.now += seconds
        said = self.engine.step(self.now, lambda: 0.0)
        again = self.twin.step(self.now, lambda: 0.0)
        assert said == again
        assert repr(said) == repr(again), "byte for byte"
        for held in self.engine.reserving.holds:
            workload = self.engine.workloads.get(held.workload)
            assert workload is not None
            assert workload.at(Stage.PENDING), "nodes are reserved for pending workloads"
        for instruction in said:
            self.carry_out(instruction)
        for uid in {instruction.pod.uid for instruction in said if isinstance(instruction, Preempt)}:
            preemptors = self.engine.preempting.preemptors(uid)
            assert not preemptors or self.evictions[uid].preemptor.uid in preemptors, "the last request counts"
        decided = {
            seat.uid
            for instruction in said
            if isinstance(instruction, RecordDecision)
            for seat in instruction.decision.seats
        }
        self.check_binds([instruction for instruction in said if isinstance(instruction, Bind)], decided)

    def carry_out(self, instruction: Instruction) -> None:
        if isinstance(instruction, Bind):
            self.flight[instruction.pod.uid] = instruction
        elif isinstance(instruction, DryRunBind):
            self.tried[instruction.bind.pod.uid] = instruction.bind
        elif isinstance(instruction, Evict):
            pod = self.truth_pods.get(instruction.pod.uid)
            if pod is not None:
                self.remove_pod(instruction.pod.uid)
                if pod.metadata.controller is not None:
                    self.succeed(pod)
                else:
                    self.disturb(pod)
        elif isinstance(instruction, Preempt):
            # A later request takes the place of one whose workload was placed elsewhere, or is outranked.
            self.evictions[instruction.pod.uid] = instruction
            pod = self.seen_pods[instruction.pod.uid]
            assert pod.spec.node_name
            assert not pod.metadata.controller or pod.metadata.controller.kind != "DaemonSet"
            waiting = [workload.priority for workload in self.engine.workloads if workload.at(Stage.PENDING)]
            assert pod.spec.priority < max(waiting)
        elif isinstance(instruction, Nominate):
            pod = self.truth_pods.get(instruction.pod.uid)
            if pod is not None and not pod.spec.node_name:
                pod.status.nominated_node_name = instruction.node
                self.put_pod(pod)

    @precondition(lambda self: self.evictions)
    @rule(data=st.data(), refused=st.booleans(), slow=st.booleans())
    def eviction_reaches_the_server(self, data: st.DataObject, refused: bool, slow: bool) -> None:
        self.eviction(data.draw(st.sampled_from(sorted(self.evictions))), refused, slow)

    def eviction(self, uid: str, refused: bool, slow: bool) -> None:
        """A pod is evicted: it may stay, go, or take its time."""
        del self.evictions[uid]
        pod = self.truth_pods.get(uid)
        outcome = EvictionOutcome.REFUSED if refused and pod is not None else EvictionOutcome.GOING
        if pod is not None and not refused:
            self.disturb(pod)
            if slow:
                pod.metadata.deletion_timestamp = timestamp(self.now + DEFAULT_GRACE_SECONDS)
                self.put_pod(pod)
            else:
                self.remove_pod(uid)
                if pod.metadata.controller is not None:
                    self.succeed(pod)
        self.both(lambda engine: engine.eviction_finished(uid, outcome, "", self.now))

    def check_binds(self, binds: list[Bind], decided: Container[str]) -> None:
        """Nothing is over what a node has by our own doing.

        While a bind was delayed, or its answer was lost, others may have come: that is seen before it is written.
        """
        nodes = self.engine.world.nodes
        for bind in binds:
            row = nodes.row_of.get(bind.node)
            entry = self.engine.world.ledger.get(bind.pod.uid)
            assert entry is not None
            assert entry.assumed
            assert entry.node == bind.node
            if row is not None and bind.pod.uid in decided:
                assert nodes.overdrawn(row, entry.amounts) == []

    @precondition(lambda self: self.flight)
    @rule(data=st.data(), luck=LUCK)
    def bind_reaches_the_server(self, data: st.DataObject, luck: str) -> None:
        self.bind(data.draw(st.sampled_from(sorted(self.flight))), luck)

    def bind(self, uid: str, luck: str) -> None:
        bind = self.flight.pop(uid)
        refused = self.engine.may_bind(uid)
        assert refused == self.twin.may_bind(uid)
        if refused:
            outcome = BindOutcome.WITHDRAWN
        elif luck == "never arrived":
            outcome = BindOutcome.UNKNOWN
        elif luck == "refused":
            outcome = BindOutcome.REJECTED
        else:
            if luck == "stolen" and self.truth_nodes:
                self.steal(uid)
            outcome = self.at_the_server(bind)
            if luck == "answer lost" and outcome is not BindOutcome.GONE:
                outcome = BindOutcome.UNKNOWN
        self.both(lambda engine: engine.bind_finished(uid, outcome, refused or luck, self.now))

    @precondition(lambda self: self.tried)
    @rule(
        data=st.data(),
        outcome=st.sampled_from(
            [BindOutcome.BOUND, BindOutcome.BOUND, BindOutcome.REJECTED, BindOutcome.UNKNOWN, BindOutcome.GONE]
        ),
    )
    def rehearsal_ends(self, data: st.DataObject, outcome: BindOutcome) -> None:
        self.rehearse(data.draw(st.sampled_from(sorted(self.tried))), outcome)

    def rehearse(self, uid: str, outcome: BindOutcome) -> None:
        del self.tried[uid]
        self.both(lambda engine: engine.rehearsed(uid, outcome, "a webhook", self.now))

    def steal(self, uid: str) -> None:
        pod = self.truth_pods.get(uid)
        if pod is not None and not pod.spec.node_name:
            pod.spec.node_name = min(self.truth_nodes)
            self.disturb(pod)
            self.put_pod(pod)

    def at_the_server(self, bind: Bind) -> BindOutcome:
        pod = self.truth_pods.get(bind.pod.uid)
        if pod is None or pod.metadata.deletion_timestamp:
            return BindOutcome.GONE
        if pod.spec.node_name:
            ours = all(pod.metadata.annotations.get(key) == value for key, value in bind.annotations.items())
            return BindOutcome.BOUND if ours and pod.spec.node_name == bind.node else BindOutcome.TAKEN
        pod.spec.node_name = bind.node
        pod.metadata.annotations |= bind.annotations
        self.put_pod(pod)
        return BindOutcome.BOUND

    @rule(written=st.booleans())
    def another_process_takes_over(self, written: bool) -> None:
        """It waits until no bind of the last one can land any more, and starts from a fresh list."""
        for bind in self.flight.values():
            if written:
                self.at_the_server(bind)
        self.flight.clear()
        self.evictions.clear()
        self.tried.clear()
        self.watch.clear()
        self.engine, self.twin = self.new_engine(), self.new_engine()
        self.seen_nodes, self.seen_pods = {}, {}
        for node in self.truth_nodes.values():
            self.told("node", node.metadata.name, node)
        for pod in self.truth_pods.values():
            self.told("pod", pod.metadata.uid, pod)
            # No pod bears conditions here: a gang that ran complete and was found partially bound may be rolled back.
            self.disturb(pod)
        self.deliver(len(self.watch))

    # ------------------------------------------------------------ what holds at every moment

    @invariant()
    def a_node_is_charged_with_what_its_pods_hold(self) -> None:
        world = self.engine.world
        requested = np.zeros_like(world.nodes.requested)
        for entry in (entry for _, entry in world.ledger.items()):
            row = world.nodes.row_of.get(entry.node, -1)
            assert entry.row == row
            for column, amount in entry.amounts:
                requested[row, column] += amount if row >= 0 else 0
        for row, amounts in world.kept.items():
            for column, amount in amounts:
                requested[row, column] += amount
        for row, columns in world.nodes.claimed_columns.items():
            for column, amount in columns.items():
                requested[row, column] += amount
        requested[:, GPU] += world.nodes.devices.shared
        assert np.array_equal(requested, world.nodes.requested)

    @invariant()
    def residents_are_the_pods_of_the_ledger(self) -> None:
        world = self.engine.world
        entries = [entry for _, entry in world.ledger.items() if entry.row >= 0 and entry.profile is not None]
        wanted = Counter((entry.row, entry.profile) for entry in entries)
        assert {(row, profile): count for row, profile, count in world.pod_index.all()} == dict(wanted)

    @invariant()
    def what_is_assumed_is_on_its_way(self) -> None:
        stages = Counter(member.stage for workload in self.engine.workloads for member in workload.members.values())
        assert stages[Stage.ASSUMED] == self.engine.outcomes.in_flight <= self.engine.world.ledger.assumed

    @invariant()
    def stages_agree_with_the_ledger(self) -> None:
        for workload in self.engine.workloads:
            for member in workload.members.values():
                entry = self.engine.world.ledger.get(member.uid)
                if member.stage is Stage.PENDING:
                    assert entry is None
                    assert member.node == ""
                else:
                    assert entry is not None
                    assert entry.node == member.node
                    assert entry.assumed == (not self.seen_bound(member.uid, member.node))

    @invariant()
    def members_are_counted_by_stage(self) -> None:
        for workload in self.engine.workloads:
            stages = Counter(member.stage for member in workload.members.values())
            assert (workload.bound, workload.pending) == (stages[Stage.BOUND], stages[Stage.PENDING])

    def seen_bound(self, uid: str, node: str) -> bool:
        seen = self.seen_pods.get(uid)
        return seen is not None and seen.spec.node_name == node

    @invariant()
    def who_is_on_trial_is_on_its_way(self) -> None:
        admission_backoff = self.engine.outcomes.admission_backoff
        on_trial = {uid for held in admission_backoff._held.values() for uid in held.trial}
        assert on_trial == set(admission_backoff._trial)
        assert on_trial | set(admission_backoff._rehearsals) <= set(self.engine.outcomes._sent)

    @invariant()
    def every_pod_that_waits_has_a_place_in_the_queue(self) -> None:
        engine = self.engine
        for replica in (engine, self.twin):
            replica._queue_not_bound()
            replica.requeuer.settle(self.now)
        waiting = {w.id for w in engine.workloads if any(m.stage is Stage.PENDING for m in w.members.values())}
        assert {w.id for w in engine.workloads if engine.queue.place(w.id)} == waiting
        assert len(engine.queue) == len(waiting)
        assert engine.arrivals.unresolved() == []

    # ------------------------------------------------------------ what holds when all has come to rest

    def teardown(self) -> None:
        for uid in [uid for uid, pod in self.truth_pods.items() if pod.metadata.deletion_timestamp]:
            self.remove_pod(uid)  # a pod that terminates is gone at last
        self.come_to_rest()
        if self.engine.reserving.holds or self.config is CONFIGS[3]:
            # A new process holds nothing at first; what was held is for all once it is given back.
            self.config = NOTHING_HELD
            self.both(lambda engine: engine.configure(NOTHING_HELD))
            self.come_to_rest()
        self.every_pod_that_waits_has_a_place_in_the_queue()
        self.check_gangs()
        self.check_rebuilt()

    def come_to_rest(self) -> None:
        quiet = 0
        for _ in range(100):
            self.deliver(len(self.watch))
            self.step(11)
            # Longer than any pause of a workload, but for one in backoff.
            held = any(self.engine.queue.place(workload.id) is Place.BACKOFF for workload in self.engine.workloads)
            quiet = quiet + 1 if not (self.watch or self.flight or self.evictions or self.tried or held) else 0
            if quiet == 9:
                break  # no workload waits for victims any more either
            self.everything_is_answered()
        else:
            raise AssertionError("it never comes to rest")

    def everything_is_answered(self) -> None:
        """The server answers all that is on its way."""
        for uid in list(self.evictions):
            self.eviction(uid, refused=False, slow=False)
        for uid in list(self.tried):
            self.rehearse(uid, BindOutcome.BOUND)
        for uid in list(self.flight):
            self.bind(uid, "written")

    def check_gangs(self) -> None:
        for workload in self.engine.workloads:
            bound = sum(member.stage is Stage.BOUND for member in workload.members.values())
            assert not any(member.stage is Stage.ASSUMED for member in workload.members.values())
            if workload.gang and workload.id not in self.disturbed:
                assert bound == 0 or bound >= workload.size

    def check_rebuilt(self) -> None:
        """An engine that sees only what there is now believes the same, and finds nothing left undone."""
        fresh = self.new_engine()
        fresh.nodes_applied(self.seen_nodes.values(), self.now)
        fresh.pods_applied(self.seen_pods.values(), self.now)
        assert _ledger(fresh) == _ledger(self.engine)
        assert _requested(fresh) == _requested(self.engine)
        assert _reserved(fresh) == _reserved(self.engine)
        assert _devices(fresh) == _devices(self.engine)
        assert fresh.world.around.kinds.counts == self.engine.world.around.kinds.counts
        assert _places(fresh) == _places(self.engine)
        assert _waiting(fresh) == _waiting(self.engine)
        said = fresh.step(self.now, lambda: 0.0)
        assert [instruction for instruction in said if isinstance(instruction, Bind)] == [], (
            "a workload could be placed, and nothing woke it"
        )
        preemptors = {instruction.preemptor.uid for instruction in said if isinstance(instruction, Preempt)}
        assert not [uid for uid in preemptors if not self.tried_again_by_itself(uid)], (
            "pods could be evicted for it, and nothing woke it"
        )

    def tried_again_by_itself(self, uid: str) -> bool:
        """Return whether the workload of a pod is tried again at a known time, though nothing happens before."""
        membership, preempting = self.engine.workloads.of_pod(uid), self.engine.preempting
        if membership is None:
            return False
        id_, spared = membership[0].id, preempting._claims.spared.next_end(self.now)
        return id_ in preempting._turns.again or self.engine.queue.until(id_) is not None or spared is not None


def _ledger(engine: Engine) -> dict[str, tuple[object, ...]]:
    return {
        uid: (entry.node, entry.amounts, entry.assumed, entry.daemon, entry.devices)
        for uid, entry in engine.world.ledger.items()
    }


def _requested(engine: Engine) -> dict[str, dict[str, int]]:
    world, nodes = engine.world, engine.world.nodes
    held = world.held()
    return {
        name: {nodes.resources.names[column]: int(amount) for column, amount in enumerate(held[row]) if amount}
        for name, row in nodes.row_of.items()
    }


def _reserved(engine: Engine) -> dict[tuple[str, ...], int]:
    reserved = {("node", *link.path, link.level): link.reserved for link in survey_links(engine.world)}
    nodes = engine.world.nodes
    return reserved | {(name,): int(nodes.reserved_bandwidth[row]) for name, row in nodes.row_of.items()}


def _devices(engine: Engine) -> dict[str, list[int]]:
    devices = engine.world.nodes.devices
    return {name: devices.free[row, : devices.count[row]].tolist() for name, row in engine.world.nodes.row_of.items()}


def _places(engine: Engine) -> dict[str, tuple[str, ...]]:
    layout = engine.world.layout
    return {name: layout.paths[int(layout.leaf_of_row[row])] for name, row in engine.world.nodes.row_of.items()}


def _waiting(engine: Engine) -> dict[str, set[str]]:
    waiting = {
        workload.id: {uid for uid, member in workload.members.items() if member.stage is Stage.PENDING}
        for workload in engine.workloads
    }
    return {id_: uids for id_, uids in waiting.items() if uids}
