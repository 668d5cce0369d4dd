"""A workload that no node could hold even if empty is tried again once a node could, also if that node is full."""

import random
from collections.abc import Callable

import pytest

from tests.helpers import controlled_by, make_node, make_pod
from tests.scheduling.device_driver import DeviceDriver, slice_of
from tests.scheduling.device_driver import asking as asking_devices
from tests.scheduling.driver import Driver, fabric, gang
from tests.scheduling.running_pods import run_pod, urgent_pod
from topo_scheduler.api.objects import Node, Pod, Taint
from topo_scheduler.scheduling.binding.refusals import FIRST_EXCLUSION_SECONDS
from topo_scheduler.scheduling.instructions import Bind, Preempt
from topo_scheduler.scheduling.queueing.requeue import POSTPONED_PAUSE_SECONDS, RETRIES_PER_CHECK

NEVER = "even if it were empty"


def full_node(before: Node) -> Driver:
    """Return a cluster with a node that is full of a pod of lower priority, and with a node that is too small."""
    d = Driver([before, make_node("small", "s/l", gpus=1)])
    d.engine.budgets_known()
    run_pod(d, "low", "n", gpus=4)
    return d


def pass_idle_time(d: Driver, seconds: float) -> None:
    """Let time pass, with steps only when the engine asks for them."""
    end = d.now + seconds
    while d.now < end and not d.preempted():
        due = d.engine.next_due()
        d.now = end if due is None else min(end, max(d.now, due))
        d.step(0)


@pytest.mark.parametrize(
    "before",
    [
        make_node("n", "s/l", gpus=4, labels={"pool": "x"}, unschedulable=True),
        make_node("n", "s/l", gpus=4, labels={"pool": "x"}, ready=False),
        make_node("n", "s/l", gpus=4, labels={"pool": "x"}, taints=[Taint("x", "", "NoSchedule")]),
        make_node("n", "s/l", gpus=4, labels={"pool": "y"}),
        make_node("n", "s/l", gpus=4, labels={"pool": "x"}, cpu="2"),
    ],
    ids=["cordoned", "not ready", "tainted", "another label", "fewer CPUs"],
)
def test_a_node_that_becomes_usable_while_it_is_full(before: Node) -> None:
    d = full_node(before)
    pod = make_pod("urgent", gpus=4, cpu="3", priority=10)
    pod.spec.node_selector = {"pool": "x"}
    d.apply(pod)
    d.step(1)
    assert NEVER in d.told(pod)[0]
    d.nodes(make_node("n", "s/l", gpus=4, labels={"pool": "x"}))
    d.step(1)
    pass_idle_time(d, 60)
    assert d.preempted() == ["low"]
    assert NEVER not in d.told(pod)[-1]


def test_a_node_that_becomes_usable_in_a_busy_cluster() -> None:
    d = full_node(make_node("n", "s/l", gpus=4, ready=False))
    d.apply(urgent_pod(gpus=4))
    d.step(1)
    d.nodes(make_node("n", "s/l", gpus=4))
    for number in range(5):
        other = run_pod(d, f"other-{number}", ("n", "small")[number % 2], gpus=0)
        d.step(1)
        d.delete(other)
        d.step(1)
    assert d.preempted() == ["low"]


@pytest.mark.parametrize("members", [1, 2])
def test_a_driver_that_publishes_its_devices_again(members: int) -> None:
    d = DeviceDriver(fabric({"s1/l1": 2}, gpus=0), 8)
    d.engine.budgets_known()
    low = [d.pod(f"low-{number}", asking_devices(8)) for number in range(2)]
    d.apply(*low)
    d.settle(1)
    for node in d.where(*low).values():
        d.drop_slice(f"{node}-gpus")
    d.step(1)
    urgent = d.gang(2, asking_devices(8)) if members == 2 else [d.pod("urgent", asking_devices(8))]
    for pod in urgent:
        pod.spec.priority = 10
    d.apply(*urgent)
    d.step(1)
    assert NEVER in d.told(urgent[0])[0]
    d.slices(*(slice_of(node, 8, generation=2) for node in d.where(*low).values()))
    d.step(1)
    pass_idle_time(d, 60)
    assert len(d.preempted()) == members


def test_a_daemon_that_goes_from_a_node_which_others_fill() -> None:
    d = Driver([make_node("n", "s/l", cpu="8")])
    d.engine.budgets_known()
    daemon = make_pod("agent", cpu="4", scheduler="other", node="n", owner=controlled_by("DaemonSet", "agent"))
    low = make_pod("low", cpu="3", scheduler="other", node="n", phase="Running")
    pod = make_pod("urgent", cpu="8", priority=10)
    d.apply(daemon, low, pod)
    d.step(1)
    assert NEVER in d.told(pod)[0]
    d.delete(daemon)
    d.step(1)
    pass_idle_time(d, 60)
    assert d.preempted() == ["low"]


def refuse_on(d: Driver, node: str, pods: list[Pod]) -> None:
    """Place pods; the kubelet of one node refuses its pod, and all of them are deleted."""
    d.run(*pods)
    for pod in pods:
        if pod.spec.node_name == node:
            d.finish(pod, "Failed", "OutOfnvidia.com/gpu")
    d.delete(*pods)


def test_a_node_that_was_excluded_after_a_refusal_and_is_full_by_then() -> None:
    d = Driver(fabric({"s1/l1": 1}))
    d.engine.budgets_known()
    refuse_on(d, "s1-l1-1", [make_pod("first", gpus=8, priority=10)])
    run_pod(d, "low", "s1-l1-1")
    d.apply(urgent_pod())
    d.step()
    assert d.preempted() == []
    pass_idle_time(d, 2 * FIRST_EXCLUSION_SECONDS)
    assert d.preempted() == ["low"]


def test_a_gang_that_was_too_large_while_a_node_was_excluded() -> None:
    d = Driver(fabric({"s1/l1": 2}))
    refuse_on(d, "s1-l1-1", gang(2, name="first"))
    again = gang(2, name="again")
    d.apply(*again)
    d.step()
    assert "larger than the cluster" in d.told(again[0])[0]
    pass_idle_time(d, 2 * FIRST_EXCLUSION_SECONDS)
    assert len(d.flight) == 2


@pytest.mark.unrecorded
@pytest.mark.parametrize("flaps", [1, 5])
def test_hundreds_of_kinds_are_tried_a_few_at_a_time_and_namespaces_take_turns(flaps: int) -> None:
    d = full_node(make_node("n", "s/l", gpus=4, ready=False))
    hostile = [make_pod(f"h{number}", gpus=2, cpu=f"{number + 1}m", namespace="hostile") for number in range(300)]
    other = make_pod("other", gpus=2, priority=10, namespace="team")
    d.apply(*hostile, other)
    d.settle(1)
    d.forget()
    for flap in range(flaps):
        d.nodes(make_node("n", "s/l", gpus=4, ready=flap % 2 == 0))
        d.step(POSTPONED_PAUSE_SECONDS)
        assert len(d.decisions()) <= RETRIES_PER_CHECK + 1
        d.forget()
    d.step(POSTPONED_PAUSE_SECONDS)
    assert len(d.decisions()) <= RETRIES_PER_CHECK + 1


@pytest.mark.unrecorded
def test_a_workload_is_not_tried_again_for_nodes_that_still_could_not_hold_it() -> None:
    d = full_node(make_node("n", "s/l", gpus=4))
    pod = make_pod("large", gpus=9, priority=10)
    d.apply(pod)
    d.step(1)
    d.forget()
    change: list[Callable[[], None]] = [
        lambda: d.nodes(make_node("n", "s/l", gpus=4, unschedulable=True)),
        lambda: d.nodes(make_node("n", "s/l", gpus=4, labels={"x": "y"})),
        lambda: d.nodes(make_node("n", "s/l", gpus=8)),
        lambda: d.nodes(make_node("m", "s/l", gpus=8)),
    ]
    for happens in change:
        happens()
        d.step(1)
        d.step(1)
    assert d.decisions() == []


# ---------------------------------------------------------------- at random


class RandomCluster(Driver):
    """Nodes that become unusable and usable again, while pods of different priorities come and go."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.known_nodes = {name: self.some_node(name) for name in ("n1", "n2")}
        super().__init__(self.known_nodes.values())
        self.engine.budgets_known()

    def some_node(self, name: str) -> Node:
        state = self.chance.choice(["cordoned", "not ready", "tainted", "", "", ""])
        return make_node(
            name,
            self.chance.choice(["s/l1", "s/l2"]),
            gpus=4,
            cpu="8",
            labels={"pool": self.chance.choice("xy")},
            unschedulable=state == "cordoned",
            ready=state != "not ready",
            taints=[Taint("x", "", "NoSchedule")] if state == "tainted" else [],
        )

    def happen(self, number: int) -> None:
        """Let one event happen."""
        event, name = self.chance.random(), self.chance.choice(list(self.known_nodes))
        if event < 0.35:
            self.known_nodes[name] = self.some_node(name)
            self.nodes(self.known_nodes[name])
        elif event < 0.7:
            annotations = {"gang-name": f"g{number}", "gang-size": "2"} if self.chance.random() < 0.2 else {}
            gpus, priority = self.chance.choice([2, 4]), self.chance.choice([0, 5, 10])
            pods = [
                make_pod(f"p{number}-{at}", gpus=gpus, cpu="3", priority=priority, annotations=annotations)
                for at in range(2 if annotations else 1)
            ]
            for pod in pods if self.chance.random() < 0.5 else ():
                pod.spec.node_selector = {"pool": "x"}
            self.apply(*pods)
        elif event < 0.85:
            owner = controlled_by("DaemonSet", "agent") if self.chance.random() < 0.4 else None
            self.apply(
                make_pod(f"o{number}", gpus=4, cpu="6", scheduler="other", node=name, phase="Running", owner=owner)
            )
        elif self.pods:
            self.delete(self.chance.choice(list(self.pods.values())))

    def answer_all(self) -> bool:
        """Carry out all evictions and binds; return whether there were any."""
        victims = [
            self.pods[said.pod.uid] for said in self.said if isinstance(said, Preempt) and said.pod.uid in self.pods
        ]
        self.forget()
        self.evict(*victims)
        binds = list(self.flight)
        for uid in binds:
            if uid in self.pods:
                self.answer(uid)
            else:
                del self.flight[uid]
        return bool(victims or binds)

    def rest(self) -> None:
        """Step only when the engine asks for it, until nothing happens any more for an hour."""
        until = self.now + 3600
        for _ in range(2000):
            self.step(0)
            if self.answer_all():
                until = self.now + 3600
                continue
            due = self.engine.next_due()
            if due is None or max(due, self.now) >= until:
                return
            self.now = max(self.now, due)
        raise AssertionError("it never comes to rest")


@pytest.mark.unrecorded
@pytest.mark.parametrize("seed", range(40))
def test_an_engine_at_rest_leaves_nothing_that_a_new_one_would_do(seed: int) -> None:
    d = RandomCluster(random.Random(seed))
    for number in range(d.chance.choice([10, 25])):
        d.happen(number)
        d.step(d.chance.choice([0, 0.1, 2, 20]))
        d.answer_all()
    d.rest()
    new = Driver(d.known_nodes.values())
    new.now = d.now
    new.engine.budgets_known()
    new.apply(*d.pods.values())
    new.step()
    assert not [said for said in new.said if isinstance(said, Bind | Preempt)]
