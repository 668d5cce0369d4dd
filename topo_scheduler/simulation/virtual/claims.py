"""ResourceClaims in virtual time: what kube-controller-manager does with them, at once."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from topo_scheduler.api.devices import DELETE_PROTECTION, ClaimMetadata, ResourceClaim, ResourceClaimSpec
from topo_scheduler.api.objects import OwnerReference, Pod, PodClaimStatus
from topo_scheduler.kube.reading.sinks import Deleted
from topo_scheduler.kube.reading.storage import StoreSink
from topo_scheduler.simulation.cases.model import Arrival
from topo_scheduler.state.devices.inventory import ClaimKey, DeviceInventory
from topo_scheduler.state.devices.pools import DeviceId


class VirtualClaims:
    """Makes the claims of pods, and takes them back when pods end."""

    def __init__(
        self,
        inventory: DeviceInventory,
        sink: StoreSink[Any, ResourceClaim],
        templates: Mapping[ClaimKey, ResourceClaimSpec],
        gpus: Mapping[DeviceId, tuple[str, int]],
    ) -> None:
        """Set up.

        Args:
            inventory: where the engine keeps claims.
            sink: receives claims that appear or change.
            templates: what the templates of the cluster ask for.
            gpus: devices that are GPUs, with their node and their size in thousandths of a GPU.
        """
        self._inventory = inventory
        self._sink = sink
        self._templates = templates
        self._gpus = gpus
        self._numbers = itertools.count()

    def arrive(self, arrival: Arrival) -> None:
        """Add the claims that come with a workload."""
        for claim in arrival.claims:
            if (claim.metadata.namespace, claim.metadata.name) not in self._inventory.claims:
                self._sink.applied([claim])

    def with_claims(self, source: Pod, pod: Pod, arrival: Arrival) -> Pod:
        """Return a new pod with claims made from the templates that it names.

        Args:
            source: the pod as the case has it: claims that exist already and are its own are kept.
            pod: the pod as it is created.
            arrival: its workload.
        """
        if not pod.spec.resource_claims:
            return pod
        namespace, statuses = pod.metadata.namespace, list[PodClaimStatus]()
        existing = {status.name: status.resource_claim_name for status in source.status.resource_claim_statuses}
        for entry in pod.spec.resource_claims:
            if entry.resource_claim_template_name is None:
                continue
            known = self._inventory.claims.get((namespace, existing.get(entry.name) or ""))
            if known is not None and _belongs_to(known, pod):
                statuses.append(PodClaimStatus(entry.name, known.metadata.name))
                continue
            key = namespace, entry.resource_claim_template_name
            spec = arrival.templates.get(key) or self._templates.get(key)
            if spec is not None:
                name = f"{pod.metadata.name}-{entry.name}-{next(self._numbers)}"
                owner = OwnerReference("v1", "Pod", pod.metadata.name, pod.metadata.uid, True)
                metadata = ClaimMetadata(name=name, namespace=namespace, uid=f"claim-{name}", owner_references=[owner])
                self._sink.applied([ResourceClaim(metadata, spec)])
                statuses.append(PodClaimStatus(entry.name, name))
        return replace(pod, status=replace(pod.status, resource_claim_statuses=statuses))

    def ended(self, pods: Iterable[Pod]) -> None:
        """Delete the claims of pods that ended or were evicted; those that others may use are deallocated."""
        for pod in pods:
            made = self._inventory.extended_claims_of(pod.metadata.namespace, pod.metadata.uid)
            for key in (*self._keys_of(pod), *made):
                claim = self._inventory.claims.get(key)
                if claim is None:
                    continue
                if _belongs_to(claim, pod):
                    self._sink.deleted([Deleted(*key, claim.metadata.uid)])
                    continue
                status = claim.status
                kept = [entry for entry in status.reserved_for if entry.uid != pod.metadata.uid]
                if len(kept) < len(status.reserved_for):
                    self._sink.applied([_without(claim, pod.metadata.uid)])

    def milli_of(self, pod: Pod) -> int:
        """Return the GPUs of the devices that a bound pod has, in thousandths. Shares of devices are not counted."""
        return sum(
            self._gpus.get((result.driver, result.pool, result.device), ("", 0))[1]
            for key in self._keys_of(pod)
            if (allocation := self._inventory.allocation_of(key)) is not None
            for result in allocation.devices.results
            if result.share_id is None and not result.admin_access
        )

    def _keys_of(self, pod: Pod) -> Iterator[ClaimKey]:
        made = {status.name: status.resource_claim_name for status in pod.status.resource_claim_statuses}
        for entry in pod.spec.resource_claims:
            if name := entry.resource_claim_name or made.get(entry.name):
                yield pod.metadata.namespace, name


def _belongs_to(claim: ResourceClaim, pod: Pod) -> bool:
    controller = claim.metadata.controller
    return controller is not None and controller.uid == pod.metadata.uid


def _without(claim: ResourceClaim, uid: str) -> ResourceClaim:
    """Return a claim without the reservation of a pod; without any it is not allocated."""
    kept = [entry for entry in claim.status.reserved_for if entry.uid != uid]
    allocation = claim.status.allocation if kept else None
    finalizers = [name for name in claim.metadata.finalizers if kept or name != DELETE_PROTECTION]
    status = replace(claim.status, reserved_for=kept, allocation=allocation)
    return replace(claim, metadata=replace(claim.metadata, finalizers=finalizers), status=status)
