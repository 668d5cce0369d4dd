"""Pods of one ComputeDomain share an NVLink domain, whatever gang they belong to and whichever scheduler bound them."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import make_node, make_pod
from tests.scheduling.device_driver import DeviceDriver, asking, nodes_of
from tests.scheduling.driver import gang
from topo_scheduler.api.devices import ResourceClaimSpec
from topo_scheduler.api.objects import Pod, PodResourceClaim
from topo_scheduler.api.reasons import Reason
from topo_scheduler.api.selectors import Affinity, LabelSelector, PodAffinity, PodAffinityTerm
from topo_scheduler.state.pods.compute_domains import CLIQUE_LABEL, compute_domain_of

Json = dict[str, Any]


def channel(domain: str = "uid-of-cd", **opaque: Any) -> Json:
    """Return the spec of a claim for a channel of a ComputeDomain, as its driver writes it."""
    parameters = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomainChannelConfig",
        "domainID": domain,
        "allocationMode": "Single",
    }
    spec = asking(1)
    spec["devices"]["config"] = [
        {
            "requests": ["gpus"],
            "opaque": {"driver": "compute-domain.nvidia.com", "parameters": parameters, **opaque},
        }
    ]
    return spec


def driver(cliques: dict[str, int], *, unlabelled: int = 0, devices: int = 1) -> DeviceDriver:
    """Return a cluster with so many nodes in each NVLink domain, and each a channel or several."""
    nodes = [
        make_node(f"{clique}-{number}", f"s/{clique}", gpus=0, labels={CLIQUE_LABEL: f"cluster.{clique}"})
        for clique, count in cliques.items()
        for number in range(count)
    ]
    nodes += [make_node(f"plain-{number}", "s/plain", gpus=0) for number in range(unlabelled)]
    return DeviceDriver(nodes, devices)


def from_template(d: DeviceDriver, pod: Pod, template: str = "cd", spec: Json | None = None) -> Pod:
    d.with_claim(pod, spec or channel())
    pod.spec.resource_claims = [PodResourceClaim("devices", resource_claim_template_name=template)]
    return pod


def members(d: DeviceDriver, size: int, name: str, template: str = "cd", spec: Json | None = None) -> list[Pod]:
    return [from_template(d, pod, template, spec) for pod in gang(size, gpus=0, name=name)]


def domains(pods: list[Pod]) -> set[str]:
    return {node.rpartition("-")[0] for node in nodes_of(pods)}


def test_a_gang_goes_to_one_nvlink_domain_even_if_others_have_more_room_in_sum() -> None:
    d = driver({"c1": 2, "c2": 2, "c3": 3}, unlabelled=4)
    pods = members(d, 3, "a")
    d.run(*pods)
    assert domains(pods) == {"c3"}
    assert len(nodes_of(pods)) == 3


def test_a_second_gang_of_the_same_domain_joins_the_first_and_one_of_another_does_not_have_to() -> None:
    d = driver({"c1": 4, "c2": 8})
    first, second, other = members(d, 3, "a"), members(d, 1, "b"), members(d, 4, "c", template="other")
    d.run(*first)
    (chosen,) = domains(first)
    d.run(*other)
    d.run(*second)
    assert domains(second) == {chosen}
    assert len(nodes_of(other)) == 4


def test_single_pods_follow_those_that_another_scheduler_bound() -> None:
    d = driver({"c1": 2, "c2": 2})
    bound = from_template(d, make_pod("bound", scheduler="other", node="c2-0"))
    d.apply(bound)
    pod = from_template(d, make_pod("p"))
    d.run(pod)
    assert pod.spec.node_name.startswith("c2-")


def test_a_pod_for_which_its_nvlink_domain_has_no_room_is_pending_and_its_event_names_the_domain() -> None:
    d = driver({"c1": 1, "c2": 3})
    bound = from_template(d, make_pod("bound", scheduler="other", node="c1-0"))
    d.apply(bound)
    claim = d.claims["default", "bound-claim"]
    taken_claim = msgspec.structs.replace(claim)
    d.put_claim(taken_claim)
    d.run(from_template(d, make_pod("fills", annotations={}), template="x", spec=asking(1)))
    pods = [from_template(d, make_pod(f"p{number}")) for number in range(2)]
    d.run(*pods)
    waiting = [pod for pod in pods if not pod.spec.node_name]
    assert domains(pods) <= {"c1"}
    (text,) = d.told(waiting[0], Reason.FAILED_SCHEDULING)
    assert "The ComputeDomain of claim template default/cd has pods in NVLink domain cluster.c1" in text


def test_nodes_without_an_nvlink_domain_get_no_pod_of_a_compute_domain() -> None:
    d = driver({}, unlabelled=3)
    pod = from_template(d, make_pod("p"))
    d.run(pod)
    assert not pod.spec.node_name
    (text,) = d.told(pod, Reason.FAILED_SCHEDULING)
    assert "needs nodes with the label nvidia.com/gpu.clique, and no node has it; check that the driver of" in text


def test_the_same_template_name_in_another_namespace_is_another_compute_domain() -> None:
    d = driver({"c1": 2, "c2": 2})
    bound = make_pod("bound", scheduler="other", node="c1-0", namespace="team-b")
    bound.spec.resource_claims = [PodResourceClaim("devices", resource_claim_template_name="cd")]
    d.apply(bound)
    d.run(*(make_pod(f"fill-{number}", node=f"c1-{number}", cpu="64", scheduler="other") for number in range(2)))
    pod = from_template(d, make_pod("p"))
    d.run(pod)
    assert pod.spec.node_name.startswith("c2-")


def test_affinity_of_the_workload_to_itself_over_the_same_label_is_no_contradiction_and_other_affinity_is() -> None:
    def with_affinity(pod: Pod, key: str) -> Pod:
        pod.metadata.labels = {"app": "a"}
        term = PodAffinityTerm(LabelSelector({"app": "a"}), [], None, key)
        pod.spec.affinity = Affinity(None, PodAffinity([term], []), None)
        return pod

    d = driver({"c1": 2, "c2": 2})
    bound = from_template(d, make_pod("bound", scheduler="other", node="c2-0"))
    d.apply(bound)
    fine = with_affinity(from_template(d, make_pod("fine")), CLIQUE_LABEL)
    d.run(fine)
    assert fine.spec.node_name.startswith("c2-")
    refused = with_affinity(from_template(d, make_pod("refused")), "kubernetes.io/hostname")
    d.run(refused)
    assert not refused.spec.node_name
    assert any("does not support both together" in text for text in d.told(refused))


@pytest.mark.parametrize(
    "opaque",
    [
        {"driver": "gpu.nvidia.com"},
        {"parameters": {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomainDaemonConfig"}},
        {"parameters": {"apiVersion": "example.com/v1", "kind": "ComputeDomainChannelConfig", "domainID": "x"}},
        {"parameters": ["ComputeDomainChannelConfig"]},
        {"parameters": None},
    ],
    ids=["driver", "daemon", "group", "list", "nothing"],
)
def test_other_configuration_is_no_channel(opaque: Json) -> None:
    assert not compute_domain_of(msgspec.convert(channel(**opaque), ResourceClaimSpec))
    assert compute_domain_of(msgspec.convert(channel(), ResourceClaimSpec)) == "uid-of-cd"


@settings(max_examples=60, deadline=None)
@given(
    cliques=st.dictionaries(st.sampled_from(["c1", "c2", "c3"]), st.integers(1, 4), min_size=1),
    sizes=st.lists(st.tuples(st.integers(1, 4), st.sampled_from(["cd", "other"])), min_size=1, max_size=4),
)
def test_no_compute_domain_ever_spans_nvlink_domains_and_a_gang_that_fits_one_is_placed(
    cliques: dict[str, int], sizes: list[tuple[int, str]]
) -> None:
    d = driver(cliques, unlabelled=1)
    placed: dict[str, list[Pod]] = {}
    for number, (size, template) in enumerate(sizes):
        pods = (
            members(d, size, f"g{number}", template)
            if size > 1
            else [from_template(d, make_pod(f"g{number}"), template)]
        )
        free = dict(cliques)
        for others in placed.values():
            for node in nodes_of(others):
                free[node.rpartition("-")[0]] -= 1
        before = domains(placed.get(template, []))
        d.run(*pods)
        placed.setdefault(template, []).extend(pods)
        assert len(domains(placed[template])) <= 1
        fits = any(free[clique] >= size for clique in (before or cliques))
        assert len(nodes_of(pods)) == (size if fits else 0)
