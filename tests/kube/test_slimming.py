"""Metadata that tenants write is cut to what may be read."""

import msgspec
import pytest

from topo_scheduler.api.annotations import GANG_ID
from topo_scheduler.api.devices import Allocation, ResourceClaim, ResourceClaimStatus
from topo_scheduler.api.groups import GroupApi, PodGroupObject
from topo_scheduler.api.objects import (
    BudgetSpec,
    BudgetStatus,
    ClaimSource,
    DisruptionBudget,
    Job,
    JobStatus,
    ObjectMeta,
    OwnerReference,
    Pod,
    PodSpec,
    Volume,
)
from topo_scheduler.api.selectors import LabelSelector, NodeSelector, NodeSelectorTerm, Requirement
from topo_scheduler.api.storage import CSIStorageCapacity, PersistentVolumeClaim, PersistentVolumeClaimSpec
from topo_scheduler.kube.reading.slimming import (
    MAX_CHARACTERS,
    MAX_LABEL_CHARACTERS,
    NO_VOLUME,
    slim,
    slim_item,
    slim_object,
    slim_reference,
)
from topo_scheduler.state.pods.pod_groups import read_group


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
    assert _characters(metadata) <= MAX_CHARACTERS
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


def test_labels_and_references_have_no_more_characters_than_are_read() -> None:
    owner = OwnerReference("batch/v1", "Job", "n" * 500_000, "u" * 500_000, True)
    metadata = ObjectMeta("a", "ns", labels={f"{n:0300d}": "v" * 63 for n in range(200)}, owner_references=[owner])
    slim(metadata)
    assert sum(len(key) + len(value) for key, value in metadata.labels.items()) <= MAX_LABEL_CHARACTERS
    assert metadata.controller is not None
    assert (len(metadata.controller.name), len(metadata.controller.uid)) == (254, 254), "a name that can't exist"
    pod = ObjectMeta("a", "ns", owner_references=[owner])
    slim_reference(pod)
    assert pod.controller == metadata.controller


def test_names_that_cannot_exist_are_cut_and_others_stay() -> None:
    pod = Pod(ObjectMeta("a", "ns"), PodSpec(scheduler_name="s" * 10_000, node_name="n" * 253))
    pod.spec.volumes = [Volume("v", persistent_volume_claim=ClaimSource("c" * 10_000))]
    pod.status.message = "m" * 1_000
    slim_item(pod)
    assert (len(pod.spec.scheduler_name), pod.spec.node_name) == (254, "n" * 253)
    assert pod.spec.volumes[0].persistent_volume_claim == ClaimSource("c" * 254)
    assert pod.status.message == "m" * 1_000
    claim = PersistentVolumeClaim(spec=PersistentVolumeClaimSpec(["ReadWriteOnce"] * 99, volume_name="v" * 10_000))
    slim_item(claim)
    assert (len(claim.spec.volume_name), claim.spec.access_modes) == (254, ["ReadWriteOnce"] * 16)
    job = Job(status=JobStatus(failed_indexes="1," * 200))
    slim_item(job)
    assert len(job.status.failed_indexes) == 400


def test_a_bound_pod_with_a_gang_id_that_the_scheduler_cannot_have_written_is_of_no_gang() -> None:
    for characters, stays in ((4_352, True), (4_353, False)):
        pod = Pod(ObjectMeta("a", "ns", annotations={GANG_ID: "x" * characters}), PodSpec(node_name="n"))
        slim_item(pod)
        assert (GANG_ID in pod.metadata.annotations) is stays


LONG = LabelSelector({}, (Requirement("app", "In", tuple(f"{n:050d}" for n in range(20_000))),))


def test_a_budget_whose_selector_is_too_long_protects_its_namespace() -> None:
    budget = DisruptionBudget(spec=BudgetSpec(LONG), status=BudgetStatus(disruptions_allowed=3))
    slim_object(budget)
    assert budget.spec.selector == LabelSelector()
    assert budget.status.disruptions_allowed == 0
    short = DisruptionBudget(spec=BudgetSpec(LabelSelector({"app": "x"})), status=BudgetStatus(disruptions_allowed=3))
    slim_object(short)
    assert (short.spec.selector, short.status.disruptions_allowed) == (LabelSelector({"app": "x"}), 3)


def test_a_claim_whose_selector_is_too_long_fits_no_volume() -> None:
    claim = PersistentVolumeClaim(spec=PersistentVolumeClaimSpec(selector=LONG))
    slim_object(claim)
    assert claim.spec.selector == NO_VOLUME


def test_a_capacity_whose_topology_is_too_long_is_cut_and_says_so() -> None:
    capacity = CSIStorageCapacity(node_topology=LONG)
    slim_object(capacity)
    assert capacity.node_topology is None
    assert capacity.excess == "nodeTopology has 1,060,063 bytes, of 8,192 at most"
    usual = CSIStorageCapacity(node_topology=LabelSelector({"kubernetes.io/hostname": "n1"}))
    slim_object(usual)
    assert usual.node_topology is not None and not usual.excess


def test_devices_whose_node_selector_is_too_long_are_on_no_node() -> None:
    requirements = tuple(Requirement(f"key-{number}", "Exists") for number in range(1000))
    selector = NodeSelector((NodeSelectorTerm(match_expressions=requirements),))
    claim = ResourceClaim(status=ResourceClaimStatus(allocation=Allocation(node_selector=selector)))
    slim_object(claim)
    assert claim.status.allocation is not None
    assert claim.status.allocation.node_selector == NodeSelector()


@pytest.mark.parametrize("api", [GroupApi.VOLCANO, GroupApi.PLUGINS, GroupApi.NATIVE])
def test_pods_of_a_podgroup_that_is_too_long_are_refused_with_its_size(api: GroupApi) -> None:
    group = PodGroupObject(ObjectMeta("g", "ns"), spec={"minMember": 2, "subGroupPolicy": [{"name": "x" * 40_000}]})
    slim_object(group)
    problem = read_group(api, "v1", group).problem
    assert "spec has 40" in problem and "at most 32,768; make it shorter" in problem


def test_what_is_nested_deeply_is_refused_with_a_reason() -> None:
    """Encoding it later, from a deeper place in the code, might fail."""
    parameters: object = 1
    for _ in range(100):
        parameters = {"a": parameters}
    config = [{"opaque": {"driver": "d", "parameters": parameters}}]
    results = [{"request": "r", "driver": "d", "pool": "p", "device": "gpu-0"}]
    status = {"allocation": {"devices": {"results": results, "config": config}}}
    claim = msgspec.convert({"spec": {"devices": {"config": config}}, "status": status}, ResourceClaim)
    slim_object(claim)
    assert claim.spec.excess == "its config is nested more than 64 levels deep"
    assert claim.status.allocation is not None
    assert claim.status.allocation.devices.results[0].device == "gpu-0"
    group = PodGroupObject(
        metadata=ObjectMeta("g", "ns"), spec={"minMember": 2, "x": parameters}, status={"x": parameters}
    )
    slim_object(group)
    assert "nested more than 64 levels deep" in read_group(GroupApi.VOLCANO, "v1beta1", group).problem
    assert group.status == {}
