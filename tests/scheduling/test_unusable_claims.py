"""Claims that a pod names and can't use: of a PodGroup, of another namespace, or none at all."""

import msgspec

from tests.helpers import make_pod
from tests.scheduling.device_driver import asking, driver
from topo_scheduler.api.devices import ClaimMetadata, ResourceClaim
from topo_scheduler.api.objects import OwnerReference, PodResourceClaim


def test_a_claim_of_a_pod_group_is_refused_with_the_feature_that_makes_it() -> None:
    d = driver()
    pod = d.pod("p", asking(1))
    claim = d.claims["default", "p-claim"]
    owner = OwnerReference("scheduling.k8s.io/v1alpha2", "PodGroup", "training", "uid-of-group", controller=True)
    d.put_claim(
        msgspec.structs.replace(claim, metadata=msgspec.structs.replace(claim.metadata, owner_references=[owner]))
    )
    d.run(pod)
    assert not pod.spec.node_name
    (text,) = set(d.told(pod))
    assert 'resourceclaim "p-claim" was created for a PodGroup' in text
    assert "DRAWorkloadResourceClaims" in text
    assert not d.writes


def test_an_entry_that_names_neither_a_claim_nor_a_template_is_refused() -> None:
    d = driver()
    pod = make_pod("p")
    pod.spec.resource_claims = [PodResourceClaim("devices")]
    d.run(pod)
    assert not pod.spec.node_name
    assert any("claim devices of the pod names neither a ResourceClaim nor a template" in text for text in d.told(pod))
    assert not d.writes


def test_a_claim_of_another_namespace_is_not_found_and_not_used() -> None:
    d = driver()
    metadata = ClaimMetadata(name="own", namespace="other", uid="uid-other")
    d.put_claim(msgspec.structs.replace(msgspec.convert({"spec": asking(8)}, ResourceClaim), metadata=metadata))
    other_claim = d.claims["other", "own"]
    pod = d.sharing(make_pod("p"), "own")
    d.run(pod)
    assert not pod.spec.node_name
    assert any('resourceclaim "own" not found in namespace default' in text for text in d.told(pod))
    assert not d.writes
    d.claim("own", asking(2))
    d.settle(30)
    assert d.where(pod)
    assert len(d.devices_of("own")) == 2, "what the claim of the other namespace asks for does not count"
    assert d.claims["other", "own"] is other_claim
