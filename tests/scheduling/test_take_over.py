"""Which namespace answers for evictions whose room a workload of higher priority takes over."""

from collections import Counter
from collections.abc import Sequence

import pytest

from tests.helpers import make_node, make_pod, timestamp
from tests.scheduling.driver import Driver
from tests.scheduling.running_pods import refill, victims
from topo_scheduler.api.objects import Pod
from topo_scheduler.scheduling.instructions import EvictionOutcome
from topo_scheduler.scheduling.preemption.freed_room import TakenBy, scarce_of, uses_half_of_scarce
from topo_scheduler.scheduling.preemption.take_over import EmptiedRoom, TakeOver
from topo_scheduler.state.nodes.resources import CPU, GPU, MEMORY, PODS

NODE = "n1"
KEY = "only"


def cluster(nodes: int) -> Driver:
    """Return nodes whose label names them."""
    d = Driver([make_node(f"n{number}", "s1/l1", labels={KEY: f"n{number}"}) for number in range(1, nodes + 1)])
    d.engine.budgets_known()
    d.now = 5000.0
    return d


def gang_on(
    d: Driver,
    name: str,
    nodes: Sequence[str],
    *,
    priority: int,
    gpus: int = 8,
    namespace: str = "evil",
    cpu: str = "1",
    memory: str = "1Gi",
) -> list[Pod]:
    """Apply a gang with a pod for each of these nodes."""
    annotations = {"gang-name": name, "gang-size": str(len(nodes))} if len(nodes) > 1 else {}
    pods = []
    for number, node in enumerate(nodes):
        pod = make_pod(
            f"{name}-{number}",
            gpus=gpus,
            cpu=cpu,
            memory=memory,
            namespace=namespace,
            priority=priority,
            created=d.now,
            annotations=annotations,
        )
        pod.spec.node_selector = {KEY: node}
        pods.append(pod)
    d.apply(*pods)
    d.step(1)
    return pods


def own_pod(d: Driver, node: str, gpus: int) -> Pod:
    """Apply a pod of the namespace itself that runs with the lowest priority."""
    pod = make_pod("own", gpus=gpus, namespace="evil", node=node, phase="Running")
    d.apply(pod)
    d.step(1)
    return pod


def counted(d: Driver) -> dict[str, dict[str, int]]:
    """How many failures count for each namespace: as its own, shared, or as those of others that have the room."""
    vain = d.engine.preempting.vain_evictions
    kinds = {"own": vain._pauses, "shared": vain._shared_pauses, "others": vain._lost_rooms}
    counts = {kind: {name: pause.times for name, pause in pauses.items()} for kind, pauses in kinds.items()}
    return {kind: times for kind, times in counts.items() if times}


def test_room_of_several_claims_that_are_taken_over_counts_together() -> None:
    """Four nodes are emptied in all, and at last one pod uses one of them."""
    d = cluster(4)
    refill(d, ("n1", "n2", "n3", "n4"), 0)
    d.step(1)
    below = [*gang_on(d, "a", ("n1", "n2"), priority=10), *gang_on(d, "b", ("n3", "n4"), priority=10)]
    evicted = victims(d)
    assert len(evicted) == 4
    d.evict(*evicted, vanish=False)
    above = gang_on(d, "c", ("n1", "n3"), priority=20)
    assert not counted(d), "it uses half of the room of each"
    claim = d.engine.preempting._claims.get("evil/c")
    assert claim is not None and claim.room is not None
    assert claim.room.evicted == dict.fromkeys(("n1", "n2", "n3", "n4"), 1)
    top = gang_on(d, "d", ("n1",), priority=30)
    assert counted(d) == {"own": {"evil": 1}}
    d.delete(*evicted, *below, *above)
    d.settle(1)
    assert d.where(*top)


def test_a_gang_that_takes_only_a_node_that_was_not_emptied_does_not_answer() -> None:
    d = cluster(2)
    refill(d, ("n1",), 0)
    own = own_pod(d, "n2", 4)
    below = gang_on(d, "a", ("n1", "n2"), priority=10, gpus=4)
    assert [pod.spec.node_name for pod in victims(d)] == ["n1"]
    above = gang_on(d, "b", ("n2",), priority=20)
    assert own in victims(d) and counted(d) == {"own": {"evil": 1}}
    d.evict(*victims(d))
    d.delete(*below)
    d.settle(1)
    assert d.where(*above)


def test_a_gang_that_takes_little_of_the_memory_for_which_pods_were_evicted_does_not_answer() -> None:
    d = cluster(2)
    for node in ("n1", "n2"):
        d.apply(make_pod(f"low-{node}", memory="500Gi", node=node, scheduler="other", phase="Running"))
    d.step(1)
    gang_on(d, "a", ("n1", "n2"), priority=10, gpus=0, cpu="1m", memory="495Gi")
    assert len(victims(d)) == 2
    gang_on(d, "b", ("n1", "n2"), priority=20, gpus=0, cpu="1m", memory="20Gi")
    assert counted(d) == {"own": {"evil": 1}}


def test_a_gang_that_takes_the_memory_only_does_not_answer_for_the_gpus() -> None:
    d = cluster(2)
    for node in ("n1", "n2"):
        d.apply(make_pod(f"low-{node}", gpus=8, memory="200Gi", node=node, scheduler="other", phase="Running"))
    d.step(1)
    gang_on(d, "a", ("n1", "n2"), priority=10, gpus=4, memory="400Gi")
    assert len(victims(d)) == 2
    gang_on(d, "b", ("n1", "n2"), priority=20, gpus=0, memory="400Gi")
    assert counted(d) == {"own": {"evil": 1}}


def test_a_node_that_only_own_pods_leave_was_not_emptied_of_others() -> None:
    """The gang has most of its pods on the node that its own pod fills."""
    d = cluster(3)
    refill(d, ("n1", "n2"), 0)
    own_pod(d, "n3", 8)
    gang_on(d, "a", ("n1", "n2", *["n3"] * 6), priority=10, gpus=1)
    assert {pod.spec.node_name for pod in victims(d)} == {"n1", "n2", "n3"}
    gang_on(d, "b", ("n3",), priority=20)
    assert counted(d) == {"own": {"evil": 1}}


def test_pods_that_are_bound_where_only_own_pods_left_use_no_room_of_others() -> None:
    d = cluster(3)
    refill(d, ("n1", "n2"), 0)
    own_pod(d, "n3", 8)
    pods = gang_on(d, "a", ("n1", "n2", *["n3"] * 6), priority=10, gpus=1)
    d.evict(*victims(d))
    d.step(1)
    assert len(d.flight) == len(pods)
    for pod in pods[2:]:
        d.answer(pod.metadata.uid)
    d.delete(*pods[:2])
    d.step(1)
    assert counted(d) == {"own": {"evil": 1}}


def test_a_gang_whose_own_victim_stays_as_another_tenant_withdraws_its_eviction_is_not_to_blame() -> None:
    d = cluster(3)
    refill(d, ("n1",), 0)
    low = make_pod("low", gpus=8, namespace="innocent", node="n2", phase="Running")
    d.apply(low)
    d.step(1)
    hostile = gang_on(d, "a", ("n2",), priority=10, gpus=4)
    assert victims(d) == [low]
    gang_on(d, "w", ("n1", "n2"), priority=10, gpus=4, namespace="innocent")
    d.evict(*(pod for pod in victims(d) if pod is not low))
    d.delete(*hostile)
    d.evict(low, outcome=EvictionOutcome.WITHDRAWN)
    d.step(1)
    assert "innocent" not in counted(d).get("own", {})


def test_an_innocent_gang_that_only_waits_for_a_pod_does_not_answer_for_evictions_elsewhere() -> None:
    d = cluster(2)
    refill(d, ("n1", "n2"), 0)
    ends = next(pod for pod in d.pods.values() if pod.spec.node_name == "n1")
    ends.metadata.deletion_timestamp = timestamp(d.now + 60)
    d.apply(ends)
    d.step(1)
    gang_on(d, "a", ("n1", "n2"), priority=10)
    assert [pod.spec.node_name for pod in victims(d)] == ["n2"]
    waits = gang_on(d, "w", ("n1",), priority=20, namespace="innocent")
    assert counted(d) == {"shared": {"evil": 1}}
    d.delete(*waits)
    d.step(1)
    assert not any("innocent" in times for times in counted(d).values())


def test_a_refused_victim_counts_for_evictions_that_were_taken_over() -> None:
    d = cluster(2)
    refill(d, ("n1",), 0)
    own = own_pod(d, "n2", 8)
    gang_on(d, "a", ("n1",), priority=10)
    d.evict(*victims(d))
    gang_on(d, "b", ("n1", "n2"), priority=20)
    assert victims(d) == [own] and not counted(d)
    d.evict(own, outcome=EvictionOutcome.BLOCKED)
    assert counted(d) == {"own": {"evil": 1}}


@pytest.mark.parametrize("outcome", [EvictionOutcome.BLOCKED, EvictionOutcome.UNCONFIRMED])
def test_a_victim_of_another_workload_that_stays_counts_once_others_were_evicted(outcome: EvictionOutcome) -> None:
    d = cluster(2)
    refill(d, ("n1",), 0)
    own = own_pod(d, "n2", 8)
    gang_on(d, "a", ("n2",), priority=10, gpus=4)
    gang_on(d, "b", ("n1", "n2"), priority=10, gpus=4)
    assert len(victims(d)) == 2
    d.evict(*(pod for pod in victims(d) if pod is not own))
    d.evict(own, outcome=outcome)
    d.step(1)
    assert counted(d) == {"own": {"evil": 1}}


def test_a_workload_that_answers_for_room_needs_half_of_its_scarce_resource() -> None:
    wanted = Counter({GPU: 8, CPU: 1000, PODS: 1})
    nodes = cluster(1).engine.world.nodes
    room = {NODE: dict(wanted)}
    assert uses_half_of_scarce(nodes, wanted, room, {NODE: {GPU: 4, CPU: 1}})
    assert not uses_half_of_scarce(nodes, wanted, room, {NODE: {GPU: 3, CPU: 1000, PODS: 1}})
    assert not uses_half_of_scarce(nodes, wanted, room, {"elsewhere": {GPU: 8}})
    without = Counter({CPU: 10_000, PODS: 1})
    assert uses_half_of_scarce(nodes, without, {NODE: dict(without)}, {NODE: {CPU: 5000}})
    assert not uses_half_of_scarce(nodes, without, {NODE: dict(without)}, {NODE: {CPU: 4999, PODS: 1}})


def test_the_scarce_resource_is_the_largest_part_of_the_nodes_and_users_do_not_choose_it() -> None:
    nodes = cluster(2).engine.world.nodes
    memory = int(nodes.allocatable[nodes.row_of[NODE], MEMORY])
    both = (NODE, "n2")
    assert scarce_of(nodes, [NODE], {GPU: 8, MEMORY: memory}) == {GPU: 8}, "of equal parts GPUs"
    assert scarce_of(nodes, [NODE], {GPU: 1, CPU: 1, MEMORY: memory // 2}) == {MEMORY: memory // 2}
    assert scarce_of(nodes, both, {GPU: 4, MEMORY: memory // 2}) == {GPU: 4}
    assert scarce_of(nodes, ["gone"], {GPU: 1, CPU: 1, MEMORY: memory}) == {GPU: 1}
    assert scarce_of(nodes, both, {}) == {}


def test_what_a_workload_uses_of_one_room_counts_for_no_other() -> None:
    taking = TakeOver(cluster(1).engine.world.nodes, "ns", {NODE: Counter({GPU: 4})}, devices=1)
    room = EmptiedRoom("ns", {NODE: {GPU: 4}}, {GPU: 4}, {NODE: 1}, devices=1)
    assert taking.taken_by(room) is None
    assert taking.taken_by(room) is TakenBy.ITS_NAMESPACE
    assert taking.wanted == {GPU: 4} and taking.emptied == {NODE} and taking.evicted == {NODE: 1}


def test_half_of_all_that_pods_were_evicted_for_must_be_used() -> None:
    """Amounts of each resource, nodes with half of the evicted pods, and devices of claims."""
    nodes = cluster(2).engine.world.nodes
    amounts = {NODE: {GPU: 4, MEMORY: 10}, "n2": {GPU: 4, MEMORY: 10}}
    room = EmptiedRoom("ns", amounts, {GPU: 8, MEMORY: 20}, {NODE: 1, "n2": 3}, devices=4)

    def taken(left: dict[str, Counter[int]], devices: int = 2, namespace: str = "ns") -> TakenBy | None:
        return TakeOver(nodes, namespace, dict(left), devices).taken_by(room)

    enough = {"n2": Counter({GPU: 4, MEMORY: 10})}
    assert taken(enough) is None
    assert taken(enough, devices=1) is TakenBy.ITS_NAMESPACE
    assert taken({NODE: Counter({GPU: 4, MEMORY: 10})}) is TakenBy.ITS_NAMESPACE, "one of four was evicted there"
    assert taken({"n2": Counter({GPU: 4, MEMORY: 9})}) is TakenBy.ITS_NAMESPACE
    assert taken({"n2": Counter({GPU: 3, MEMORY: 10}), NODE: Counter({MEMORY: 10})}) is TakenBy.ITS_NAMESPACE
    assert taken(enough, namespace="other") is TakenBy.OTHERS, "another namespace answers for its own evictions only"
    assert taken({"n2": Counter({GPU: 3, MEMORY: 10})}, namespace="other") is TakenBy.OTHERS_IN_PART
