"""Of a pending pod is kept what is read, and of one beyond a cap who it is."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tests.helpers import controlled_by, make_pod
from topo_scheduler.api import groups
from topo_scheduler.api.annotations import GANG_COMPLETE, MAX_UNKNOWN_ANNOTATIONS
from topo_scheduler.api.objects import Container, ContainerStatus, Pod, PodCondition, Volume
from topo_scheduler.api.selectors import Affinity, LabelSelector, PodAffinity, PodAffinityTerm
from topo_scheduler.state.pods.trimming import trimmed

LONG = "x" * 260_000


def encoded_bytes(pod: Pod) -> int:
    return len(msgspec.json.encode(pod))


def test_a_plain_pod_is_not_copied() -> None:
    pod = make_pod("plain", gpus=8, annotations={"topology.scheduler/gang-name": "g"})
    assert trimmed(pod) is pod


def test_annotations_that_nothing_reads_are_left_out() -> None:
    read = {"topology.scheduler/gang-name": "g", "kueue.x-k8s.io/pod-group-name": "k", "example.com/plugin": "p"}
    pod = make_pod("pod", gpus=1)
    pod.metadata.annotations = {**read, "example.com/big": LONG, "kubectl.kubernetes.io/last-applied": "{}"}
    kept = trimmed(pod, ["example.com/plugin"])
    assert kept.metadata.annotations == read
    assert kept.spec is pod.spec
    assert not kept.excess
    assert "example.com/big" in pod.metadata.annotations, "the pod that came is not changed"
    assert encoded_bytes(kept) < 1_600 < encoded_bytes(pod)


def test_of_annotations_with_a_wrong_prefix_a_few_names_are_kept_and_no_value() -> None:
    pod = make_pod("pod", gpus=1)
    pod.metadata.annotations = {f"topology-scheduler-{number}/gpu-count": LONG for number in range(100)}
    kept = trimmed(pod)
    assert len(kept.metadata.annotations) == MAX_UNKNOWN_ANNOTATIONS
    assert set(kept.metadata.annotations.values()) == {""}
    pod.metadata.annotations = {"topology-scheduler/gpu-count": LONG}
    assert trimmed(pod).metadata.annotations == {"topology-scheduler/gpu-count": ""}


def test_short_annotations_are_kept_for_plugins() -> None:
    pod = make_pod("pod", gpus=1)
    pod.metadata.annotations = {"example.com/any": "a"}
    assert trimmed(pod, plugins=True) is pod
    pod.metadata.annotations["example.com/big"] = LONG
    assert trimmed(pod, plugins=True).metadata.annotations == {}


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for element in value:
            yield from _texts(element)


def test_every_key_that_api_groups_names_is_kept() -> None:
    constants = [value for name, value in vars(groups).items() if name.isupper() and name != "READ_OF_PODS"]
    texts = [text for value in constants if isinstance(value, str | tuple) for text in _texts(value)]
    keys = {text for text in texts if "/" in text or text == groups.SIGS_LABEL}
    assert len(keys) > 20
    assert keys <= groups.READ_OF_PODS


def _terms(count: int) -> Affinity:
    term = PodAffinityTerm(LabelSelector({"app": "a"}), topology_key="kubernetes.io/hostname")
    return Affinity(pod_anti_affinity=PodAffinity(required=[msgspec.structs.replace(term) for _ in range(count)]))


@pytest.mark.parametrize(
    ("change", "excess"),
    [
        ({"affinity": _terms(5000)}, "podAntiAffinity, required terms, has 5000 entries"),
        ({"node_selector": {f"k{n}": "v" for n in range(25_000)}}, "spec.nodeSelector has 25000 entries"),
        ({"volumes": [Volume(f"v{n}") for n in range(9000)]}, "spec.volumes has 9000 entries"),
        ({"containers": [Container(f"c{n}") for n in range(9000)]}, "spec.containers has 9000 entries"),
    ],
)
def test_of_a_pod_beyond_a_cap_its_identity_is_kept(change: dict[str, Any], excess: str) -> None:
    pod = make_pod("pod", gpus=1, owner=controlled_by("Job", "j"), annotations={"topology.scheduler/gang-name": "g"})
    for field, value in change.items():
        setattr(pod.spec, field, value)
    kept = trimmed(pod)
    assert excess in kept.excess
    assert encoded_bytes(kept) < 1_600
    assert (kept.key, kept.metadata.uid, kept.metadata.controller) == (
        pod.key,
        pod.metadata.uid,
        pod.metadata.controller,
    )
    assert kept.metadata.annotations == pod.metadata.annotations
    assert kept.spec.priority == pod.spec.priority
    assert trimmed(kept) == kept, "it stays refused"
    assert msgspec.json.decode(msgspec.json.encode(kept), type=Pod) == kept, "records can be replayed"


def test_annotations_of_ours_that_are_too_many_or_too_long_together_are_refused() -> None:
    many = make_pod("many", gpus=1)
    many.metadata.annotations = {f"topology.scheduler/x{n}": "1" for n in range(5000)}
    assert "has 5000 entries, the scheduler reads at most 64" in trimmed(many).excess
    assert len(trimmed(many).metadata.annotations) <= 64
    together = make_pod("together", gpus=1)
    together.metadata.annotations = {f"topology.scheduler/x{n}": "x" * 4000 for n in range(60)}
    assert "have 240000 characters together, the scheduler reads at most 8192" in trimmed(together).excess
    assert trimmed(together).metadata.annotations == {}
    group = make_pod("group", gpus=1)
    group.metadata.annotations = {"kueue.x-k8s.io/pod-group-name": LONG}
    assert "annotation kueue.x-k8s.io/pod-group-name has 260000 characters" in trimmed(group).excess


def test_a_status_that_another_client_wrote_is_cut() -> None:
    pod = make_pod("pod", gpus=1)
    pod.status.message = LONG
    pod.status.container_statuses = [ContainerStatus(f"c{n}") for n in range(5000)]
    ours = [PodCondition("PodScheduled", "False", "Unschedulable", LONG), PodCondition(GANG_COMPLETE, "True")]
    pod.status.conditions = [*ours, *(PodCondition(f"t{n}", "True", "", LONG) for n in range(20))]
    kept = trimmed(pod)
    assert [condition.type for condition in kept.status.conditions] == ["PodScheduled", GANG_COMPLETE]
    assert encoded_bytes(kept) < 6_600
