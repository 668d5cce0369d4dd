"""A pod that comes or goes has only those pending pods tried again whose constraints look at such pods."""

import pytest

from tests.helpers import make_node, make_pod
from tests.scheduling.driver import Driver
from tests.scheduling.storage import IMMEDIATE, StorageDriver, claim, using, zoned
from topo_scheduler.api.objects import ContainerPort, Pod
from topo_scheduler.api.selectors import (
    Affinity,
    LabelSelector,
    PodAffinity,
    PodAffinityTerm,
    TopologySpreadConstraint,
)
from topo_scheduler.scheduling.rules import neighbour_changes

HOST = "kubernetes.io/hostname"


def selecting(app: str) -> LabelSelector:
    return LabelSelector(match_labels={"app": app})


def term(app: str, key: str = HOST) -> PodAffinityTerm:
    return PodAffinityTerm(selecting(app), topology_key=key)


def pending(kind: str) -> Pod:
    """A pod that fits nowhere."""
    pod = make_pod("waits", gpus=1, labels={"app": "waits"})
    spec = pod.spec
    match kind:
        case "affinity":
            spec.affinity = Affinity(pod_affinity=PodAffinity(required=[term("db")]))
        case "two terms":
            spec.affinity = Affinity(pod_affinity=PodAffinity(required=[term("db"), term("db", "zone")]))
        case "anti-affinity":
            spec.affinity = Affinity(pod_anti_affinity=PodAffinity(required=[term("db")]))
        case "spread":
            spread = TopologySpreadConstraint("none", "DoNotSchedule", 1, label_selector=selecting("db"))
            spec.topology_spread_constraints = [spread]
        case "port":
            spec.containers[0].ports = [ContainerPort(host_port=80)]
    return pod


def nodes() -> Driver:
    """Node n0, to which the pending pod belongs, and two others."""
    return Driver([make_node(f"n{number}", "s/l", labels={HOST: f"n{number}"}) for number in range(3)])


def unschedulable(kind: str) -> tuple[Driver, Pod]:
    """Return a driver, and a pod that stays pending whatever comes: no node has what it selects."""
    d = nodes()
    pod = pending(kind)
    pod.spec.node_selector = {"nothing": "has this"}
    d.run(pod)
    return d, pod


def tried(d: Driver, pod: Pod) -> int:
    """Return how many decisions on a pod the next steps bring."""
    d.forget()
    d.settle()
    return sum(decision.name == f"default/{pod.metadata.name}" for decision in d.decisions())


@pytest.mark.parametrize("kind", ["affinity", "two terms", "spread", "port", "anti-affinity"])
def test_pods_at_which_no_constraint_looks_have_none_tried_again(kind: str) -> None:
    d, pod = unschedulable(kind)
    other = make_pod("other", gpus=1, labels={"app": "web"}, node="n1", scheduler="another")
    d.apply(other)
    assert tried(d, pod) == 0
    d.apply(make_pod("elsewhere", gpus=1, labels={"app": "db"}, namespace="theirs", node="n1", scheduler="another"))
    assert tried(d, pod) == 0, "the selectors mean the pod's own namespace"
    d.delete(other)
    assert tried(d, pod) == 0


@pytest.mark.parametrize("kind", ["affinity", "spread", "anti-affinity"])
def test_pods_at_which_one_looks_do(kind: str) -> None:
    d, pod = unschedulable(kind)
    near = make_pod("db", gpus=1, labels={"app": "db"}, node="n1", scheduler="another")
    d.apply(near)
    assert tried(d, pod) == 1
    d.delete(near)
    assert tried(d, pod) == 1


def test_a_pod_comes_to_those_that_it_waited_for() -> None:
    d = nodes()
    pod = pending("affinity")
    d.run(pod)
    assert not d.where(pod)
    d.apply(make_pod("db", gpus=1, labels={"app": "db"}, node="n1", scheduler="another"))
    d.settle()
    assert d.where(pod) == {"waits": "n1"}


def test_the_end_of_a_pod_helps_those_that_it_kept_away_and_no_others() -> None:
    d = Driver([make_node("n0", "s/l", labels={HOST: "n0"})])
    repels = make_pod("repels", labels={"app": "x"}, node="n0", scheduler="another")
    repels.spec.affinity = Affinity(pod_anti_affinity=PodAffinity(required=[term("waits")]))
    d.apply(repels)
    kept = make_pod("kept", gpus=1, labels={"app": "waits"})
    large = make_pod("large", gpus=9, labels={"app": "web"})
    d.run(kept, large)
    assert not d.where(kept)
    d.delete(repels)
    d.forget()
    d.settle()
    assert d.where(kept) == {"kept": "n0"}
    assert not any(decision.name == "default/large" for decision in d.decisions())


@pytest.mark.unrecorded
def test_too_many_constraints_to_compare_have_their_pods_tried_in_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbour_changes, "MAX_COMPARISONS", 1)
    d = nodes()
    pod = pending("affinity")
    d.run(pod)
    d.apply(make_pod("other", gpus=1, labels={"app": "web"}, node="n1", scheduler="another"))
    assert tried(d, pod) == 1


@pytest.mark.unrecorded
@pytest.mark.parametrize("made", [True, False])
def test_claims_that_are_not_bound_have_no_pod_tried_again_when_others_come(made: bool) -> None:
    d = StorageDriver(zoned("a", "a"))
    if made:
        d.tell(claim("data", IMMEDIATE))
    pod = using("data", name="waits")
    d.run(pod)
    other = make_pod("other", gpus=1)
    d.apply(other)
    assert tried(d, pod) == 0
    d.delete(other)
    assert tried(d, pod) == 0


@pytest.mark.unrecorded
def test_no_pod_is_searched_for_that_might_give_way_to_one_without_its_claim() -> None:
    d = StorageDriver(zoned("a", "a"))
    d.engine.budgets_known()
    pod = using("data", name="waits")
    pod.spec.priority = 5
    d.run(pod)
    d.run(make_pod("lower", gpus=1))
    d.forget()
    for _ in range(30):
        d.step(1.0)
    assert tried(d, pod) == 0
    d.run(make_pod("lower too", gpus=1))
    assert all(decision.name != "default/waits" for decision in d.decisions())


@pytest.mark.unrecorded
def test_a_gang_is_tried_again_once_its_claims_are_there() -> None:
    d = StorageDriver(zoned("a", "a"))
    members = [using(f"c{number}", name=f"g-{number}", gpus=8, gang=2, created=number) for number in range(2)]
    d.run(*members)
    assert not d.where(*members)
    d.tell(claim("c0"), claim("c1"))
    d.settle()
    assert len(d.where(*members)) == 2
