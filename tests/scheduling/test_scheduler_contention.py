"""Other schedulers bind pods to the same nodes at the same moment: room is left for their pods."""

import pytest

from tests.helpers import controlled_by, make_node, make_pod
from tests.scheduling.driver import Driver, configured, copies, gang
from topo_scheduler.api.config import Configuration
from topo_scheduler.api.objects import OwnerReference, Pod
from topo_scheduler.scheduling.binding.contention import (
    IN_FLIGHT_SECONDS,
    KEPT_NODES_PER_POD,
    LOST_SECONDS,
    MAX_BINDS_IN_FLIGHT,
    MAX_TRIALS,
    MIN_KEPT_NODES,
    PENDING_SECONDS,
    RECENT_SECONDS,
    SETTLED_SECONDS,
    STALE_SECONDS,
    USED_SECONDS,
)
from topo_scheduler.scheduling.instructions import BindOutcome
from topo_scheduler.scheduling.queueing.queue import Place
from topo_scheduler.scheduling.queueing.queue_keys import order_of

THEIRS = "default-scheduler"


def theirs(name: str, cpu: str = "1", **more: object) -> Pod:
    """A pod of another scheduler."""
    return make_pod(name, cpu=cpu, scheduler=THEIRS, **more)  # type: ignore[arg-type]


def shared(*cpus: int, config: Configuration | None = None) -> Driver:
    """Nodes n0, n1, … with so many CPUs free beside a pod of another scheduler that runs there."""
    d = Driver([make_node(f"n{i}", gpus=0, cpu=str(free + 1)) for i, free in enumerate(cpus)], config, leaves_room=True)
    for number in range(len(cpus)):
        d.apply(theirs(f"runs-{number}", node=f"n{number}", phase="Running"))
    d.settle()
    return d


def test_no_room_is_left_while_no_other_scheduler_places_pods() -> None:
    d = shared(1)
    assert d.run(make_pod("ours", cpu="1")) == {"ours": "n0"}


def test_while_pods_of_others_wait_room_for_two_of_them_is_left() -> None:
    d = shared(3)
    d.apply(theirs("waits"))
    assert d.run(make_pod("first", cpu="1")) == {"first": "n0"}
    assert d.run(second := make_pod("second", cpu="1")) == {}
    assert (
        "1 node(s) keep room for pods of other schedulers that are being placed, for 60 s at most" in d.told(second)[0]
    )


def test_a_node_is_taken_that_has_more_room() -> None:
    d = shared(2, 3)
    d.apply(theirs("waits"))
    assert d.run(make_pod("ours", cpu="1")) == {"ours": "n1"}


def test_nodes_without_pods_of_others_are_not_meant() -> None:
    d = Driver([make_node("ours", gpus=0, cpu="1")], leaves_room=True)
    d.apply(theirs("waits"))
    assert d.run(make_pod("p", cpu="1")) == {"p": "ours"}


def test_pods_of_daemonsets_are_no_pods_of_others() -> None:
    d = Driver([make_node("n0", gpus=0, cpu="2")], leaves_room=True)
    d.apply(theirs("daemon", node="n0", owner=controlled_by("DaemonSet", "exporter"), phase="Running"))
    d.apply(theirs("waits"))
    assert d.run(make_pod("p", cpu="1")) == {"p": "n0"}


def test_pods_of_a_kind_named_daemonset_in_another_group_are_pods_of_others() -> None:
    d = Driver([make_node("n0", gpus=0, cpu="2")], leaves_room=True)
    owner = OwnerReference("example.com/v1", "DaemonSet", "exporter", "uid-exporter", controller=True)
    d.apply(theirs("daemon", node="n0", owner=owner, phase="Running"))
    d.apply(theirs("waits"))
    assert d.run(make_pod("p", cpu="1")) == {}


def test_what_is_left_is_given_back_when_the_others_are_done() -> None:
    d = shared(2)
    d.apply(waits := theirs("waits"))
    assert d.run(ours := make_pod("ours", cpu="1")) == {}
    d.apply(theirs("waits", node="n0", uid=waits.metadata.uid))
    d.settle(SETTLED_SECONDS - 0.1)
    assert d.where(ours) == {}
    d.settle(0.2)
    assert d.where(ours) == {"ours": "n0"}


def test_pods_of_others_that_wait_for_long_are_not_waited_for() -> None:
    d = shared(1)
    d.apply(theirs("waits", cpu="1"))
    assert d.run(ours := make_pod("ours", cpu="1")) == {}
    d.settle(PENDING_SECONDS + 0.1)
    assert d.where(ours) == {"ours": "n0"}


def test_the_largest_that_came_lately_decides_how_much_is_left() -> None:
    d = shared(9)
    d.apply(theirs("large", cpu="3", node="n0"))
    d.apply(theirs("small", cpu="1", node="n0"))
    assert d.run(make_pod("ours", cpu="1")) == {}, "5 are free, 6 are left for others"


def test_no_more_is_left_than_what_came_lately() -> None:
    d = shared(9)
    d.apply(theirs("large", cpu="3", node="n0"))
    for number in range(int(RECENT_SECONDS / 5) + 1):
        d.settle(5)
        d.apply(theirs(f"waits-{number}"))
    d.apply(theirs("small", cpu="1", node="n0"))
    assert d.run(make_pod("ours", cpu="3")) == {"ours": "n0"}, "5 are free, 2 are left for others"


def test_patience_ends() -> None:
    d = shared(1, config=configured("{otherSchedulers: {maxWait: 20s}}"))
    d.apply(theirs("waits"))
    assert d.run(ours := make_pod("ours", cpu="1")) == {}
    for second in range(0, 20, 5):
        d.apply(theirs(f"more-{second}"))
        assert d.where(ours) == {}
        d.settle(5)
    d.settle(0.1)
    assert d.where(ours) == {"ours": "n0"}


def test_no_pod_is_evicted_for_room_that_is_left_for_others() -> None:
    d = shared(2)
    d.engine.budgets_known()
    d.engine.may_preempt()
    d.run(make_pod("lower", cpu="1", priority=-5))
    d.apply(theirs("waits"))
    d.run(upper := make_pod("upper", cpu="1", priority=5))
    assert d.preempted() == []
    assert "keep room" in d.told(upper)[0]


def test_a_pod_that_has_no_room_anyway_gets_the_true_reason_and_may_preempt() -> None:
    d = shared(2)
    d.engine.budgets_known()
    d.engine.may_preempt()
    d.run(make_pod("lower", cpu="1", priority=-5))
    d.apply(theirs("waits"))
    d.run(upper := make_pod("upper", cpu="2", priority=5))
    assert d.preempted() == ["lower"]
    assert "keep room" not in d.told(upper)[0]


def test_it_can_be_switched_off() -> None:
    d = shared(1, config=configured("{otherSchedulers: {reservedPodsPerNode: 0}}"))
    d.apply(theirs("waits"))
    assert d.run(make_pod("ours", cpu="1")) == {"ours": "n0"}


def test_a_bind_that_was_decided_is_not_written_when_others_fill_the_node() -> None:
    d = shared(2)
    d.apply(make_pod("ours", cpu="2"))
    d.step()
    assert [bind.node for bind in d.flight.values()] == ["n0"]
    d.engine.pods_applied(copies([theirs("waits")]), d.now)
    d.step()
    uid = next(iter(d.flight))
    assert d.engine.may_bind(uid) == "another scheduler is filling node n0 at the same moment"


def test_room_left_for_others_causes_no_event_that_a_node_has_too_little() -> None:
    d = shared(2)
    d.run(ours := make_pod("ours", cpu="2"))
    d.apply(theirs("waits"))
    d.apply(theirs("tiny", cpu="0", node="n0"))
    d.step()
    assert d.told(ours)[1:] == [], "what is left is no pod"


def test_gangs_wait_as_well() -> None:
    d = shared(3, 3)
    d.apply(theirs("waits"))
    four = gang(4, gpus=0, name="four")
    assert d.run(*four) == {}
    d.settle(PENDING_SECONDS + 0.1)
    assert len(d.where(*four)) == 4


def test_a_gang_of_which_some_are_bound_does_not_wait_for_others() -> None:
    d = shared(9)
    three = gang(3, gpus=0, name="three")
    d.apply(*three)
    d.step()
    first, *others = list(d.flight)
    d.answer(first)
    d.engine.pods_applied(copies([theirs("waits", cpu="8")]), d.now)
    d.step()
    assert [d.engine.may_bind(uid) for uid in others] == ["", ""], "the first is bound"
    for uid in others:
        d.answer(uid, BindOutcome.WITHDRAWN)
    d.settle(5)
    assert len(d.where(*three)) == 3


def test_what_is_left_goes_with_its_node() -> None:
    d = shared(2)
    d.apply(theirs("waits"))
    d.step()
    d.engine.node_deleted("n0", "")
    d.engine.nodes_applied([make_node("n0", gpus=0, cpu="3")], d.now)
    d.settle(PENDING_SECONDS + 0.1)
    world = d.engine.world
    assert not world.kept
    assert world.nodes.requested[world.nodes.row_of["n0"], 0] == 1000


def test_where_nothing_was_heard_of_others_for_long_nothing_is_left_even_while_they_go_on_elsewhere() -> None:
    d = Driver([make_node("n0", gpus=0, cpu="2"), make_node("n1", gpus=0, cpu="8")], leaves_room=True)
    d.apply(theirs("runs", node="n0", phase="Running"))
    for number in range(int(USED_SECONDS / 5)):
        d.apply(theirs(f"comes-{number}", cpu="0", node="n1"))  # some pod is always pending or came a moment ago
        d.apply(theirs(f"waits-{number}"))
        if number == 1:
            assert "n0" in kept(d)
        d.settle(5)
    assert "n0" not in kept(d)
    assert "n1" in kept(d)


def kept(d: Driver) -> set[str]:
    """Nodes on which room is left for others."""
    return {d.engine.world.nodes.names[row] for row in d.engine.world.kept}


def test_nothing_is_decided_while_the_watch_is_late_and_others_place_pods() -> None:
    d = shared(50)
    d.apply(theirs("waits"))
    d.apply(make_pod("first", cpu="1"))
    d.step()
    (uid,) = d.flight
    d.engine.bind_finished(uid, BindOutcome.BOUND, "", d.now)  # the watch does not report it
    d.now += STALE_SECONDS + 0.01
    d.apply(make_pod("second", cpu="1"))
    d.step()
    assert len(d.flight) == 1, "the second is not decided"
    assert not d.engine.pending_work, "and nobody spins"
    assert d.engine.next_due() is not None
    d.now += LOST_SECONDS
    d.apply(theirs("others-go-on"))
    d.step()
    assert len(d.flight) == 2, f"after {LOST_SECONDS} s the news are not waited for"


def test_the_engine_does_not_spin_while_the_watch_is_late_and_the_others_are_done() -> None:
    d = shared(50)
    waits = theirs("waits")
    d.apply(waits, make_pod("ours", cpu="1"))
    d.step()
    (uid,) = d.flight
    waits.spec.node_name = "n0"
    d.apply(waits)
    d.step(SETTLED_SECONDS - 0.1)
    d.engine.bind_finished(uid, BindOutcome.BOUND, "", d.now)  # the watch does not report it
    d.step(STALE_SECONDS + 0.1)
    steps = 0
    while d.engine.world.kept:
        due = d.engine.next_due()
        assert due is not None
        assert due > d.now
        d.step(due - d.now)
        steps += 1
    assert steps <= 10


def test_beside_others_few_binds_are_on_their_way_at_once() -> None:
    d = shared(500)
    d.apply(theirs("waits"), *(make_pod(f"p{number}", cpu="1") for number in range(2 * MAX_BINDS_IN_FLIGHT)))
    d.step()
    assert len(d.flight) == MAX_BINDS_IN_FLIGHT
    assert not d.engine.pending_work, "and nobody spins"
    d.settle()
    assert (
        len(d.where(*(pod for pod in d.pods.values() if pod.metadata.name.startswith("p")))) == 2 * MAX_BINDS_IN_FLIGHT
    )


@pytest.mark.unrecorded
def test_the_end_of_a_backoff_asks_for_no_step_while_nothing_is_decided() -> None:
    d = shared(500)
    d.apply(theirs("waits"), *(make_pod(f"p{number}", cpu="1") for number in range(2 * MAX_BINDS_IN_FLIGHT)))
    d.step()
    queue = d.engine.queue
    waits = next(workload for workload in d.engine.workloads if queue.place(workload.id) is Place.ACTIVE)
    queue.back_off(order_of(waits), d.now + IN_FLIGHT_SECONDS / 4)
    d.step(IN_FLIGHT_SECONDS / 2)
    due = d.engine.next_due()
    assert due is not None
    assert due > d.now


def test_binds_that_hang_delay_no_other_pod() -> None:
    d = shared(500)
    d.apply(theirs("waits"), *(make_pod(f"p{number}", cpu="1") for number in range(2 * MAX_BINDS_IN_FLIGHT)))
    d.step()
    due = d.engine.next_due()
    assert due is not None
    assert due <= d.now + IN_FLIGHT_SECONDS
    d.now += IN_FLIGHT_SECONDS + 0.01
    d.step()
    assert len(d.flight) == 2 * MAX_BINDS_IN_FLIGHT, "none of the first was answered"


def test_it_goes_on_for_a_while_after_the_others() -> None:
    d = shared(500)
    d.apply(theirs("waits"))
    d.step()
    d.settle(PENDING_SECONDS + 0.1)
    assert not d.engine.world.kept
    d.apply(*(make_pod(f"p{number}", cpu="1") for number in range(2 * MAX_BINDS_IN_FLIGHT)))
    d.step()
    assert len(d.flight) == MAX_BINDS_IN_FLIGHT
    d.settle(RECENT_SECONDS)
    d.apply(*(make_pod(f"q{number}", cpu="1") for number in range(2 * MAX_BINDS_IN_FLIGHT)))
    d.step()
    assert len(d.flight) == 2 * MAX_BINDS_IN_FLIGHT


@pytest.mark.parametrize("key", ["reservedPodsPerNode: -1", "maxWait: -1s", "margin: 2"])
def test_bad_configuration_is_named(key: str) -> None:
    with pytest.raises(ValueError, match=r"spec\.otherSchedulers"):
        configured(f"{{otherSchedulers: {{{key}}}}}")


def test_binds_of_one_namespace_that_are_not_answered_hold_up_no_other() -> None:
    d = shared(500)
    slow = [make_pod(f"p{number}", cpu="1", namespace="slow") for number in range(2 * MAX_BINDS_IN_FLIGHT)]
    d.apply(theirs("waits"), *slow)
    d.step()
    assert len(d.flight) == MAX_BINDS_IN_FLIGHT
    d.apply(*(make_pod(f"q{number}", cpu="1", namespace="other") for number in range(MAX_BINDS_IN_FLIGHT)))

    def in_flight() -> dict[str, list[str]]:
        by_namespace: dict[str, list[str]] = {"slow": [], "other": []}
        for uid, bind in d.flight.items():
            by_namespace[bind.pod.namespace].append(uid)
        return by_namespace

    for _ in range(2):
        d.step(0.01)
        assert {name: len(uids) for name, uids in in_flight().items()} == {
            "slow": MAX_BINDS_IN_FLIGHT,
            "other": MAX_BINDS_IN_FLIGHT // 2,
        }
        for uid in in_flight()["other"]:
            d.answer(uid)
    d.step(0.01)
    assert not in_flight()["other"] and len(in_flight()["slow"]) == MAX_BINDS_IN_FLIGHT


def waits_beside_made_up_pods(on: int, off: int, namespaces: int, seconds: int = 600) -> list[float]:
    """Tenants create pods for a scheduler that does not exist, and delete them again; return how long pods wait."""
    d = Driver([make_node(f"n{number}") for number in range(8)], leaves_room=True)
    tiny = [
        make_pod(f"t{number}", cpu="1m", namespace="hostile", scheduler="ghost", node=f"n{number}", phase="Pending")
        for number in range(8)
    ]
    d.apply(*tiny)
    d.settle()
    ghost: Pod | None = None
    created: dict[str, tuple[Pod, float]] = {}
    waits: list[float] = []
    for second in range(seconds):
        d.now = 5.0 + second
        namespace = f"hostile-{second // (on + off) % namespaces}"
        if second % (on + off) >= on:
            if ghost is not None:
                d.delete(ghost)
            ghost = None
        elif ghost is None:
            ghost = make_pod(f"ghost-{second}", gpus=8, namespace=namespace, scheduler="ghost", created=d.now)
            d.apply(ghost)
        elif second % 3 == 0:
            ghost.metadata.annotations["again"] = str(second)
            d.apply(ghost)
        pod = make_pod(f"v-{second}", gpus=1, namespace="victim", created=d.now)
        created[pod.metadata.uid] = pod, d.now
        d.apply(pod)
        d.settle()
        for uid, (pod, since) in list(created.items()):
            if d.pods[uid].spec.node_name:
                waits.append(d.now - since)
                del created[uid]
                d.finish(pod)
                d.delete(pod)
    return waits


@pytest.mark.parametrize("namespaces", [1, 20])
def test_room_for_pods_that_no_scheduler_binds_is_left_for_a_short_time_in_all(namespaces: int) -> None:
    waits = waits_beside_made_up_pods(45, 3, namespaces)
    assert sum(wait > 1 for wait in waits) <= 45 * (MAX_TRIALS + 2)
    assert max(waits[-200:]) <= 1


def test_a_namespace_keeps_room_on_few_nodes_unless_it_holds_much() -> None:
    """Its small pods are on all nodes, and a large one comes and goes."""
    d = shared(*[8] * 30)
    comes = theirs("comes", cpu="8", namespace="evil")
    d.apply(comes)
    d.apply(theirs("comes", cpu="8", namespace="evil", node="n0", uid=comes.metadata.uid))
    d.settle()
    ours = [make_pod(f"ours-{number}", cpu="8") for number in range(40)]
    d.run(*ours)
    assert len(d.where(*ours)) == 29 - (MIN_KEPT_NODES - 1), "n0 is full, and one of those that keep room"
    assert len(d.engine.world.kept) == MIN_KEPT_NODES


def test_a_namespace_keeps_room_on_twice_as_many_nodes_as_it_holds_room_for_such_pods() -> None:
    d = shared(*[16] * 40)
    for number in range(10):
        d.apply(theirs(f"holds-{number}", cpu="8", namespace="team", node=f"n{number}", phase="Running"))
    d.apply(theirs("waits", cpu="8", namespace="team"))
    d.settle()
    assert len(d.engine.world.kept) == KEPT_NODES_PER_POD * 10


def test_the_nodes_with_the_latest_news_keep_room() -> None:
    d = shared(*[8] * 30)
    for number in range(12):
        d.apply(pod := theirs(f"p{number}", cpu="1", namespace="team"))
        d.apply(theirs(f"p{number}", cpu="1", namespace="team", node=f"n{number}", uid=pod.metadata.uid))
        d.delete(pod)
        d.settle(0.01)
    rows = {d.engine.world.nodes.row_of[f"n{number}"] for number in range(12 - MIN_KEPT_NODES, 12)}
    assert set(d.engine.world.kept) == rows
