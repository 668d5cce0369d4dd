"""Annotations of bound pods are claims: what tenants forge or edit takes no GPU and no bandwidth from others."""

import pytest

from tests.helpers import controlled_by, job_owner, make_job, make_node, make_pod, timestamp
from tests.helpers import owner as make_owner
from tests.scheduling.driver import Driver, configured, fabric
from topo_scheduler.api.annotations import MAX_GPUS
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.reasons import Reason
from topo_scheduler.state.nodes.resources import GPU, GPU_SHARE

ONLY_TEAM_A = "{gpusByAnnotation: {namespaces: [team-a, notebook-*]}}"
CHARGED = "topology.scheduler/charged-gpus"
INDEX = "topology.scheduler/gpu-index"


def held(d: Driver, pod: Pod, column: int = GPU) -> int:
    """Return what the ledger holds of a resource for a pod."""
    entry = d.engine.world.ledger.get(pod.metadata.uid)
    return 0 if entry is None else entry.amount(column)


# ---------------------------------------------------------------- what may be asked for


@pytest.mark.parametrize(("gpus", "placed"), [("500m", 1), ("1.5", 3), ("2", 4)])
def test_a_quota_of_a_part_of_a_gpu_allows_shares_of_that_size(gpus: str, placed: int) -> None:
    quota = f"quotas: [{{namespaces: [default], hard: {{gpus: {gpus!r}}}}}]"
    shared = make_node("n", "s/l", gpus=4, labels={"topology.scheduler/gpu-sharing": "true"})
    d = Driver([shared], configured(f"{{gpusByAnnotation: {{namespaces: [default]}}, {quota}}}"))
    pods = [make_pod(f"half-{number}", annotations={"gpu-fraction": "0.5"}) for number in range(5)]
    d.apply(*pods)
    d.settle()
    assert len(d.where(*pods)) == placed


@pytest.mark.parametrize("namespace", ["team-a", "notebook-7"])
def test_a_permitted_namespace_gets_gpus_by_annotation(namespace: str) -> None:
    d = Driver(fabric({"s/l": 1}), configured(ONLY_TEAM_A))
    assert d.run(make_pod("p", namespace=namespace, annotations={"gpu-count": "4"}))


@pytest.mark.parametrize(("annotation", "value"), [("gpu-count", "4"), ("gpu-fraction", "0.5")])
def test_by_default_no_namespace_gets_gpus_that_no_resource_quota_counts(annotation: str, value: str) -> None:
    d = Driver(fabric({"s/l": 1}), configured(permits=False))
    pod = make_pod("p", annotations={annotation: value})
    assert d.run(pod) == {}
    (message,) = d.told(pod, Reason.FAILED_SCHEDULING)
    assert f"topology.scheduler/{annotation}" in message
    assert "namespace default may not" in message
    assert "gpusByAnnotation.namespaces" in message
    assert "limits" in message
    assert not d.told(pod, Reason.UNENFORCED), "nothing is reserved for it"


def test_a_count_that_limits_confirm_needs_no_permission() -> None:
    d = Driver(fabric({"s/l": 1}), configured(permits=False))
    asked = make_pod("p", gpus=4, annotations={"gpu-count": "4"})
    none = make_pod("q", annotations={"gpu-count": "0"})
    assert d.run(asked, none).keys() == {asked.metadata.name, none.metadata.name}


def test_a_permission_counts_at_once_and_so_does_its_end() -> None:
    d = Driver(fabric({"s/l": 1}), configured(permits=False))
    pod, later = (make_pod(name, annotations={"gpu-count": "2"}) for name in "pq")
    assert d.run(pod) == {}
    d.engine.configure(configured("{gpusByAnnotation: {namespaces: [default]}}"))
    d.settle()
    assert pod.spec.node_name
    d.engine.configure(configured(permits=False))
    d.settle()
    assert held(d, pod) == 2, "what was granted stays"
    assert d.run(later) == {}


# ---------------------------------------------------------------- what is believed of bound pods


def bound(name: str, namespace: str = "default", node: str = "s-l-1", **annotations: str) -> Pod:
    pod_annotations = {key.replace("_", "-"): value for key, value in annotations.items()}
    return make_pod(name, namespace=namespace, node=node, annotations=pod_annotations)


def test_forged_charges_take_nothing() -> None:
    d = Driver(fabric({"s/l": 1}), configured(ONLY_TEAM_A))
    forged = bound("forged", "evil", charged_gpus="8", gpu_index="0,1,2,3,4,5,6,7")
    other = bound("other", "team-a", charged_gpus="8")
    other.spec.scheduler_name = "default-scheduler"
    shared = bound("shared", "evil", charged_gpu_fraction="0.5", gpu_index="0")
    d.apply(forged, other, shared)
    assert [held(d, pod) for pod in (forged, other)] == [0, 0]
    assert held(d, shared, GPU_SHARE) == 0
    assert d.run(make_pod("victim", gpus=8)) == {"victim": "s-l-1"}


def test_a_claim_counts_for_no_more_than_its_node_has() -> None:
    d = Driver(fabric({"s/l": 2}), configured(ONLY_TEAM_A))
    claim = bound("claim", "team-a", charged_gpus=str(MAX_GPUS))
    d.apply(claim)
    assert held(d, claim) == 8
    assert d.run(make_pod("victim", gpus=8)) == {"victim": "s-l-2"}


def test_an_annotation_edited_after_binding_changes_nothing() -> None:
    d = Driver(fabric({"s/l": 1}), configured(ONLY_TEAM_A))
    pod = make_pod("p", namespace="team-a", annotations={"gpu-count": "2"})
    d.run(pod)
    for text in ("8", None, "1"):
        pod.metadata.annotations.pop(CHARGED, None)
        if text is not None:
            pod.metadata.annotations[CHARGED] = text
        d.apply(pod)
        assert held(d, pod) == 2
    assert d.run(make_pod("six", gpus=6)) == {"six": "s-l-1"}


def test_an_annotation_edited_before_its_bind_is_seen_takes_no_more_than_was_decided() -> None:
    d = Driver(fabric({"s/l": 1}), configured(ONLY_TEAM_A))
    pod = make_pod("p", namespace="team-a", annotations={"gpu-count": "2"})
    d.apply(pod)
    d.step()
    pod.spec.node_name = "s-l-1"
    pod.metadata.annotations[CHARGED] = "8"
    d.engine.pods_applied([pod], d.now)
    assert held(d, pod) == 2


def test_an_index_names_no_more_gpus_than_the_pod_holds() -> None:
    shared = make_node("n", "s/l", gpus=4, labels={"topology.scheduler/gpu-sharing": "true"})
    d = Driver([shared], configured())
    d.apply(make_pod("one", gpus=1, node="n", annotations={"gpu-index": "0,1,2,3"}))
    halves = [make_pod(f"half-{number}", annotations={"gpu-fraction": "0.9"}) for number in range(3)]
    assert len(d.run(*halves)) == 3


def test_edited_indexes_stay_as_they_were_decided() -> None:
    shared = make_node("n", "s/l", gpus=2, labels={"topology.scheduler/gpu-sharing": "true"})
    d = Driver([shared], configured())
    pod = make_pod("p", annotations={"gpu-fraction": "0.5"})
    d.run(pod)
    entry = d.engine.world.ledger.get(pod.metadata.uid)
    assert entry is not None
    before = entry.devices
    pod.metadata.annotations[INDEX] = "1" if before == (0,) else "0"
    d.apply(pod)
    entry = d.engine.world.ledger.get(pod.metadata.uid)
    assert entry is not None
    assert entry.devices == before


def test_bandwidth_is_believed_of_this_schedulers_pods_and_for_what_their_node_can_send() -> None:
    d = Driver([make_node("s-l-1", "s/l", bandwidth="100Gb")], configured())
    other = bound("other", reserved_bandwidth="50000", gang_id="default/a")
    other.spec.scheduler_name = "default-scheduler"
    claim = bound("claim", reserved_bandwidth="9999999", gang_id="default/b")
    d.apply(other, claim)
    links = d.engine.world.links
    assert links.held(other.metadata.uid) is None
    assert links.held(claim.metadata.uid) == (("default", "default/b"), "s-l-1", 100_000)
    claim.metadata.annotations["topology.scheduler/reserved-bandwidth"] = "1"
    d.apply(claim)
    assert links.held(claim.metadata.uid) == (("default", "default/b"), "s-l-1", 100_000)


# ---------------------------------------------------------------- gangs and owners of other namespaces


def test_a_pod_that_borrows_an_owner_of_another_namespace_is_no_member_of_its_gang() -> None:
    d = Driver(fabric({"s/l": 4}), configured())
    owner = controlled_by("Job", "train")
    d.own(job_owner(make_job("train", parallelism=2, annotations={"gpu-count": "16"})))
    first = make_pod("train-0", gpus=8, owner=owner)
    said = {"gang-size": "2"}
    d.apply(make_pod("thief", namespace="evil", gpus=8, owner=owner, annotations=said))
    assert d.run(first) == {}, "the other member is not there"
    second = make_pod("train-1", gpus=8, owner=owner)
    assert d.run(second).keys() == {"train-1"}
    assert first.spec.node_name
    theirs = d.engine.workloads.of_pod(first.metadata.uid)
    assert theirs is not None
    assert {member.namespace for member in theirs[0].members.values()} == {"default"}


@pytest.mark.parametrize("gang", ["uid-train", "default/uid-train"])
def test_a_bound_pod_that_claims_a_gang_of_another_namespace_does_not_count_for_it(gang: str) -> None:
    d = Driver(fabric({"s/l": 4}), configured())
    owner = controlled_by("Job", "train")
    d.own(job_owner(make_job("train", parallelism=2, annotations={"gpu-count": "16"})))
    d.apply(make_pod("thief", namespace="evil", node="s-l-1", owner=owner, annotations={"gang-id": gang, "rank": "1"}))
    assert d.run(make_pod("train-0", gpus=8, owner=owner)) == {}


def test_a_gang_bound_by_an_earlier_version_is_known_by_its_controller() -> None:
    d = Driver(fabric({"s/l": 4}), configured())
    owner = controlled_by("Job", "train")
    d.own(job_owner(make_job("train", parallelism=2, annotations={"gpu-count": "16"})))
    d.apply(make_pod("train-0", node="s-l-1", owner=owner, annotations={"gang-id": "uid-train", "rank": "0"}))
    assert "train-1" in d.run(make_pod("train-1", gpus=8, owner=owner)), "the other member runs already"


def test_pods_keep_away_from_siblings_of_their_own_namespace_only() -> None:
    d = Driver(fabric({"s/l1": 1, "s/l2": 1}), configured())
    owner = controlled_by("ReplicaSet", "web")
    thief = make_pod("thief", namespace="evil", node="s-l1-1", owner=owner)
    d.own(make_owner("ReplicaSet", "web", {"placement-strategy": "distributed"}))
    d.apply(thief)
    pod = make_pod("web-0", owner=owner)
    d.apply(pod)
    assert d.engine.arrivals.rows_of_siblings(pod.metadata.uid) == []


def test_an_expected_duration_weighs_as_much_as_its_pod_holds() -> None:
    d = Driver(fabric({"s/l": 1}))
    pods = [
        make_pod(name, gpus=gpus, cpu=cpu, memory="1Mi", node="s-l-1", annotations={"expected-duration": "1h"})
        for name, gpus, cpu in (("large", 4, "1"), ("tiny", 0, "1m"))
    ]
    for pod in pods:
        pod.status.phase, pod.status.start_time = "Running", timestamp(0)
    d.apply(*pods)
    claims = d.engine.world.promises._claims
    large, tiny = (claims[pod.metadata.uid].weight for pod in pods)
    assert large == 4.0 and 0.0 < tiny < 0.001
