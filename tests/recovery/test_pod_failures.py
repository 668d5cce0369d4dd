"""Pods that are refused or crash: when that speaks against a node, and when against a program."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import EPOCH, controlled_by, make_pod
from tests.recovery.world import World
from topo_scheduler.api.annotations import GANG_ID
from topo_scheduler.api.migrations import Cause, Phase
from topo_scheduler.api.objects import ContainerState, ContainerStatus, Pod, Waiting
from topo_scheduler.api.recovery import PodFailuresSpec, RecoverySpec
from topo_scheduler.recovery.detection.pod_failures import CRASHES, PodFailures

SPEC = PodFailuresSpec(workloads=3, refusals=5, restarts=3, window=600, namespaces=1)
NAME = make_pod("p").spec.scheduler_name


def pod_failures(spec: PodFailuresSpec = SPEC) -> PodFailures:
    return PodFailures(NAME, spec, EPOCH)


def pod(name: str, node: str, job: str, *, created: float = 0.0, gang: str = "") -> Pod:
    said = {GANG_ID: gang} if gang else {}
    new_pod = make_pod(name, uid=name, owner=controlled_by("Job", job), created=created)
    new_pod.metadata.annotations |= said
    new_pod.spec.node_name = node
    return new_pod


def refused(new_pod: Pod, reason: str = "UnexpectedAdmissionError") -> Pod:
    new_pod.status.phase, new_pod.status.reason = "Failed", reason
    return new_pod


def running(new_pod: Pod, restarts: int = 0) -> Pod:
    new_pod.status.phase = "Running"
    new_pod.status.container_statuses = [ContainerStatus(name="main", restart_count=restarts)]
    return new_pod


def crashing(new_pod: Pod, restarts: int = 3) -> Pod:
    running(new_pod, restarts)
    new_pod.status.container_statuses[0].state = ContainerState(waiting=Waiting(CRASHES))
    return new_pod


def test_a_node_that_refuses_pods_of_several_workloads_is_failing() -> None:
    failures = pod_failures()
    for n, reason in enumerate(("UnexpectedAdmissionError", "OutOfnvidia.com/gpu", "NodeAffinity")):
        assert failures.problems(0.0) == {}
        failures.applied([refused(pod(f"p{n}", "n1", f"job{n}"), reason)], 0.0)
    problem = failures.problems(0.0)["n1"]
    assert problem.cause is Cause.REFUSED
    assert problem.text == "refused 3 pods within 10m"
    assert problem.pods[0] == "default/p0 (UnexpectedAdmissionError)"
    assert failures.next_due() == 600.0
    assert failures.problems(600.0) == {}, "it is forgotten in time"


def test_many_refusals_of_one_workload_are_enough() -> None:
    failures = pod_failures()
    for n in range(5):
        assert failures.problems(0.0) == {}
        failures.applied([refused(pod(f"p{n}", "n1", "job"))], 0.0)
        failures.applied([refused(pod(f"p{n}", "n1", "job"))], 0.0)
    assert set(failures.problems(0.0)) == {"n1"}


@pytest.mark.parametrize("make", [refused, crashing])
def test_one_namespace_alone_condemns_no_node(make: Callable[[Pod], Pod]) -> None:
    failures = pod_failures(SPEC.model_copy(update={"namespaces": 2}))
    for n in range(9):
        failures.applied([make(pod(f"p{n}", "n1", f"job{n}")), running(pod(f"w{n}", "n2", f"job{n}"))], 0.0)
    assert failures.problems(0.0) == {}
    other = pod("other", "n1", "other")
    other.metadata.namespace = "another"
    failures.applied([refused(other)], 0.0)
    assert set(failures.problems(0.0)) == {"n1"}


@pytest.mark.parametrize("make", [refused, crashing])
def test_what_happens_to_pods_that_this_process_did_not_place_does_not_count(make: Callable[[Pod], Pod]) -> None:
    failures = PodFailures(NAME, SPEC, EPOCH, lambda uid: uid != "p0")
    for n in range(3):
        failures.applied([make(pod(f"p{n}", "n1", f"job{n}")), running(pod(f"w{n}", "n2", f"job{n}"))], 0.0)
    assert failures.problems(0.0) == {}
    failures.applied([make(pod("p3", "n1", "job3")), running(pod("w3", "n2", "job3"))], 0.0)
    assert set(failures.problems(0.0)) == {"n1"}


def test_a_tenant_that_binds_pods_itself_makes_no_failed_node_of_a_victims_crash() -> None:
    failures = PodFailures(NAME, PodFailuresSpec(), EPOCH, lambda uid: uid.startswith("victim"))
    failures.applied([running(pod("victim-0", "n2", "app")), crashing(pod("victim-1", "n1", "app"))], 0.0)
    for n in range(9):
        for made in (running(pod(f"w{n}", "n2", f"job{n}")), crashing(pod(f"c{n}", "n1", f"job{n}"), 99)):
            made.metadata.namespace = "evil"
            made.metadata.annotations |= {GANG_ID: "evil/g", "topology.scheduler/gpus": "0"}
            failures.applied([made], 0.0)
    assert failures.problems(0.0) == {}


def test_a_workload_that_several_nodes_refuse_speaks_against_none() -> None:
    failures = pod_failures()
    for n in range(20):
        failures.applied([refused(pod(f"p{n}", f"n{n % 2}", "job"), "TopologyAffinityError")], 0.0)
    assert failures.problems(0.0) == {}


def test_refusals_of_long_ago_do_not_count_when_they_are_listed() -> None:
    failures = pod_failures()
    failures.applied([refused(pod(f"p{n}", "n1", f"job{n}", created=-700.0)) for n in range(9)], 0.0)
    assert failures.problems(0.0) == {}


def test_pods_of_others_do_not_count() -> None:
    failures = pod_failures()
    for n in range(9):
        other = refused(pod(f"p{n}", "n1", f"job{n}"))
        other.spec.scheduler_name = "another"
        failures.applied([other], 0.0)
    assert failures.problems(0.0) == {}


def test_members_of_several_gangs_that_crash_on_one_node_only() -> None:
    failures = pod_failures()
    for n in range(3):
        gang = f"default/g{n}"
        failures.applied([running(pod(f"g{n}-0", f"other{n}", f"job{n}-0", gang=gang))], 0.0)
        assert failures.problems(0.0) == {}
        failures.applied([crashing(pod(f"g{n}-1", "n1", f"job{n}-1", gang=gang))], 0.0)
    problem = failures.problems(0.0)["n1"]
    assert problem.cause is Cause.CRASHING
    assert problem.text == "has 3 pods that crash there only"
    assert problem.pods[0] == "default/g0-1 (CrashLoopBackOff, 3 restarts)"
    failures.applied([running(pod("g0-1", "n1", "job0-1", gang="default/g0"))], 1.0)
    assert failures.problems(1.0) == {}, "it runs"


def test_a_program_that_crashes_everywhere_is_not_blamed_on_nodes() -> None:
    failures = pod_failures()
    for n in range(9):
        failures.applied([crashing(pod(f"g-{n}", f"n{n}", "job"))], 0.0)
        failures.applied([crashing(pod(f"alone-{n}", "n1", f"alone-{n}"))], 0.0)
    assert failures.problems(0.0) == {}, "pods without others of their kind tell nothing either"


def test_few_restarts_do_not_count_nor_one_that_was_restarted_as_running_well() -> None:
    failures = pod_failures()
    for n in range(3):
        failures.applied([running(pod(f"a{n}-0", "n2", f"a{n}"), restarts=0)], 0.0)
        failures.applied([crashing(pod(f"a{n}-1", "n1", f"a{n}"), restarts=2)], 0.0)
        failures.applied([running(pod(f"b{n}-0", "n2", f"b{n}"), restarts=1)], 0.0)
        failures.applied([crashing(pod(f"b{n}-1", "n1", f"b{n}"))], 0.0)
    assert failures.problems(0.0) == {}


def test_what_happened_to_a_pod_that_is_gone_still_counts() -> None:
    failures = pod_failures()
    failures.applied([refused(pod(f"p{n}", "n1", f"job{n}")) for n in range(3)], 0.0)
    failures.deleted(f"p{n}" for n in range(3))
    assert set(failures.problems(10.0)) == {"n1"}
    failures.configure(PodFailuresSpec(enabled=False))
    assert failures.problems(10.0) == {}
    assert failures.next_due() is None


@given(
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 3), st.sampled_from(["refused", "crash", "run", "gone"]))),
)
def test_no_workload_in_trouble_on_two_nodes_is_held_against_either(events: list[tuple[int, int, str]]) -> None:
    """Against what is known of all pods, worked out again."""
    failures = pod_failures(PodFailuresSpec(workloads=2, refusals=1000, restarts=1, namespaces=1))
    states: dict[str, tuple[str, str, str]] = {}
    for number, (job, node, what) in enumerate(events):
        name = f"p{number}"
        new_pod = pod(name, f"n{node}", f"job{job}")
        if what == "gone":
            live = sorted(uid for uid, (_, _, state) in states.items() if state == "run")
            if live:
                failures.deleted([live[0]])
                del states[live[0]]
            continue
        changed = refused(new_pod) if what == "refused" else crashing(new_pod) if what == "crash" else running(new_pod)
        failures.applied([changed], 0.0)
        states[name] = (f"job{job}", f"n{node}", what)
    bad = [(workload, at, what) for workload, at, what in states.values() if what != "run"]
    wells = {(workload, at) for workload, at, what in states.values() if what == "run"}
    against: dict[str, set[str]] = {}
    for workload, at, what in bad:
        if {node for other, node, _ in bad if other == workload} != {at}:
            continue
        if what == "refused" or any(other == workload and node != at for other, node in wells):
            against.setdefault(at, set()).add(workload)
    assert set(failures.problems(0.0)) == {node for node, jobs in against.items() if len(jobs) >= 2}


# ---------------------------------------------------------------- and what follows


@pytest.mark.parametrize("heals", [False, True])
def test_pods_are_moved_off_such_a_node_after_the_debounce(heals: bool) -> None:
    spec = RecoverySpec(enabled=True, debounce=10, pod_failures=SPEC, quarantine=1000)
    world = World(spec, {"s1/l1": 4})
    world.gang("g", 2)
    world.run()
    bad = world.nodes_of("g")["g-1"]
    pods = [refused(pod(f"p{n}", bad, f"job{n}", created=world.now)) for n in range(3)]
    world.recovery.pod_failures.decided = lambda uid: True  # this engine knows none of them
    world.recovery.pod_failures.applied(pods, world.now)
    world.run(9)
    assert not world.migrations, "it is not believed at once"
    if heals:
        world.recovery.pod_failures.configure(SPEC.model_copy(update={"workloads": 4}))
    world.run(10)
    if heals:
        assert not world.migrations
        return
    assert world.phases() == [Phase.DONE]
    assert world.one().spec.reason == "PodsRefused"
    assert bad not in world.nodes_of("g").values()
    world.run(700, step=10)
    assert world.recovery.detection.is_healthy(bad), "what happened is forgotten"
    assert bad in world.recovery.detection.avoided(world.now), "but it is in quarantine"
    world.run(400, step=10)
    assert bad not in world.recovery.detection.avoided(world.now)
