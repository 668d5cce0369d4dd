"""A pod whose room a reservation takes in part may be preempted for the rest; one whose room it takes whole may not."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers import timestamp
from tests.scheduling.driver import Driver, fabric, gang, reservations_by_name
from tests.scheduling.planning import Small, grid, pods
from tests.scheduling.planning import gang as gang_of
from tests.scheduling.planning import single as one_pod
from tests.scheduling.preemption_scenes import (
    PreemptionScene,
    RunningPod,
    placement_queries,
    preemption_scene,
    running_pods,
)
from tests.scheduling.running_pods import run_pod_until, timed_pod, with_duration
from topo_scheduler.api.objects import Pod
from topo_scheduler.scheduling.placing.model.placement_query import Placement, PlacementQuery
from topo_scheduler.scheduling.preemption.shares import ReservationShare
from topo_scheduler.state.nodes.resources import GPU
from topo_scheduler.state.pods.constraints import Constraints
from topo_scheduler.state.pods.pod_groups import Disruption
from topo_scheduler.state.pods.profiles import ANY_ADDRESS, Port


def driver(leaves: dict[str, int]) -> Driver:
    d = Driver(fabric(leaves))
    d.engine.budgets_known()
    return d


def low(d: Driver, name: str, node: str, *, gpus: int = 8, ends: float = 7200, port: int = 0) -> Pod:
    """A pod of priority 0, for whose end reservations wait."""
    pod = run_pod_until(d, name, node, gpus=gpus, ends=ends)
    pod.spec.priority = 0
    d.apply(pod)
    return pod


def reserving(d: Driver, name: str = "reserving", *, gpus: int, priority: int = 5) -> Pod:
    """A pod that evicts no pod, and for which a node is reserved until pods end there."""
    pod = timed_pod(name, priority=priority, gpus=gpus)
    pod.spec.preemption_policy = "Never"
    d.apply(pod)
    d.step()
    d.step(31)
    assert name in reservations_by_name(d)
    return pod


# ---------------------------------------------------------------- to the end


@pytest.mark.parametrize("priority", [3, 5])
def test_one_gives_way_for_the_part_of_its_room_that_is_not_held(priority: int) -> None:
    d = driver({"s1/l1": 1})
    v = low(d, "v", "s1-l1-1")
    first = reserving(d, gpus=2)
    late = timed_pod("late", priority=priority, gpus=6)
    d.run(late)
    assert d.preempted() == ["v"]
    d.evict(v)
    d.settle()
    assert d.where(first, late) == {"reserving": "s1-l1-1", "late": "s1-l1-1"}


@pytest.mark.parametrize(("gpus", "victims"), [(6, 0), (7, 0), (8, 0), (1, 1), (5, 5)])
def test_of_many_pods_as_many_give_way_as_leave_room_for_both(gpus: int, victims: int) -> None:
    """The reservation takes three GPUs of the eight: beside it there is room for five."""
    d = driver({"s1/l1": 1})
    running = {f"v{n}": low(d, f"v{n}", "s1-l1-1", gpus=1) for n in range(8)}
    first = reserving(d, gpus=3)
    late = timed_pod("late", priority=5, gpus=gpus)
    d.run(late)
    d.step(20)
    assert len(d.preempted()) == victims
    d.evict(*(running[name] for name in d.preempted()))
    d.settle()
    assert bool(d.where(late)) is bool(victims)
    d.delete(*(pod for name, pod in running.items() if name not in d.preempted()))
    d.settle()
    assert d.where(first)


def test_what_comes_free_is_taken_by_the_higher_priority_and_then_more_give_way() -> None:
    """What is nominated to one of lower priority is not kept from the other: both get room in the end."""
    d = driver({"s1/l1": 1})
    running = {f"v{n}": low(d, f"v{n}", "s1-l1-1", gpus=1) for n in range(8)}
    first = reserving(d, gpus=3)
    late = timed_pod("late", priority=3, gpus=5)
    d.run(late)
    assert len(d.preempted()) == 5
    d.evict(*(running.pop(name) for name in d.preempted()))
    d.settle()
    assert d.where(first, late) == {"reserving": "s1-l1-1"}
    d.step(2)
    assert len(d.preempted()) == 8
    d.evict(*running.values())
    d.settle()
    assert len(d.where(first, late)) == 2


def test_two_reservations_leave_what_neither_takes() -> None:
    d = driver({"s1/l1": 1})
    running = {name: low(d, name, "s1-l1-1", gpus=4, ends=ends) for name, ends in (("soon", 3600), ("later", 7200))}
    first, second = reserving(d, gpus=3), reserving(d, "second", gpus=2, priority=4)
    assert len(reservations_by_name(d)) == 2
    for name, gpus in (("wants-4", 4), ("wants-3", 3)):
        late = timed_pod(name, priority=3, gpus=gpus)
        d.run(late)
        d.step(60)
    assert d.preempted() == ["later", "soon"]
    d.evict(*running.values())
    d.settle()
    assert len(d.where(first, second, late)) == 3


def test_one_that_goes_anyhow_is_waited_for_where_its_room_is_enough_for_both() -> None:
    d = driver({"s1/l1": 2})
    v = low(d, "v", "s1-l1-1", ends=7200)
    low(d, "x", "s1-l1-2", ends=72_000)
    first = reserving(d, gpus=2)
    v.metadata.deletion_timestamp = timestamp(d.now + 30)
    d.apply(v)
    late = timed_pod("late", priority=3, gpus=6)
    d.run(late)
    assert d.preempted() == []
    assert d.nominated() == {"late": "s1-l1-1"}
    d.delete(v)
    d.settle()
    assert len(d.where(first, late)) == 2


def test_one_that_goes_anyhow_for_others_is_not_waited_for() -> None:
    d = driver({"s1/l1": 2})
    v, x = low(d, "v", "s1-l1-1", ends=7200), low(d, "x", "s1-l1-2", ends=72_000)
    first = reserving(d, gpus=2)
    v.metadata.deletion_timestamp = timestamp(d.now + 30)
    d.apply(v)
    late = timed_pod("late", priority=3, gpus=7)
    d.run(late)
    assert d.preempted() == ["x"]
    d.evict(x)
    d.delete(v)
    d.settle()
    assert d.where(first, late) == {"reserving": "s1-l1-1", "late": "s1-l1-2"}


@pytest.mark.parametrize(("lasts", "victims"), [(7100, ["v"]), (7159, [])])
def test_one_that_would_end_in_time_only_if_it_started_at_once_evicts_no_pod(lasts: int, victims: list[str]) -> None:
    """The node is reserved for two hours after the start. 31 seconds have passed; 29 more pass until it has room."""
    d = driver({"s1/l1": 1})
    v = low(d, "v", "s1-l1-1", ends=7200)
    first = reserving(d, gpus=8)
    late = timed_pod("late", f"{lasts}s", priority=5)
    d.run(late)
    assert d.preempted() == victims
    d.step(29)
    d.evict(*[v] * len(victims))
    d.settle()
    assert bool(d.where(late)) is bool(victims)
    assert not d.where(first)


@pytest.mark.unrecorded
def test_a_gang_is_not_kept_whole_by_a_reservation_for_a_part_of_one_member() -> None:
    d = driver({"s1/l1": 8})
    pods = with_duration(gang(8, name="v"), "2h")
    d.run(*pods)
    for pod in pods:
        pod.status.phase, pod.status.start_time = "Running", timestamp(0)
    d.apply(*pods)
    for workload in d.engine.workloads:
        workload.disruption_mode = Disruption.GANG
    first = reserving(d, gpus=2)
    late = timed_pod("late", priority=3, gpus=8)
    d.run(late)
    assert d.preempted() == [f"v-{n}" for n in range(8)]
    d.evict(*pods)
    d.settle()
    assert len(d.where(first, late)) == 2


# ---------------------------------------------------------------- the search


def share(s: PreemptionScene, node: str, takes: int, *names: str) -> ReservationShare:
    """What a reservation takes of the GPUs of a node while it waits for pods there."""
    (row,) = s.small.rows(node)
    entries = ((name, s.small.world.ledger.get(name)) for name in names)
    return ReservationShare(row, {GPU: takes}, {name: entry.amounts for name, entry in entries if entry is not None})


def test_the_cheapest_goes_though_not_all_of_the_room_of_such_pods_is_left() -> None:
    """Of four pods any one leaves its room: the dearest ones are not left out as those that go to the reservation."""
    s = preemption_scene(1, *(RunningPod("s1l1n1", gpus=2, ran=ran) for ran in (300, 100, 200, 400)))
    s.shares = [share(s, "s1l1n1", 6, "v0", "v1", "v2", "v3")]
    assert s.victims(one_pod(2)) == ["v1"]
    assert s.plan(one_pod(3)) is None


def test_one_of_higher_priority_goes_where_the_others_room_is_held() -> None:
    s = preemption_scene(1, RunningPod("s1l1n1", gpus=4, priority=0), RunningPod("s1l1n1", gpus=4, priority=5))
    s.shares = [share(s, "s1l1n1", 4, "v0")]
    assert s.victims(one_pod(4)) == ["v1"]
    assert s.plan(one_pod(5)) is None


def test_what_two_reservations_leave_of_a_node_is_added_up() -> None:
    """Of three and three GPUs there is one left each: for four the dear pod has to go as well."""
    s = preemption_scene(
        1, RunningPod("s1l1n1", gpus=3), RunningPod("s1l1n1", gpus=3), RunningPod("s1l1n1", gpus=2, ran=10_000)
    )
    s.shares = [share(s, "s1l1n1", 2, "v0"), share(s, "s1l1n1", 2, "v1")]
    assert s.victims(one_pod(2)) == ["v0", "v1"]
    assert s.victims(one_pod(4)) == ["v0", "v1", "v2"]
    assert s.plan(one_pod(5)) is None


def test_the_trial_of_places_begins_where_room_is_left() -> None:
    nodes = 60
    s = preemption_scene(nodes, *(RunningPod(f"s1l1n{n}", ran=n, port=80) for n in range(1, nodes + 1)))
    s.shares = [share(s, f"s1l1n{n}", 8, f"v{n - 1}") for n in range(1, nodes)]
    cls = replace(pods(8), constraints=Constraints("default", ports=(Port(ANY_ADDRESS, "TCP", 80),)))
    assert s.victims(PlacementQuery([(cls, 1)], gang=False)) == [f"v{nodes - 1}"]


def test_nothing_is_charged_by_a_search() -> None:
    s = preemption_scene(1, RunningPod("s1l1n1"))
    s.shares = [share(s, "s1l1n1", 2, "v0")]
    before = s.small.world.nodes.requested.copy()
    assert s.victims(gang_of(1, 6)) == ["v0"]
    assert (s.small.world.nodes.requested == before).all()


@given(data=st.data(), ask=placement_queries, mode=st.sampled_from(["pod", "gang"]), by_trial=st.booleans())
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_other_set_costs_less_beside_reservations(
    data: st.DataObject, ask: PlacementQuery, mode: str, by_trial: bool
) -> None:
    """Up to two reservations on each node, which wait for different pods there."""
    running = data.draw(running_pods(gangs=True, budgets=True))
    s = PreemptionScene(Small(grid(1, 2, 2, gpus=4)), running)
    for name in {pod.gang for pod in running if pod.gang}:
        s.gang(name, sum(pod.gang == name for pod in running), mode)
    for name in ("b", "c"):
        s.budget(name, data.draw(st.integers(0, 2)))
    awaited: dict[tuple[str, int], list[int]] = {}
    for number, candidate in enumerate(running):
        if by := data.draw(st.sampled_from([0, 1, 1, 2])):
            awaited.setdefault((candidate.node, by), []).append(number)
    for (node, _), numbers in sorted(awaited.items()):
        takes = data.draw(st.integers(0, sum(running[number].gpus for number in numbers)))
        s.shares.append(share(s, node, takes, *(f"v{number}" for number in numbers)))
    if by_trial:
        cls, members = ask.groups[0]
        if members > 1:
            return
        ports = (Port(ANY_ADDRESS, "TCP", 80),)
        ask = replace(ask, groups=[(replace(cls, constraints=Constraints("default", ports=ports)), 1)])
    if isinstance(s.small.plan(ask), Placement):
        return
    plan, best = s.plan(ask), s.cheapest(ask)
    assert (plan is None) == (best is None)
    if plan is not None and best is not None:
        assert plan.key == best
