"""Short earlier runs let a pod use reserved nodes, until too many pods of its namespace run longer than these did.

How long runs take is up to a tenant: a run of ten seconds, and then one by the same name that never ends.
"""

import pytest

from tests.helpers import make_pod, timestamp
from tests.scheduling.driver import Driver, fabric, gang
from tests.scheduling.running_pods import run_pod_until
from topo_scheduler.api.objects import Pod
from topo_scheduler.recording.checkpoint import dump, load

FREE_NODE = "s1-l1-2"


def train(number: int, namespace: str = "evil") -> Pod:
    return make_pod(f"train-{number}", namespace=namespace, gpus=2, cpu="1")


def start(d: Driver, *pods: Pod) -> None:
    """The kubelet reports that pods started."""
    for pod in pods:
        pod.status.phase, pod.status.start_time = "Running", timestamp(d.now)
    d.apply(*pods)


def run_for(d: Driver, pod: Pod, seconds: float) -> None:
    d.run(pod)
    start(d, pod)
    d.settle(seconds)
    d.finish(pod)


@pytest.fixture
def d() -> Driver:
    """Two nodes. One is free after an hour, the other is reserved for a gang; trainings took a minute so far."""
    d = Driver(fabric({"s1/l1": 2}))
    run_pod_until(d, "a", "s1-l1-1", ends=3600)
    for namespace in ("evil", "honest"):
        run_for(d, train(0, namespace), 60)
    d.apply(*gang(2))
    d.step()
    d.step(31)
    return d


def let_in(d: Driver, *numbers: int, namespace: str = "evil") -> list[Pod]:
    """Return the trainings that get room on the reserved node."""
    pods = [train(number, namespace) for number in numbers]
    d.run(*pods)
    placed = [pod for pod in pods if pod.spec.node_name]
    assert {pod.spec.node_name for pod in placed} <= {FREE_NODE}
    return placed


def overrun(d: Driver) -> list[Pod]:
    """Three trainings are let in, and run ten times as long as the one before."""
    pods = let_in(d, 1, 2, 3)
    assert len(pods) == 3
    start(d, *pods)
    d.settle(600)
    return pods


def test_a_namespace_whose_pods_overrun_earlier_runs_is_let_in_by_these_no_more(d: Driver) -> None:
    overrun(d)
    assert let_in(d, 4) == []


def test_what_its_pods_declare_counts_all_the_same(d: Driver) -> None:
    overrun(d)
    claimed = make_pod("claimed", namespace="evil", gpus=1, annotations={"expected-duration": "1m"})
    own = make_pod("own", namespace="evil", gpus=1)
    own.spec.active_deadline_seconds = 60
    assert d.run(claimed, own) == {"claimed": FREE_NODE, "own": FREE_NODE}


def test_other_namespaces_are_let_in(d: Driver) -> None:
    overrun(d)
    assert len(let_in(d, 1, namespace="honest")) == 1


def test_pods_that_end_as_earlier_runs_did_cost_nothing(d: Driver) -> None:
    pods = let_in(d, 1, 2, 3)
    start(d, *pods)
    d.settle(70)
    for pod in pods:
        d.finish(pod)
    d.settle(600)
    assert len(let_in(d, 4)) == 1


def test_pods_that_use_no_reserved_node_are_not_held_to_earlier_runs() -> None:
    d = Driver(fabric({"s1/l1": 2}))
    run_for(d, train(0), 60)
    pods = [train(number) for number in (1, 2, 3)]
    d.run(*pods)
    start(d, *pods)
    d.settle(3000)
    assert d.engine.world.estimates.believed("evil")
    assert not len(d.engine.world.estimates)


def test_a_pod_that_is_not_bound_after_all_is_not_held_to_it(d: Driver) -> None:
    d.apply(train(1))
    d.step()
    (uid,) = d.flight
    assert uid in d.engine.world.estimates
    d.delete(d.pods[uid])
    assert uid not in d.engine.world.estimates


@pytest.mark.unrecorded
def test_it_is_in_a_checkpoint(d: Driver) -> None:
    pods = let_in(d, 1, 2, 3)
    resolve, extensions = d.engine.arrivals._resolve, d.engine.world.around.extensions
    d.engine = load(dump(d.engine, resolve, ""), resolve, extensions)
    start(d, *pods)
    d.settle(600)
    assert let_in(d, 4) == []
