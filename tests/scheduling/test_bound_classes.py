"""What a bound pod requests is forgotten beyond the budget of its namespace, and read again for a plan."""

import pytest

from tests.helpers import make_pod
from tests.scheduling.driver import Driver, fabric
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.selectors import Affinity, LabelSelector, PodAffinity, PodAffinityTerm, WeightedPodAffinityTerm
from topo_scheduler.state.pods import kept_classes
from topo_scheduler.state.pods.workloads import Member

pytestmark = pytest.mark.unrecorded


@pytest.fixture
def d(monkeypatch: pytest.MonkeyPatch) -> Driver:
    monkeypatch.setattr(kept_classes, "ORDINARY_CLASS_BYTES", 300)
    monkeypatch.setattr(kept_classes, "MAX_CLASS_BYTES_OF_NAMESPACE", 12_000)
    return Driver(fabric({"s/l1": 4}))


def large_pod(name: str) -> Pod:
    pod = make_pod(name, gpus=8)
    term = PodAffinityTerm(LabelSelector({"app": f"{name}-other"}), topology_key="kubernetes.io/hostname")
    pod.spec.affinity = Affinity(None, PodAffinity([], [WeightedPodAffinityTerm(1, term)] * 9), None)
    return pod


def member(d: Driver, pod: Pod) -> Member:
    membership = d.engine.workloads.of_pod(pod.metadata.uid)
    assert membership is not None
    return membership[1]


def test_the_request_of_a_bound_pod_is_forgotten_and_read_again(d: Driver) -> None:
    pods = [large_pod(f"p{number}") for number in range(4)]
    d.run(*pods)
    assert all(pod.spec.node_name for pod in pods)
    read = [bool(member(d, pod).cls.amounts) for pod in pods]
    assert read.count(False) == 3, "the budget holds one of them"
    forgotten = pods[read.index(False)]
    before = d.engine.world.ledger.get(forgotten.metadata.uid)
    d.engine.pods_reported([forgotten], d.now)
    assert member(d, forgotten).cls.preferences is not None
    assert member(d, forgotten).decided
    assert d.engine.world.ledger.get(forgotten.metadata.uid) == before
    assert [bool(member(d, pod).cls.amounts) for pod in pods].count(True) == 1


def test_a_kubelet_that_refuses_such_a_pod_is_not_held_against_all_unknown_ones(d: Driver) -> None:
    pods = [large_pod(f"p{number}") for number in range(4)]
    d.run(*pods)
    forgotten = next(pod for pod in pods if not member(d, pod).cls.amounts)
    d.finish(forgotten, "Failed", "UnexpectedAdmissionError")
    assert not d.engine.world.penalties


def test_pods_that_end_leave_nothing_behind(d: Driver) -> None:
    pods = [large_pod(f"p{number}") for number in range(4)]
    d.run(*pods)
    d.delete(*pods)
    kept = d.engine.world.kept_classes
    assert not kept._classes
    assert not kept._class_of
    assert not kept._memory.bytes_of("default")
