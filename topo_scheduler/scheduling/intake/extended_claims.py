"""The claim for the extended resources of a pending pod: what it asks for, and what is left of earlier decisions.

The scheduler makes the claim once it has decided. A claim that exists for a pod without a node is from a decision that
was not carried out, maybe of an earlier process. The scheduler removes it before it decides on the pod again.
"""

from collections.abc import Iterable, Iterator

from topo_scheduler.api.devices import DELETE_PROTECTION
from topo_scheduler.api.objects import Pod
from topo_scheduler.state.devices.claim_writes import ClaimWrite, consumer, deletion_of
from topo_scheduler.state.devices.extended_resources import (
    RequestMapping,
    extended_claim_name,
    extended_requests,
    requested_resources,
)
from topo_scheduler.state.devices.inventory import ClaimKey, DeviceInventory
from topo_scheduler.state.devices.pod_claims import PodClaim, encoded


def extended_key(pod: Pod) -> ClaimKey:
    """Return the namespace and the name of the claim that the scheduler makes for a pod."""
    return pod.metadata.namespace, extended_claim_name(pod.metadata.name, pod.metadata.uid)


def extended_keys(pod: Pod, inventory: DeviceInventory) -> Iterator[ClaimKey]:
    """Yield the claims for the extended resources of a pod: those that exist, and the one that may be made."""
    keys = dict.fromkeys(inventory.extended_claims_of(pod.metadata.namespace, pod.metadata.uid))
    if name := _status_name(pod):
        keys[pod.metadata.namespace, name] = None
    if _backed(pod, inventory):
        keys[extended_key(pod)] = None
    yield from keys


def _status_name(pod: Pod) -> str:
    status = pod.status.extended_resource_claim_status
    return status.resource_claim_name if status is not None else ""


def _backed(pod: Pod, inventory: DeviceInventory) -> dict[str, str]:
    """Return the DeviceClass of each extended resource of a pod that devices back."""
    if not inventory.classes:
        return {}
    names = requested_resources(pod)
    return {name: device_class for name in names if (device_class := inventory.backing_class(name))}


def leftovers(pod: Pod, inventory: DeviceInventory) -> list[ClaimKey]:
    """Return the claims that an earlier decision left; none for a pod that is bound or decided.

    The status of the pod may name a claim that is gone.
    """
    if pod.spec.node_name:
        return []
    keys = dict.fromkeys(inventory.extended_claims_of(pod.metadata.namespace, pod.metadata.uid))
    if any(inventory.is_held(key) for key in (*keys, extended_key(pod))):
        return []
    if not keys and (name := _status_name(pod)):
        keys[pod.metadata.namespace, name] = None
    return list(keys)


def removals(pod: Pod, left: Iterable[ClaimKey], inventory: DeviceInventory) -> list[ClaimWrite]:
    """Return the writes that remove what `leftovers` returned; none for a claim that is about to be gone.

    A claim that only the status of the pod names stays itself.
    """
    owned = dict.fromkeys(inventory.extended_claims_of(pod.metadata.namespace, pod.metadata.uid))
    pod_entry = consumer(pod.metadata.name, pod.metadata.uid)
    writes: list[ClaimWrite] = []
    for key in left:
        claim = inventory.claims[key] if key in owned else None
        meta = claim.metadata if claim is not None else None
        if meta is not None and meta.deletion_timestamp and DELETE_PROTECTION not in meta.finalizers:
            continue  # the controllers of other finalizers remove them
        writes.append(deletion_of(key, claim, pod_entry))
    return writes


def read_extended(pod: Pod, inventory: DeviceInventory) -> tuple[PodClaim | None, ClaimKey, tuple[RequestMapping, ...]]:
    """Return the claim for the extended resources of a pod, None if devices back none of them."""
    key = extended_key(pod)
    if not (backed := _backed(pod, inventory)):
        return None, key, ()
    asked = extended_requests(pod, backed)
    if not asked.requests and not asked.excess:
        return None, key, ()
    return PodClaim(encoded(asked.specification()), None, asked.resources), key, asked.mappings
