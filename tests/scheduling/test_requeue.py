"""Unschedulable workloads are tried again after an event that could help, and not otherwise."""

import pytest

from tests.helpers import controlled_by, make_node, make_pod, owner
from tests.scheduling.driver import Driver, configured, fabric
from topo_scheduler.api.objects import Pod, PodCondition, Taint
from topo_scheduler.scheduling.instructions import BindOutcome, RecordDecision
from topo_scheduler.scheduling.queueing.queue import Place
from topo_scheduler.scheduling.queueing.requeue import POSTPONED_PAUSE_SECONDS, RETRIES_PER_CHECK


def gang(size: int, name: str = "g", gpus: int = 8) -> list[Pod]:
    annotations = {"gang-name": name, "gang-size": str(size)}
    return [make_pod(f"{name}-{n}", gpus=gpus, annotations=annotations, created=n) for n in range(size)]


def full() -> tuple[Driver, Pod, Pod]:
    """A node that is full, and a pod that waits for it."""
    d = Driver([make_node("n", "s/l")])
    holder, waiter = make_pod("holder", gpus=8), make_pod("waiter", gpus=8)
    d.run(holder)
    d.apply(waiter)
    d.step()
    assert d.flight == {}
    d.forget()
    return d, holder, waiter


def unschedulable(d: Driver, pod: Pod) -> bool:
    entry = d.engine.workloads.of_pod(pod.metadata.uid)
    return entry is not None and d.engine.queue.place(entry[0].id) is Place.UNSCHEDULABLE


def tried(d: Driver, seconds: float = 0) -> int:
    """Return how many decisions a step brings."""
    d.forget()
    d.step(seconds)
    return len(d.decisions())


# ---------------------------------------------------------------- what helps


@pytest.mark.parametrize("event", ["finished", "failed", "deleted"])
def test_a_pod_that_ends(event: str) -> None:
    d, holder, _ = full()
    if event == "deleted":
        d.delete(holder)
    else:
        d.finish(holder, "Succeeded" if event == "finished" else "Failed")
    d.step()
    assert len(d.flight) == 1


def test_a_pod_of_another_scheduler_that_ends() -> None:
    d = Driver([make_node("n", "s/l")])
    other = make_pod("other", gpus=8, scheduler="default-scheduler", node="n")
    waiter = make_pod("waiter", gpus=8)
    d.apply(other, waiter)
    d.step()
    assert d.flight == {}
    d.finish(other)
    d.step()
    assert len(d.flight) == 1


def test_a_new_node() -> None:
    d, _, _ = full()
    d.nodes(make_node("m", "s/l"))
    d.step()
    assert len(d.flight) == 1


def test_a_larger_node() -> None:
    d, _, _ = full()
    d.nodes(make_node("n", "s/l", gpus=16))
    d.step()
    assert len(d.flight) == 1


@pytest.mark.parametrize("obstacle", ["cordoned", "not ready", "tainted"])
def test_an_obstacle_that_goes(obstacle: str) -> None:
    d = Driver(
        [
            make_node(
                "n",
                "s/l",
                unschedulable=obstacle == "cordoned",
                ready=obstacle != "not ready",
                taints=[Taint("x", "", "NoSchedule")] if obstacle == "tainted" else [],
            )
        ]
    )
    pod = make_pod("p", gpus=8)
    d.apply(pod)
    d.step()
    assert unschedulable(d, pod)
    d.nodes(make_node("n", "s/l"))
    d.step()
    assert len(d.flight) == 1


def test_labels_that_change_the_rule() -> None:
    d = Driver([make_node("a", "s/l1"), make_node("b", "s/l2"), make_node("c", "s/l1")])
    d.run(make_pod("holder", gpus=8, annotations={"preferred-domain": "l1"}))
    pods = gang(2)
    d.apply(*pods)
    d.step()
    assert unschedulable(d, pods[0]), "two nodes of one leaf would do, and one of them is taken"
    free = next(name for name in "ac" if not any(pod.spec.node_name == name for pod in d.pods.values()))
    d.nodes(make_node("b", "s/l1"))
    d.step()
    assert {bind.node for bind in d.flight.values()} == {free, "b"}


def test_a_node_that_vanishes_may_make_the_rule_laxer() -> None:
    d = Driver([make_node("a", "s/l1"), make_node("b", "s/l1"), make_node("c", "s/l2")])
    d.run(make_pod("holder", gpus=8, annotations={"preferred-domain": "l1"}))
    held = next(pod.spec.node_name for pod in d.pods.values())
    pods = gang(2)
    d.apply(*pods)
    d.step()
    assert unschedulable(d, pods[0])
    d.drop_node(held)
    d.step()
    assert len(d.flight) == 2, "without it two leaves are the fewest"


def test_a_node_that_is_cordoned_may_make_the_rule_laxer() -> None:
    d = Driver([make_node("a", "s/l1"), make_node("b", "s/l1"), make_node("c", "s/l2")])
    d.run(make_pod("holder", gpus=8, annotations={"preferred-domain": "l1"}))
    held = next(pod.spec.node_name for pod in d.pods.values())
    pods = gang(2)
    d.apply(*pods)
    d.step()
    d.nodes(make_node(held, "s/l1", unschedulable=True))
    d.step()
    assert len(d.flight) == 2


def test_a_configuration_that_changes() -> None:
    d = Driver(fabric({"s/l1": 2, "s/l2": 2}), configured("{topologyConstraints: {maxNodesPerLeaf: 1}}"))
    pods = gang(4)
    d.apply(*pods)
    d.step()
    assert unschedulable(d, pods[0])
    d.engine.configure(configured())
    d.step()
    assert len(d.flight) == 4


def test_a_configuration_that_no_longer_requires_the_rule() -> None:
    d = Driver(fabric({"s/l1": 2, "s/l2": 2}))
    d.run(make_pod("a", gpus=8, annotations={"preferred-domain": "l1"}))
    d.run(make_pod("b", gpus=8, annotations={"preferred-domain": "l2"}))
    pods = gang(2)
    d.apply(*pods)
    d.step()
    assert unschedulable(d, pods[0])
    d.engine.configure(configured("{topologyConstraints: {enforcement: preferred}}"))
    d.step()
    assert len(d.flight) == 2


def test_a_bind_that_fails_frees_room_for_others() -> None:
    d = Driver([make_node("n", "s/l")])
    first, second = make_pod("one", gpus=8, priority=1), make_pod("two", gpus=8)
    d.apply(first, second)
    d.step()
    assert unschedulable(d, second)
    d.answer(first.metadata.uid, BindOutcome.WITHDRAWN)
    d.step()
    assert [bind.pod.name for bind in d.flight.values()] == ["two"], "while the first backs off"


def test_a_pod_that_turns_out_to_run_elsewhere_frees_what_was_held_for_it() -> None:
    d = Driver([make_node("a", "s/l"), make_node("b", "s/l", gpus=0)])
    first, second = make_pod("one", gpus=8, priority=1), make_pod("two", gpus=8)
    d.apply(first, second)
    d.step()
    assert unschedulable(d, second)
    first.spec.node_name = "b"
    d.tell_again(first)
    d.step()
    assert d.flight[second.metadata.uid].node == "a"


def test_a_pod_that_is_resized_in_place() -> None:
    d = Driver([make_node("n", "s/l", cpu="8")])
    holder, waiter = make_pod("holder", cpu="6"), make_pod("waiter", cpu="4")
    d.run(holder)
    d.apply(waiter)
    d.step()
    assert unschedulable(d, waiter)
    holder.spec.containers[0].resources.requests["cpu"] = "2"
    d.apply(holder)
    d.step()
    assert len(d.flight) == 1


def test_a_wish_that_changes() -> None:
    d = Driver(fabric({"s/l1": 1, "s/l2": 1}))
    d.own(owner("ReplicaSet", "r", {"gang-size": "2"}))
    d.run(make_pod("holder", gpus=8))
    pods = [make_pod(f"r-{n}", gpus=8, owner=controlled_by("ReplicaSet", "r")) for n in range(2)]
    d.apply(*pods)
    d.step()
    assert d.flight == {}
    d.own(owner("ReplicaSet", "r"))
    d.step()
    assert len(d.flight) == 1


def daemon(node: str, name: str = "agent") -> Pod:
    return make_pod(
        f"{name}-{node}", cpu="4", scheduler="default-scheduler", node=node, owner=controlled_by("DaemonSet", name)
    )


def test_a_daemon_that_goes_may_make_a_gang_fit_that_was_too_large() -> None:
    d = Driver([make_node("n", "s/l", cpu="8"), make_node("m", "s/l", cpu="8")])
    agent = daemon("n")
    pods = [make_pod(f"g-{n}", cpu="8", annotations={"gang-name": "g", "gang-size": "2"}) for n in range(2)]
    d.apply(agent, *pods)
    d.step()
    assert "larger than the cluster" in d.told(pods[0])[0]
    d.delete(agent)
    d.step()
    assert len(d.flight) == 2


def test_a_daemon_that_comes_may_make_the_rule_laxer() -> None:
    nodes = [make_node(name, f"s/{leaf}", cpu="8") for name, leaf in (("a", "l1"), ("b", "l1"), ("c", "l2"))]
    d = Driver(nodes)
    d.run(make_pod("holder", cpu="2", annotations={"preferred-domain": "l1"}))
    held = next(pod.spec.node_name for pod in d.pods.values())
    pods = [make_pod(f"g-{n}", cpu="8", annotations={"gang-name": "g", "gang-size": "2"}) for n in range(2)]
    d.apply(*pods)
    d.step()
    assert unschedulable(d, pods[0])
    d.apply(daemon(held))
    d.step()
    assert len(d.flight) == 2, "one leaf will never hold it any more"


def too_large(gangs: int) -> Driver:
    """Gangs that would fit but for a pod of a DaemonSet, in four namespaces."""
    d = Driver([make_node("n", "s/l", cpu="8"), make_node("m", "s/l", cpu="8")])
    d.apply(daemon("n"))
    for number in range(gangs):
        annotations = {"gang-name": f"g{number}", "gang-size": "2"}
        namespace = f"team-{number % 4}"
        d.apply(*(make_pod(f"g{number}-{n}", cpu="8", namespace=namespace, annotations=annotations) for n in range(2)))
    d.step()
    assert d.flight == {}
    return d


def test_gangs_that_a_daemon_concerns_are_tried_a_few_at_a_time_and_namespaces_take_turns() -> None:
    d = too_large(40)
    d.delete(*(pod for pod in list(d.pods.values()) if pod.metadata.name.startswith("agent")))
    attempts = []
    for pause in (0.0, *5 * [POSTPONED_PAUSE_SECONDS]):
        d.forget()
        d.step(pause)
        attempts.append([said.decision.workload.split("/")[0] for said in d.said if isinstance(said, RecordDecision)])
    assert list(map(len, attempts)) == [*5 * [RETRIES_PER_CHECK], 0]
    assert set(attempts[0]) == {f"team-{number}" for number in range(4)}


def test_a_gang_tried_while_a_daemon_is_there_is_tried_again_when_that_goes() -> None:
    d = too_large(40)
    agents = [pod for pod in d.pods.values() if pod.metadata.name.startswith("agent")]
    d.delete(*agents)
    d.step()
    d.apply(*agents)
    late = [make_pod(f"h-{n}", cpu="7", annotations={"gang-name": "h", "gang-size": "2"}) for n in range(2)]
    d.apply(*late)
    d.step()
    assert unschedulable(d, late[0])
    d.delete(*agents)
    for pod in [pod for pod in d.pods.values() if pod.metadata.name.startswith("g")]:
        d.delete(pod)
    for _ in range(6):
        d.step(POSTPONED_PAUSE_SECONDS)
    assert sorted(pod.metadata.name for pod in late if pod.metadata.uid in d.flight) == ["h-0", "h-1"]


# ---------------------------------------------------------------- what does not


def test_small_daemons_that_come_and_go() -> None:
    """A tenant creates them with their node, under a DaemonSet of its own, many times a second."""
    d = Driver([make_node("n", "s/l", cpu="8"), make_node("m", "s/l", cpu="8")])
    d.run(make_pod("holder", gpus=8))
    pods = gang(2)
    d.apply(*pods)
    d.step()
    assert unschedulable(d, pods[0])
    small = make_pod("small", cpu="1m", node="m", scheduler="other", owner=controlled_by("DaemonSet", "mine"))
    for _ in range(3):
        d.apply(small)
        assert tried(d, 1) == 0
        d.delete(small)
        assert tried(d, 1) == 0


def test_a_heartbeat() -> None:
    d, _, _ = full()
    d.nodes(make_node("n", "s/l"))
    assert tried(d) == 0


def test_time() -> None:
    d, _, waiter = full()
    assert d.engine.next_due() == 30, "the scheduler checks then whether to reserve a node for it"
    assert tried(d, 30) == 0
    assert tried(d, 10_000) == 0
    assert unschedulable(d, waiter)


def test_our_own_condition_coming_back() -> None:
    d, _, waiter = full()
    waiter.status.conditions = [PodCondition("PodScheduled", "False", "Unschedulable", "0/1 nodes")]
    waiter.metadata.resource_version = "8"
    d.apply(waiter)
    assert tried(d) == 0


def test_a_pod_that_the_watch_reports_again() -> None:
    d, holder, waiter = full()
    d.tell_again(holder, waiter, holder)
    assert tried(d) == 0


def test_room_on_a_node_that_would_not_do() -> None:
    d, _, _ = full()
    d.nodes(make_node("small", "s/l", gpus=4), make_node("cpu", "s/l", gpus=0))
    assert tried(d) == 0
    small = make_pod("small", gpus=2)
    d.run(small)
    d.finish(small)
    assert tried(d) == 0


def test_a_node_that_gets_worse() -> None:
    d, _, _ = full()
    d.nodes(make_node("n", "s/l", unschedulable=True))
    assert tried(d) == 0
    d.drop_node("n")
    assert tried(d) == 0


def test_what_others_take() -> None:
    d, _, _ = full()
    d.apply(make_pod("other", gpus=1, scheduler="other", node="n"))
    assert tried(d) == 0


def test_an_owner_that_the_watch_reports_again() -> None:
    d = Driver(fabric({"s/l": 1}))
    d.own(owner("ReplicaSet", "r"))
    d.run(make_pod("holder", gpus=8))
    waiter = make_pod("waiter", gpus=8, owner=controlled_by("ReplicaSet", "r"))
    d.apply(waiter)
    d.step()
    d.own(owner("ReplicaSet", "r"))
    assert tried(d) == 0


# ---------------------------------------------------------------- alike


def test_pods_that_ask_alike_get_the_same_event_without_being_planned_again() -> None:
    d = Driver(fabric({"s/l": 1}))
    pods = [make_pod(f"p-{n}", gpus=9) for n in range(5)]
    d.apply(*pods)
    d.step()
    assert {d.told(pod)[0] for pod in pods} == {d.told(pods[0])[0]}
    assert len(d.decisions()) == 5


@pytest.mark.unrecorded
def test_what_changed_is_not_lost_with_an_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    d = Driver(fabric({"s1/l1": 1}))
    running = make_pod("running", gpus=8, node="s1-l1-1", phase="Running")
    waiting = make_pod("waiting", gpus=8)
    d.apply(running)
    d.run(waiting)
    with monkeypatch.context() as broken:
        broken.setattr(d.engine.preempting, "stirred", lambda now: 1 // 0)
        d.delete(running)
        d.step(1)
    assert not d.where(waiting)
    d.settle(2)
    assert d.where(waiting)
