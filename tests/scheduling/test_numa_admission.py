"""What is predicted of a kubelet's Topology Manager holds: no pod that is sent to it is rejected."""

import os
import pickle
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from tests.helpers import NVIDIA
from tests.scheduling.numa_nodes import Kubelet, Units, container, pod_of, topology
from topo_scheduler.api.objects import Container, Pod
from topo_scheduler.scheduling.rules.numa_admission import admission, admits_together
from topo_scheduler.state.pods.numa_request import NumaRequest, numa_request
from topo_scheduler.state.pods.numa_zones import REPORT_SECONDS, NumaZones

POLICIES = st.sampled_from(["single-numa-node", "restricted"])
SCOPES = st.sampled_from(["container", "pod"])


@st.composite
def machines(draw: st.DrawFn) -> tuple[Units, str, str]:
    zones = draw(st.sampled_from([2, 3, 1, 4]))
    capacity: Units = {NVIDIA: draw(st.lists(st.integers(0, 4), min_size=zones, max_size=zones))}
    if draw(st.integers(0, 2)) == 2:
        capacity["cpu"] = draw(st.lists(st.integers(2, 6), min_size=zones, max_size=zones))
    if draw(st.integers(0, 2)) == 2:
        capacity["memory"] = draw(st.lists(st.integers(2, 6), min_size=zones, max_size=zones))
    return capacity, draw(POLICIES), draw(SCOPES)


@st.composite
def containers(draw: st.DrawFn, *, memory: bool) -> Container:
    guaranteed = draw(st.booleans())
    sizes: dict[str, Any] = {"gpu": draw(st.sampled_from([1, 2, 1, 0, 3, 5]))}
    if guaranteed:
        sizes |= {"cpu": draw(st.integers(1, 3)), "memory": draw(st.integers(1, 7)) if memory else 1}
    return container(guaranteed=guaranteed, **sizes)


@st.composite
def pods(draw: st.DrawFn, capacity: Units) -> Pod:
    """A pod of up to three containers; init containers only where no memory is aligned, as the model reuses none."""
    memory = "memory" in capacity
    main = draw(st.lists(containers(memory=memory), min_size=1, max_size=draw(st.sampled_from([1, 2, 3]))))
    init = [] if memory else draw(st.lists(containers(memory=False), max_size=1))
    return pod_of("p", *main, init=init)


def renamed(pod: Pod, name: str) -> Pod:
    return pod_of(name, *pod.spec.containers, init=pod.spec.init_containers)


def reported(zones: NumaZones, kubelet: Kubelet) -> None:
    item = topology("n", kubelet.free(), kubelet.capacity, policy=kubelet.policy, scope=kubelet.scope)
    zones.put(zones.objects, "n", item)


def request_of(pod: Pod) -> NumaRequest | None:
    return numa_request(pod)


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_on_a_machine_whose_state_is_known_the_prediction_is_the_decision_of_the_kubelet(data: st.DataObject) -> None:
    capacity, policy, scope = data.draw(machines())
    kubelet, zones = Kubelet(capacity, policy, scope), NumaZones()
    for number in range(data.draw(st.integers(0, 3))):
        kubelet.admit(renamed(data.draw(pods(capacity)), f"first-{number}"))
    if policy == "restricted" and any(len(mask) > 1 for taken in kubelet.memory.values() for mask, _ in taken):
        event("memory is spread")  # a report does not show that, so the prediction is only safe
        return
    pod = data.draw(pods(capacity))
    request = request_of(pod)
    if request is None:
        return
    reported(zones, kubelet)
    state = zones.state("n")
    assert state is not None
    predicted = min(5, admission(state, request).pods)
    admitted = 0
    while admitted < 5 and kubelet.admit(renamed(pod, f"p{admitted}")):
        admitted += 1
    event(f"{predicted} of {admitted}")
    assert predicted <= admitted, "a pod would be rejected"
    if predicted == 0:
        assert admitted == 0, "a node is refused although its kubelet would admit the pod"
    if policy == "single-numa-node":
        assert predicted == admitted


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_no_pod_is_rejected_however_old_the_report_is(data: st.DataObject) -> None:
    """Pods come and go, reports come when they like: whatever is predicted to fit, the kubelet admits."""
    capacity, policy, scope = data.draw(machines())
    kubelet, zones = Kubelet(capacity, policy, scope), NumaZones()
    reported(zones, kubelet)
    alive: dict[str, NumaRequest] = {}
    kinds = [data.draw(pods(capacity)) for _ in range(2)]
    now = 0.0
    for number in range(14):
        step = data.draw(st.sampled_from(["pod", "pod", "pod", "end", "end", "report", "wait"]))
        if step == "report":
            reported(zones, kubelet)
        elif step == "wait":
            reported(zones, kubelet)  # else nothing changed in all that time
            for _ in range(2):
                zones.settle(now)
                now += REPORT_SECONDS
        elif step == "end" and alive:
            name = data.draw(st.sampled_from(sorted(alive)))
            kubelet.remove(name)
            del alive[name]
            zones.release("n", name)
        elif step == "pod":
            pod = renamed(data.draw(st.sampled_from(kinds)), f"p{number}")
            request, state = request_of(pod), zones.state("n")
            assert state is not None
            if request is None or not admission(state, request).pods:
                continue
            zones.hold("n", pod.metadata.name, request)
            alive[pod.metadata.name] = request
            assert kubelet.admit(pod), "the kubelet rejected a pod that was predicted to fit"
            event("admitted with an old report" if state.unreported else "admitted with a new report")


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_different_pods_that_are_admitted_together_may_come_in_any_order(data: st.DataObject) -> None:
    capacity, policy, scope = data.draw(machines())
    zones = NumaZones()
    reported(zones, Kubelet(capacity, policy, scope))
    state = zones.state("n")
    assert state is not None
    kinds = [data.draw(pods(capacity)) for _ in range(2)]
    requests = [request_of(pod) for pod in kinds]
    if None in requests or requests[0] == requests[1]:
        return
    if not admits_together(state, tuple((request, 1) for request in requests if request is not None)):
        return
    event("admitted")
    for order in (kinds, kinds[::-1]):
        kubelet = Kubelet(capacity, policy, scope)
        assert all(kubelet.admit(renamed(pod, f"p{number}")) for number, pod in enumerate(order))


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (pod_of("p", container(gpu=2)), ((NVIDIA, 2),)),
        (pod_of("p", container(gpu=2), container(gpu=1)), ((NVIDIA, 3),)),
        (pod_of("p", container(gpu=1), init=[container(gpu=4)]), ((NVIDIA, 4),)),
        (pod_of("p", container(guaranteed=True, cpu=3)), (("cpu", 3000), ("memory", 2**30))),
        (pod_of("p", container(guaranteed=True, cpu=3), container()), None),
    ],
    ids=["devices", "containers add up", "the larger of both", "exclusive CPUs", "another container has no limits"],
)
def test_what_the_kubelet_aligns(pod: Pod, expected: tuple[tuple[str, int], ...] | None) -> None:
    request = numa_request(pod)
    assert (request.total if request is not None else None) == expected


def test_a_container_with_a_part_of_a_cpu_has_none_of_its_own() -> None:
    main = container(guaranteed=True, cpu=2)
    main.resources.limits["cpu"] = main.resources.requests["cpu"] = "1500m"
    request = numa_request(pod_of("p", main))
    assert request is not None
    assert dict(request.total) == {"memory": 2**30}


class Machine:
    """A kubelet and what the scheduler knows of it."""

    def __init__(self, capacity: Units, policy: str = "single-numa-node") -> None:
        self.kubelet, self.zones = Kubelet(capacity, policy, "container"), NumaZones()
        self.requests: dict[str, NumaRequest] = {}

    def report(self) -> None:
        reported(self.zones, self.kubelet)

    def run(self, pod: Pod) -> bool:
        request = request_of(pod)
        assert request is not None
        self.requests[pod.metadata.name] = request
        self.zones.hold("n", pod.metadata.name, request)
        return self.kubelet.admit(pod)

    def end(self, name: str) -> None:
        self.kubelet.remove(name)
        del self.requests[name]
        self.zones.release("n", name)

    def predicts(self, pod: Pod) -> int:
        state, request = self.zones.state("n"), request_of(pod)
        assert state is not None
        assert request is not None
        return admission(state, request).pods


def test_a_pod_that_took_the_place_of_another_since_the_report_may_be_on_another_numa_node() -> None:
    m = Machine({NVIDIA: [4, 1]})
    m.report()
    m.run(pod_of("fills", container(gpu=4)))
    m.run(pod_of("ends", container(gpu=1)))
    m.end("fills")
    m.run(pod_of("stays", container(gpu=2)))
    m.report()
    m.report()
    assert m.kubelet.free() == {NVIDIA: [2, 0]}
    m.end("ends")
    m.run(pod_of("new", container(gpu=1)))
    assert m.kubelet.free() == {NVIDIA: [1, 1]}
    assert not m.predicts(pod_of("p", container(gpu=2)))


def test_where_the_first_container_goes_is_not_known_on_a_machine_with_an_old_report() -> None:
    m = Machine({NVIDIA: [1, 3], "cpu": [4, 2]})
    m.report()
    m.run(pod_of("first", container(gpu=1)))
    m.run(pod_of("second", container(gpu=1)))
    m.end("first")
    pod = pod_of("p", container(guaranteed=True, gpu=1, cpu=2), container(guaranteed=True, cpu=4))
    assert not m.predicts(pod)
    assert not m.kubelet.admit(pod)


def test_a_container_reuses_what_the_init_container_before_it_got_and_nothing_else() -> None:
    m = Machine({NVIDIA: [1, 4]})
    m.report()
    pod = pod_of("p", container(gpu=3), init=[container(gpu=1)])
    assert not m.predicts(pod)
    assert not m.kubelet.admit(pod)


def test_requests_are_equal_and_hash_alike_in_other_processes() -> None:
    """Hashes of text differ between processes: a copy that came from one must not bring its own along."""
    request = numa_request(pod_of("p", container(gpu=2, guaranteed=True, cpu=1, memory=1)))
    assert request is not None
    body = pickle.dumps(request)
    ask = "import pickle,sys; one = pickle.load(sys.stdin.buffer); assert one in {type(one)(one.containers)}"
    for seed in ("1", "2"):
        subprocess.run([sys.executable, "-c", ask], input=body, env={**os.environ, "PYTHONHASHSEED": seed}, check=True)
    assert pickle.loads(body) == request and hash(pickle.loads(body)) == hash(request)
