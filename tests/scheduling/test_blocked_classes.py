"""Gangs of which one kind of pod has no node by itself: its reason comes first, and no remedy names a smaller size."""

from collections.abc import Callable

import msgspec
import pytest

from tests.helpers import NVIDIA, make_node, make_pod
from tests.scheduling.affinity_pods import pod_affinity
from tests.scheduling.driver import Driver, explanation_of
from tests.scheduling.storage import DELAYED, HOST, IMMEDIATE, StorageDriver, claim, using, volume
from topo_scheduler.api.objects import Container, Node, Pod, PodSpec, Quantity, ResourceRequirements
from topo_scheduler.api.reasons import Reason
from topo_scheduler.api.storage import StorageClass
from topo_scheduler.scheduling.explaining import blocked_class
from topo_scheduler.scheduling.explaining.remedies import RemedyKind

ONE_OF_4 = "1 of the 4 pods to place fits no node."


def leaves() -> list[Node]:
    """Four leaves of four nodes with 8 GPUs each."""
    return [
        make_node(f"s{spine}-l{leaf}-{number}", f"s{spine}/l{leaf}", labels={HOST: f"s{spine}-l{leaf}-{number}"})
        for spine in (1, 2)
        for leaf in (1, 2)
        for number in (1, 2, 3, 4)
    ]


def with_claims(size: int = 4) -> list[Pod]:
    """A gang whose members have a claim of their own each."""
    return [using(f"d-{number}", name=f"d-{number}", gpus=8, gang=size) for number in range(size)]


def with_odd(odd: int, spec: PodSpec) -> list[Pod]:
    """A gang of four, one of them with another spec."""
    annotations = {"gang-name": "g", "gang-size": "4"}
    return [
        make_pod(f"g-{number}", annotations=annotations, spec=spec if number == odd else of_gpus(8))
        for number in range(4)
    ]


def of_gpus(gpus: int, cpu: str = "1", **fields: object) -> PodSpec:
    limits: dict[str, Quantity] = {NVIDIA: gpus} if gpus else {}
    resources = ResourceRequirements({"cpu": cpu, **limits}, limits)
    return PodSpec(containers=[Container("main", resources)], **fields)  # type: ignore[arg-type]


def message(d: Driver, pods: list[Pod]) -> str:
    """Return the message of the pods, which is one for all, also after the search for remedies."""
    d.run(*pods)
    (text,) = {text for pod in pods for text in d.told(pod, Reason.FAILED_SCHEDULING)[:1]}
    d.explain()
    return text


@pytest.mark.unrecorded
@pytest.mark.parametrize("missing", range(4))
def test_the_claim_that_one_member_lacks_is_the_reason_for_all(missing: int) -> None:
    d = StorageDriver(leaves())
    d.tell(*(claim(f"d-{number}") for number in range(4) if number != missing))
    pods = with_claims()
    text = f'0/16 nodes are available: 16 persistentvolumeclaim "d-{missing}" not found. {ONE_OF_4}'
    assert message(d, pods) == text
    explanation = explanation_of(d, pods[0])
    assert explanation.ways == (), "no smaller gang and no ended pod creates the claim"
    assert d.told(pods[0], Reason.FAILED_SCHEDULING) == [text]
    assert {(domain.room, *domain.reasons) for domain in explanation.domains} == {
        (0, f'persistentvolumeclaim "d-{missing}" not found')
    }
    d.tell(claim(f"d-{missing}"))
    d.settle()
    assert len({pod.spec.node_name for pod in pods} - {""}) == 4 or len(d.preparing) == 4


@pytest.mark.unrecorded
def test_if_all_members_lack_their_claims_the_first_is_named() -> None:
    text = message(StorageDriver(leaves()), with_claims())
    assert text == '0/16 nodes are available: 16 persistentvolumeclaim "d-0" not found.'


@pytest.mark.unrecorded
def test_a_deleted_volume_of_one_member_is_the_reason() -> None:
    d = StorageDriver(leaves())
    for number in range(4):
        d.tell(claim(f"d-{number}", IMMEDIATE))
        d.bind_claim(f"d-{number}", volume(f"pv-{number}", IMMEDIATE))
    d.storage.volumes.pop("pv-2")
    assert "16 node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)." in message(d, with_claims())


@pytest.mark.unrecorded
@pytest.mark.parametrize(
    ("hosts", "room"), [(["elsewhere"], "none has room"), (["s1-l1-1"], "the most free is s1 with room for at most 1")]
)
def test_a_class_that_makes_volumes_for_few_nodes_leaves_room_for_as_few(hosts: list[str], room: str) -> None:
    d = StorageDriver(leaves())
    terms = [{"matchLabelExpressions": [{"key": HOST, "values": hosts}]}]
    narrowed = {"metadata": {"name": DELAYED}, "provisioner": "disk.example.com", "allowedTopologies": terms}
    narrowed["volumeBindingMode"] = "WaitForFirstConsumer"
    d.storage.put(d.storage.classes, DELAYED, msgspec.convert(narrowed, StorageClass))
    d.tell(*(claim(f"d-{number}") for number in range(8)))
    text = message(d, with_claims(8))
    assert "node(s) didn't find available persistent volumes to bind" in text
    assert text.endswith(f"8 pods that have volume claims; {room}.")


@pytest.mark.parametrize("odd", range(4))
@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (lambda: of_gpus(8, node_selector={"x": "y"}), "16 node(s) didn't match Pod's node affinity/selector"),
        (lambda: of_gpus(0, cpu="1000"), "16 Insufficient cpu"),
        (lambda: of_gpus(9), "16 Insufficient nvidia.com/gpu"),
    ],
)
def test_the_kind_of_pod_that_fits_no_node_is_the_reason(odd: int, spec: Callable[[], PodSpec], reason: str) -> None:
    d = Driver(leaves())
    pods = with_odd(odd, spec())
    assert message(d, pods) == f"0/16 nodes are available: {reason}. {ONE_OF_4}"
    assert {way.kind for way in explanation_of(d, pods[0]).ways} <= {RemedyKind.DROP}


def test_a_kind_that_has_room_nowhere_now_is_the_reason_though_others_have() -> None:
    d = Driver(leaves())
    for number, node in enumerate(leaves()):
        fill = make_pod(f"fill-{number}", cpu="60", node=node.metadata.name, scheduler="other")
        d.apply(fill)
    text = message(d, with_odd(3, of_gpus(4, cpu="50")))
    assert text.startswith(f"0/16 nodes are available: 16 Insufficient cpu. {ONE_OF_4} ")
    assert "the most free" not in text, "the room for the others does not matter"


def test_affinity_that_no_member_meets_is_the_reason() -> None:
    d = Driver(leaves())
    pods = with_odd(3, of_gpus(8, affinity=pod_affinity("rack")))
    text = message(d, pods)
    assert text.startswith(f"0/16 nodes are available: 16 node(s) didn't match pod affinity rules. {ONE_OF_4} ")
    assert all(way.kind is not RemedyKind.REDUCE for way in explanation_of(d, pods[0]).ways)


def test_affinity_that_a_member_meets_blocks_no_kind() -> None:
    d = Driver(leaves())
    pods = with_odd(3, of_gpus(8, affinity=pod_affinity(HOST)))
    for pod in pods[:3]:
        pod.metadata.labels["app"] = "web"
    assert "fits no node" not in message(d, pods), "the node of another member has no room for it"


@pytest.mark.unrecorded
def test_only_some_kinds_are_examined_but_claims_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked_class, "MAX_EXAMINED_CLASSES", 0)
    d = StorageDriver(leaves())
    d.tell(*(claim(f"d-{number}") for number in range(3)))
    assert 'persistentvolumeclaim "d-3" not found' in message(d, with_claims())
    assert "fits no node" not in message(Driver(leaves()), with_odd(3, of_gpus(8, node_selector={"x": "y"})))


def of_own_classes(count: int, fit: int = 0) -> list[Pod]:
    """A gang whose members differ; all but the first ``fit`` select nodes that do not exist."""
    annotations = {"gang-name": "g", "gang-size": str(count)}
    pods = [make_pod(f"g-{n}", annotations=annotations, spec=of_gpus(1, cpu=f"{1000 + n}m")) for n in range(count)]
    for pod in pods[fit:]:
        pod.spec.node_selector = {"pool": "none"}
    return pods


def test_no_sentence_counts_the_kinds_examined_if_all_kinds_fit_no_node() -> None:
    count = blocked_class.MAX_EXAMINED_CLASSES + 4
    text = message(Driver(leaves()), of_own_classes(count))
    assert "didn't match Pod's node affinity/selector" in text and "fit no node" not in text


def test_a_count_of_some_kinds_is_a_lower_bound() -> None:
    count = blocked_class.MAX_EXAMINED_CLASSES + 4
    text = message(Driver(leaves()), of_own_classes(count, fit=2))
    assert f"At least 16 of the {count} pods to place fit no node." in text
    text = message(Driver(leaves()), of_own_classes(10, fit=2))
    assert "selector. 8 of the 10 pods to place fit no node." in text


def test_without_nodes_no_sentence_says_which_pods_fit_none() -> None:
    text = message(Driver([]), of_own_classes(20))
    assert text.startswith("0/0 nodes are available") and "fit no node" not in text
