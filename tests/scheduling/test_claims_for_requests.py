"""A claim counts as the GPUs that a pod requests only if it was made for them, and only as far as they go."""

import msgspec
import pytest

from tests.helpers import make_node, make_pod
from tests.scheduling.device_driver import DeviceDriver, asking, nodes_of, slice_of
from tests.scheduling.driver import configured
from tests.scheduling.extended_driver import ExtendedDriver, device_class, driver
from topo_scheduler.api.devices import EXTENDED_RESOURCE_CLAIM, ResourceClaim
from topo_scheduler.api.objects import OwnerReference, Pod, PodExtendedResourceClaimStatus
from topo_scheduler.state.nodes.resources import GPU


def gpus_of_namespace(d: DeviceDriver) -> int:
    return d.engine.world.accounts.held("default").get(GPU, 0)


def forge_status(d: DeviceDriver, pod: Pod, claim: str) -> None:
    """Write what any client can that may write ``pods/status``."""
    pod.status.extended_resource_claim_status = PodExtendedResourceClaimStatus(claim)
    d.apply(pod)
    d.step()


def forge_owner(d: DeviceDriver, claim: str, pod: Pod) -> None:
    """Write what any client can that may write ResourceClaims."""
    item = d.claims["default", claim]
    owner = OwnerReference(api_version="v1", kind="Pod", name=pod.metadata.name, uid=pod.metadata.uid, controller=True)
    metadata = msgspec.structs.replace(
        item.metadata, annotations={EXTENDED_RESOURCE_CLAIM: "true"}, owner_references=[owner]
    )
    d.put_claim(ResourceClaim(metadata, item.spec, item.status))
    d.step()


@pytest.mark.parametrize("owned", [False, True])
@pytest.mark.parametrize("requested", [0, 1])
def test_a_pod_whose_status_names_a_claim_of_its_own_is_charged_for_its_devices(requested: int, owned: bool) -> None:
    d = driver()
    pod = d.with_claim(make_pod("p", gpus=requested), asking(4))
    d.run(pod)
    assert pod.spec.node_name
    assert gpus_of_namespace(d) == 4 + requested
    if owned:
        forge_owner(d, "p-claim", pod)
    forge_status(d, pod, "p-claim")
    assert gpus_of_namespace(d) == 4 + requested


@pytest.mark.parametrize("owned", [False, True])
def test_a_new_process_is_not_deceived_either(owned: bool) -> None:
    first = driver()
    pod = first.pod("p", asking(4))
    first.run(pod)
    if owned:
        forge_owner(first, "p-claim", pod)
    forge_status(first, pod, "p-claim")
    second = driver()
    second.apply(pod)  # before its claim is read
    second.step()
    second.put_claim(first.claims["default", "p-claim"])
    second.step()
    assert gpus_of_namespace(second) == 4


def test_a_claim_for_requests_counts_as_far_as_they_go() -> None:
    """Devices behind a resource that counts as no GPU count with the claim."""
    resource = "example.com/accelerators"
    d = driver()
    d.classes(device_class("other", resource))
    pod = make_pod("p")
    pod.spec.containers[0].resources.requests[resource] = 3
    d.run(pod)
    assert sum(d.allocated().values()) == 3
    assert gpus_of_namespace(d) == 3


def test_a_new_process_counts_a_pod_of_extended_resources_once() -> None:
    first = driver()
    pod = make_pod("p", gpus=4)
    first.run(pod)
    ((_, name),) = first.claims
    for claim_first in (True, False):
        second = driver()
        if claim_first:
            second.put_claim(first.claims["default", name])
        second.apply(pod)
        second.step()
        second.put_claim(first.claims["default", name])
        second.step()
        assert gpus_of_namespace(second) == 4


@pytest.mark.parametrize("resource", ["example.com/accelerators", "deviceclass.resource.kubernetes.io/gpu"])
def test_a_quota_of_gpus_holds_whatever_the_resource_is_called(resource: str) -> None:
    d = driver()
    d.classes(device_class("other", "example.com/accelerators"))
    d.engine.configure(configured("{quotas: [{namespaces: [default], hard: {gpus: 5}}]}"))
    d.engine.budgets_known()
    pods = [make_pod(f"p{number}") for number in range(3)]
    for pod in pods:
        pod.spec.containers[0].resources.requests[resource] = 3
        d.run(pod)
    assert len(nodes_of(pods)) == 1


def test_a_claim_counts_with_what_it_has_beyond_the_requested_gpus() -> None:
    resource = "example.com/accelerators"
    d = driver()
    d.classes(device_class("other", resource))
    pod = make_pod("p", gpus=1)
    pod.spec.containers[0].resources.requests[resource] = 3
    d.run(pod)
    assert sum(d.allocated().values()) == 4
    assert gpus_of_namespace(d) == 4


def test_a_pod_that_hides_its_claims_is_charged_for_them() -> None:
    """On a node that offers GPUs itself no claim stands for requested ones."""
    d = ExtendedDriver([make_node("both", "s1/l1", gpus=8)])
    d.slices(slice_of("both"))
    pod = d.with_claim(make_pod("p", gpus=4), asking(4))
    d.run(pod)
    assert gpus_of_namespace(d) == 8
    pod.status.resource_claim_statuses = []
    forge_status(d, pod, "p-claim")
    assert gpus_of_namespace(d) == 8
