"""Metadata that tenants write is cut to what may be read."""

from topo_scheduler.api.objects import ObjectMeta, OwnerReference
from topo_scheduler.kube.slimming import MOST_CHARACTERS, slim


def _characters(metadata: ObjectMeta) -> int:
    return sum(len(name) + len(value) for name, value in metadata.annotations.items())


def test_usual_metadata_stays() -> None:
    owner = OwnerReference("batch/v1", "Job", "j", "u", True)
    metadata = ObjectMeta("a", "ns", labels={"a": "b"}, annotations={"example.com/x": "y"}, owner_references=[owner])
    before = dict(metadata.annotations)
    slim(metadata)
    assert metadata.annotations == before
    assert metadata.labels == {"a": "b"}
    assert metadata.owner_references == [owner]


def test_ours_are_kept_before_others_and_short_ones_before_long_ones() -> None:
    annotations = {f"example.com/{n}": "x" * 5_000 for n in range(40)}
    annotations |= {"topology.scheduler/gang-size": "4", "volume.kubernetes.io/selected-node": "n1"}
    annotations |= {"topology.scheduler/preferred-domain": "y" * 200_000}
    metadata = ObjectMeta("a", "ns", annotations=annotations)
    slim(metadata)
    assert _characters(metadata) <= MOST_CHARACTERS
    assert metadata.annotations["topology.scheduler/gang-size"] == "4"
    assert metadata.annotations["volume.kubernetes.io/selected-node"] == "n1"
    assert len(metadata.annotations["topology.scheduler/preferred-domain"]) == 4_097, "more than is read, so refused"


def test_owners_and_labels_of_tenants_are_few_and_those_of_nodes_stay() -> None:
    references = [OwnerReference("v1", "X", f"o{n}", f"u{n}", n == 7) for n in range(5_000)]
    labels = {f"k{n}": "v" for n in range(5_000)}
    mine = ObjectMeta("a", "ns", labels=dict(labels), owner_references=references)
    node = ObjectMeta("n", labels=dict(labels))
    slim(mine)
    slim(node)
    assert mine.owner_references == [references[7]]
    assert mine.controller == references[7]
    assert len(mine.labels) == 256
    assert node.labels == labels
