"""Every container of the engine has a row in the table of caps, and keeps to it while hostile pods come and go."""

import random
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.bounds import check_containers
from tests.helpers import controlled_by, make_pod
from tests.scheduling.driver import Driver, fabric
from topo_scheduler.api.objects import Container, ContainerPort, Pod, PodSpec, ResourceRequirements, Toleration
from topo_scheduler.api.selectors import (
    Affinity,
    LabelSelector,
    NodeAffinity,
    NodeSelector,
    NodeSelectorTerm,
    PodAffinity,
    PodAffinityTerm,
    PreferredTerm,
    Requirement,
    TopologySpreadConstraint,
    WeightedPodAffinityTerm,
)
from topo_scheduler.scheduling.intake.understand import Lineage

pytestmark = pytest.mark.unrecorded

POPULATION: Final = 60


def check(d: Driver, pods: int) -> None:
    check_containers(d.engine, "engine", pods, len(d.engine.world.nodes))


def hostile(chance: random.Random, name: str) -> Pod:
    """Return a pod that brings something new in every field."""

    def word() -> str:
        return f"w{chance.randrange(1 << 40)}"

    def requirement() -> Requirement:
        return Requirement(word(), chance.choice(["In", "NotIn", "Exists"]), (word(),))

    def term() -> PodAffinityTerm:
        key = chance.choice([word(), "kubernetes.io/hostname"])
        return PodAffinityTerm(LabelSelector({word(): word()}), [word()], None, key)

    requests: dict[str, Any] = {"nvidia.com/gpu": chance.randrange(9), "cpu": f"{chance.randrange(1, 9999)}m"}
    if chance.random() < 0.3:
        requests |= {f"{word()}.up/r": 1 for _ in range(chance.choice([1, 3, 200]))}
    spec = PodSpec(containers=[Container("main", ResourceRequirements(requests, requests))])
    spec.containers[0].image = word()
    if chance.random() < 0.3:
        spec.node_selector = {word(): word() for _ in range(chance.choice([1, 2, 300]))}
    if chance.random() < 0.3:
        spec.tolerations = [Toleration(word()) for _ in range(chance.choice([1, 5, 1000]))]
    if chance.random() < 0.2:
        spec.containers[0].ports = [ContainerPort(host_port=chance.randrange(1, 60_000))]
    if chance.random() < 0.4:
        spec.affinity = Affinity(
            NodeAffinity(
                NodeSelector((NodeSelectorTerm((requirement(),)),)) if chance.random() < 0.3 else None,
                tuple(PreferredTerm(1, NodeSelectorTerm((requirement(),))) for _ in range(chance.choice([1, 900]))),
            ),
            None,
            PodAffinity([term() for _ in range(chance.choice([0, 1, 900]))], [WeightedPodAffinityTerm(1, term())]),
        )
    if chance.random() < 0.2:
        spec.topology_spread_constraints = [
            TopologySpreadConstraint(word(), "ScheduleAnyway", 1, label_selector=LabelSelector({word(): word()}))
        ]
    spec.priority = chance.choice([0, 0, 0, chance.randrange(1000)])
    annotations = {}
    if chance.random() < 0.3:
        annotations = {"gang-name": chance.choice([word(), "shared"]), "gang-size": str(chance.choice([1, 2, 4, 999]))}
    for key in ("preferred-domain", "gpu-model", "expected-duration", "required-level", "pod-group", word()):
        if chance.random() < 0.1:
            annotations[key] = chance.choice([word(), "10m", "leaf", "x" * 9000])
    owner = controlled_by(chance.choice(["Job", word()]), word()) if chance.random() < 0.3 else None
    pod = make_pod(name, spec=spec, annotations=annotations, owner=owner, namespace=f"ns{chance.randrange(4)}")
    pod.metadata.labels = {word(): word() for _ in range(chance.choice([0, 1, 2, 400]))}
    return pod


class Owned(Driver):
    """Knows that no owner of any pod exists."""

    def _resolve(self, pod: Pod) -> Lineage | None:
        return Lineage()


def churn(d: Driver, chance: random.Random, round_: int) -> Iterator[int]:
    """Let hostile pods come, be placed, change and go; yield how many there are."""
    alive: list[Pod] = []
    for number in range(POPULATION):
        alive.append(hostile(chance, f"h{round_}-{number}"))
        d.apply(alive[-1])
        if number % 20 == 19:
            d.step(1)
            d.settle()
            d.explain()
            leaving = chance.sample(alive, 5)
            d.delete(*[pod for pod in leaving if pod.metadata.uid in d.pods])
            yield len(alive)
    d.settle()
    yield len(alive)
    d.delete(*[pod for pod in alive if pod.metadata.uid in d.pods])
    d.step(1)
    d.settle()


@pytest.mark.timeout(300)
def test_each_container_keeps_to_its_row_and_shrinks_when_the_pods_are_gone() -> None:
    d = Owned(fabric({"s/l1": 8, "s/l2": 8}))
    chance = random.Random(20)
    for round_ in range(2):
        for pods in churn(d, chance, round_):
            check(d, pods)
        for _ in range(5):
            d.step(700)
        check(d, 0)


def test_a_container_without_a_row_is_noticed() -> None:
    d = Owned(fabric({"s/l1": 2}))
    check(d, 0)
    d.engine.arrivals.siblings.surplus = {"a": 1}  # type: ignore[attr-defined]
    with pytest.raises(AssertionError, match=r"siblings\.surplus has no row"):
        check(d, 0)


def test_a_container_that_grows_without_bound_is_noticed() -> None:
    d = Owned(fabric({"s/l1": 2}))
    d.engine.arrivals._touched |= dict.fromkeys(map(str, range(1000)))
    with pytest.raises(AssertionError, match=r"_touched has 1000 entries"):
        check(d, 0)
