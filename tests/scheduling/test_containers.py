"""Every container of the engine has a row in the table of caps, and keeps to it while hostile pods come and go."""

import random
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import pytest

from tests.bounds import check_containers
from tests.helpers import controlled_by, in_group, make_group, make_node, make_pod
from tests.scheduling.device_driver import DRIVER, DeviceDriver, asking, slice_of
from tests.scheduling.driver import configured, fabric
from tests.scheduling.eviction_rules import RULES, SMALL, Rule
from tests.soak.census import census
from topo_scheduler.api.devices import ResourceClaim
from topo_scheduler.api.objects import (
    Container,
    ContainerPort,
    Pod,
    PodClaimStatus,
    PodResourceClaim,
    PodSpec,
    ResourceRequirements,
    Toleration,
)
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

POPULATION: Final = 80
GROUPS: Final = 4
NAMESPACES: Final = 8
LIMITS: Final = (
    "{fairness: {decisionsPerSecond: 1, decisionBurst: 100},"
    " quotas: [{namespaces: ['*'], domain: l2, hard: {gpus: 40}}],"
    " domainAccess: [{domain: l1, namespaces: ['*']}]}"
)
"""Limits by namespace, which the engine keeps in caches."""
BY_FUZZ: Final = tuple(rule for rule in RULES if not rule.test)
MODELS: Final = ("Tesla-V100-SXM2-32GB", "NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-80GB", "AMD-Instinct-MI300X-OAM")


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
    elif chance.random() < 0.3:
        spec.affinity = Affinity(None, None, PodAffinity([term()], []))
    if chance.random() < 0.2:
        spec.topology_spread_constraints = [
            TopologySpreadConstraint(word(), "ScheduleAnyway", 1, label_selector=LabelSelector({word(): word()}))
        ]
    spec.priority = chance.choice([0, 0, 0, chance.randrange(1000)])
    annotations = {}
    if chance.random() < 0.2:
        annotations["preferred-domain"] = word()
    if chance.random() < 0.2:
        annotations["gpu-locality"] = chance.choice(["nvlink", "same-socket", "same-pcie-switch"])
    if chance.random() < 0.3:
        annotations |= {"gang-name": chance.choice([word(), "shared"]), "gang-size": str(chance.choice([1, 2, 4, 999]))}
    for key in ("preferred-domain", "gpu-model", "expected-duration", "required-level", "pod-group", word()):
        if chance.random() < 0.1:
            annotations[key] = chance.choice([word(), "10m", "leaf", "x" * 9000])
    owner = controlled_by(chance.choice(["Job", word()]), word()) if chance.random() < 0.3 else None
    namespace = f"ns{chance.randrange(NAMESPACES)}"
    pod = make_pod(name, uid=f"uid-{name}", spec=spec, annotations=annotations, owner=owner, namespace=namespace)
    pod.metadata.labels = {word(): word() for _ in range(chance.choice([0, 1, 2, 400]))}
    return pod


class Owned(DeviceDriver):
    """Knows that no owner of any pod exists."""

    def __init__(self) -> None:
        super().__init__(fabric({"s/l1": 8, "s/l2": 8}), gpus=1, config=configured(LIMITS))
        for name in sorted(self.engine.world.nodes.row_of):
            self.nodes(make_node(name, name.rpartition("-")[0].replace("-", "/"), model=MODELS[0]))

    def _resolve(self, pod: Pod) -> Lineage | None:
        return Lineage()


def devices(d: DeviceDriver) -> int:
    """Return the slices with their devices, and the claims."""
    return 2 * len(d.engine.world.nodes) + len(d.claims)


def check(d: DeviceDriver, pods: int) -> None:
    check_containers(d.engine, "engine", pods, len(d.engine.world.nodes), devices=devices(d))


def claiming(d: DeviceDriver, chance: random.Random, pod: Pod) -> None:
    """Give a pod a claim of its own whose selector no other claim has."""
    meta = pod.metadata
    expression = f"device.driver == '{DRIVER}' && '{meta.name}' != ''"
    owner = {"kind": "Pod", "name": meta.name, "uid": meta.uid, "controller": True}
    claim = {"name": f"{meta.name}-claim", "namespace": meta.namespace, "uid": f"claim-{meta.uid}"}
    spec = asking(chance.choice([1, 1, 2, 99]), selectors=[{"cel": {"expression": expression}}])
    d.put_claim(msgspec.convert({"metadata": {**claim, "ownerReferences": [owner]}, "spec": spec}, ResourceClaim))
    pod.spec.resource_claims = [PodResourceClaim("devices", resource_claim_template_name="template")]
    pod.status.resource_claim_statuses = [PodClaimStatus("devices", claim["name"])]


def submit(d: DeviceDriver, chance: random.Random, name: str) -> Pod:
    """Let a hostile pod come, some with a claim or a PodGroup."""
    pod = hostile(chance, name)
    if chance.random() < 0.2:  # an ordinary pod among them
        locality = chance.choice([{}, {"gpu-locality": "same-socket"}])
        namespace, gpus = pod.metadata.namespace, chance.choice([1, 2, 3, 4])
        pod = make_pod(name, uid=f"uid-{name}", gpus=gpus, annotations=locality, namespace=namespace)
    elif chance.random() < 0.3:
        claiming(d, chance, pod)
    elif chance.random() < 0.1:
        group = f"group{chance.randrange(GROUPS)}"
        d.groups(make_group(group, chance.choice([1, 2, 3]), namespace=pod.metadata.namespace))
        in_group(pod, group)
    d.apply(pod)
    return pod


def leave(d: DeviceDriver, pods: list[Pod]) -> None:
    """Let pods go, with their claims."""
    d.delete(*[pod for pod in pods if pod.metadata.uid in d.pods])
    for pod in pods:
        if pod.spec.resource_claims and (pod.metadata.namespace, f"{pod.metadata.name}-claim") in d.claims:
            d.drop_claim(f"{pod.metadata.name}-claim", pod.metadata.namespace)


def exchange(d: DeviceDriver, chance: random.Random, number: int) -> None:
    """Replace the hardware of a node by some that no other node has."""
    name = chance.choice(sorted(d.engine.world.nodes.row_of))
    path = name.rpartition("-")[0].replace("-", "/")
    d.nodes(make_node(name, path, model=f"{chance.choice(MODELS)}", gpus=chance.choice([1, 2, 4, 8])))
    d.slices(slice_of(name, 1, generation=2 + number, attributes={f"a{number}": {"int": number}}))


def churn(d: DeviceDriver, chance: random.Random, round_: int) -> Iterator[int]:
    """Let hostile pods come, be placed, change and go; yield how many there are."""
    alive: list[Pod] = []
    for number in range(POPULATION):
        alive.append(submit(d, chance, f"h{round_}-{number}"))
        if number % 4 == 3:
            exchange(d, chance, 100 * round_ + number)
        if number % 20 == 19:
            d.step(1)
            d.settle()
            d.explain()
            leave(d, chance.sample(alive, 5))
            yield len(alive)
    d.settle()
    yield len(alive)
    leave(d, alive)
    d.step(1)
    d.settle()


def fuzz(d: DeviceDriver) -> Iterator[int]:
    """Let hostile pods come and go, first with limits of namespaces, then without; yield how many there are."""
    chance = random.Random(20)
    for round_, spec in enumerate((LIMITS, "{}")):
        d.engine.configure(configured(spec))
        yield from churn(d, chance, round_)
        for _ in range(5):
            d.step(700)
        yield 0


def sizes(d: DeviceDriver) -> dict[Rule, int]:
    """Return the entries of the containers of each rule that the fuzz holds; the largest counts."""
    largest: dict[Rule, int] = dict.fromkeys(BY_FUZZ, 0)
    for path, entries in census(d.engine).items():
        for rule in BY_FUZZ:
            if path.replace("daemon", "engine", 1).endswith(rule.paths):
                largest[rule] = max(largest[rule], entries)
    return largest


@pytest.mark.timeout(300)
def test_each_container_keeps_to_its_row_and_shrinks_when_the_pods_are_gone() -> None:
    d = Owned()
    largest: dict[Rule, int] = dict.fromkeys(BY_FUZZ, 0)
    for pods in fuzz(d):
        check(d, pods)
        largest = {rule: max(entries, largest[rule]) for rule, entries in sizes(d).items()}
    too_few = [rule.container for rule, entries in largest.items() if entries <= rule.bound(SMALL)]
    assert not too_few, "with small constants, nothing would be dropped from these"


@pytest.mark.timeout(300)
def test_each_container_drops_entries_beyond_a_small_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    for rule in BY_FUZZ:
        for constant in rule.constants:
            monkeypatch.setattr(rule.imported(), constant, SMALL)
    d = Owned()
    for pods in fuzz(d):
        check(d, pods)
        for rule, entries in sizes(d).items():
            assert entries <= rule.bound(SMALL), f"{rule.container} has {entries} entries"


def test_a_container_without_a_row_is_noticed() -> None:
    d = Owned()
    check(d, 0)
    d.engine.arrivals.siblings.surplus = {"a": 1}  # type: ignore[attr-defined]
    with pytest.raises(AssertionError, match=r"siblings\.surplus has no row"):
        check(d, 0)


def test_a_container_that_grows_without_bound_is_noticed() -> None:
    d = Owned()
    d.engine.arrivals._touched |= dict.fromkeys(map(str, range(1000)))
    with pytest.raises(AssertionError, match=r"_touched has 1000 entries"):
        check(d, 0)
