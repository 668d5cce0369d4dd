"""The ResourceClaims of a pending pod: which they are, and what keeps them from being allocated."""

from dataclasses import dataclass, field
from typing import Final

from topo_scheduler.api.devices import MAX_CONSUMER_PODS, ResourceClaim
from topo_scheduler.api.objects import Pod, PodResourceClaim
from topo_scheduler.scheduling.intake.extended_claims import extended_keys, leftovers, read_extended, removals
from topo_scheduler.scheduling.rules.unlisted import unlisted_problem
from topo_scheduler.state.devices.claim_writes import ClaimWrite, release_of
from topo_scheduler.state.devices.extended_resources import RequestMapping
from topo_scheduler.state.devices.inventory import ClaimKey, DeviceInventory
from topo_scheduler.state.devices.pod_claims import PodClaim, encoded
from topo_scheduler.state.pods.compute_domains import compute_domain_of

WATCHED_LISTS: Final = "lists of resource.k8s.io"
"""The name under which pods watch whether devices and claims are listed."""
_CLAIMS_OF_POD_GROUPS: Final = (
    "the scheduler does not support claims of PodGroups (feature gate DRAWorkloadResourceClaims);"
    " take the claim out of the PodGroup, so that each pod gets its own"
)


@dataclass(slots=True)
class DeviceClaims:
    """Claims of a pod.

    Attributes:
        claims: what each asks for, as part of the pod's class.
        keys: their namespaces and names, in the same order.
        room: for how many more pods, this one included, each claim can be reserved that other pods may use too.
        problem: what the pod waits for, or why it can't be placed; empty if nothing.
        unmade: the problem is only that claims of templates do not exist yet.
        stale: allocations from a decision that was not carried out, which are taken back first.
        compute_domains: uids of ComputeDomains of which the pod asks for a channel, by claim template.
        mappings: which container gets which request of the claim for extended resources.
    """

    claims: tuple[PodClaim, ...] = ()
    keys: tuple[ClaimKey, ...] = ()
    room: dict[ClaimKey, int] = field(default_factory=dict)
    problem: str = ""
    unmade: bool = False
    stale: list[ClaimWrite] = field(default_factory=list)
    compute_domains: dict[str, str] = field(default_factory=dict)
    mappings: tuple[RequestMapping, ...] = ()


def watched_claims(pod: Pod, inventory: DeviceInventory) -> list[str]:
    """Return names for the claims of a pod, such that a change of one leads to the pod being read again."""
    lists = [WATCHED_LISTS] if inventory.unlisted and pod.spec.resource_claims else []
    return [*lists, *(watched_claim(key) for key in (*named_claims(pod), *extended_keys(pod, inventory)))]


def named_claims(pod: Pod) -> dict[ClaimKey, None]:
    """Return the claims that the specification of a pod names, and those that Kubernetes made for it from templates."""
    names = [name for entry in pod.spec.resource_claims if (name := _name(pod, entry))]
    return {(pod.metadata.namespace, name): None for name in names}


def watched_claim(key: ClaimKey) -> str:
    """Return the name under which pods watch a claim."""
    return f"ResourceClaim {key[0]}/{key[1]}"


def device_claims(pod: Pod, inventory: DeviceInventory) -> DeviceClaims:
    """Read the claims of a pending pod, or of a bound one whose replacement will ask for the same."""
    read = DeviceClaims()
    if pod.spec.resource_claims:
        _read_all(pod, inventory, read)
    if read.problem:
        return read
    if left := leftovers(pod, inventory):
        read.stale += removals(pod, left, inventory)
        read.problem = "waiting until devices are released that an earlier decision chose for its extended resources"
        return read
    claim, key, read.mappings = read_extended(pod, inventory)
    if claim is not None:
        if key in inventory.unsettled:
            read.problem = "waiting for the result of an earlier write of the claim for its extended resources"
        read.claims, read.keys = (*read.claims, claim), (*read.keys, key)
    return read


def _read_all(pod: Pod, inventory: DeviceInventory, read: DeviceClaims) -> None:
    """Read the claims that a pod names."""
    if inventory.unlisted:
        remedy = "grant get, list and watch on them to this scheduler; they need Kubernetes 1.34 or newer"
        read.problem = unlisted_problem(inventory.unlisted, remedy)
        return
    problems: dict[str, bool] = {}
    for entry in pod.spec.resource_claims:
        if problem := _read(pod, entry, inventory, read):
            problems[problem] = _is_unmade(pod, entry) or _is_unseen(pod, entry, inventory)
    read.problem = "; ".join(problems)
    read.unmade = bool(problems) and all(problems.values())


def _is_unmade(pod: Pod, entry: PodResourceClaim) -> bool:
    """Return whether Kubernetes has not made a claim of a template yet."""
    made = any(status.name == entry.name for status in pod.status.resource_claim_statuses)
    return entry.resource_claim_name is None and entry.resource_claim_template_name is not None and not made


def _is_unseen(pod: Pod, entry: PodResourceClaim, inventory: DeviceInventory) -> bool:
    """Return whether a claim that Kubernetes made does not exist, or its watch has not reported it yet."""
    name = _name(pod, entry)
    return entry.resource_claim_name is None and bool(name) and (pod.metadata.namespace, name) not in inventory.claims


def _name(pod: Pod, entry: PodResourceClaim) -> str | None:
    """Return the name of a claim; None if Kubernetes has not made it, or if the pod needs none."""
    if entry.resource_claim_name is not None:
        return entry.resource_claim_name
    made = (status for status in pod.status.resource_claim_statuses if status.name == entry.name)
    return next((status.resource_claim_name for status in made), None)


def _read(pod: Pod, entry: PodResourceClaim, inventory: DeviceInventory, read: DeviceClaims) -> str:
    """Read one claim; return what is wrong with it."""
    generated = entry.resource_claim_name is None
    if generated and entry.resource_claim_template_name is None:
        return f"claim {entry.name} of the pod names neither a ResourceClaim nor a template, which is not supported"
    if _is_unmade(pod, entry):
        template = entry.resource_claim_template_name
        return f"waiting for Kubernetes to create a ResourceClaim from template {template}; check that it exists"
    name = _name(pod, entry)
    if name is None:
        return ""  # the pod needs none
    key = (pod.metadata.namespace, name)
    if key in read.keys:
        return ""  # a pod may name a claim twice
    claim = inventory.claims.get(key)
    if claim is None:
        if generated:
            remedy = "if it was deleted, delete the pod, so that another one gets a new claim"
            return f'resourceclaim "{name}" does not exist, or its watch has not reported it yet; {remedy}'
        return f'resourceclaim "{name}" not found in namespace {key[0]}'
    if key in inventory.unsettled:
        return f'waiting for the result of an earlier write of resourceclaim "{name}"'
    controller = claim.metadata.controller
    if generated and (controller is None or controller.uid != pod.metadata.uid):
        if controller is not None and controller.kind == "PodGroup":
            return f'resourceclaim "{name}" was created for a PodGroup: {_CLAIMS_OF_POD_GROUPS}'
        return f'resourceclaim "{name}" was not created for this pod'
    if _is_stale(pod, claim, key, inventory, generated=generated):
        read.stale.append(release_of(key, claim))  # also if it is being deleted, which its finalizer holds up
        return f'waiting until the devices of resourceclaim "{name}" are released, which an earlier decision chose'
    if claim.metadata.deletion_timestamp is not None:
        return f'resourceclaim "{name}" is being deleted'
    if not generated:
        reserved = sum(entry.uid != pod.metadata.uid for entry in claim.status.reserved_for)
        read.room[key] = MAX_CONSUMER_PODS - reserved
    if read.room.get(key, 1) < 1:
        return f'resourceclaim "{name}" is reserved for {MAX_CONSUMER_PODS} pods already, which is the most'
    if generated and entry.resource_claim_template_name and (domain := compute_domain_of(claim.spec)):
        read.compute_domains[entry.resource_claim_template_name] = domain
    # Replacements of a bound pod get claims of their own.
    of_its_own = generated and (claim.status.allocation is None or bool(pod.spec.node_name))
    read.claims = (*read.claims, PodClaim(encoded(claim.spec), None if of_its_own else key))
    read.keys = (*read.keys, key)
    return ""


def _is_stale(pod: Pod, claim: ResourceClaim, key: ClaimKey, inventory: DeviceInventory, *, generated: bool) -> bool:
    """Return whether only this pod can use the allocation of a claim, and others that have no node and no decision.

    Members of a gang may share a claim. If their decision is undone, none of them has it alone.
    """
    if pod.spec.node_name or claim.status.allocation is None or inventory.is_held(key):
        return False
    unused = all(
        entry.uid == pod.metadata.uid or inventory.consumers.is_undecided(entry, key[0])
        for entry in claim.status.reserved_for
    )
    return unused and (generated or bool(claim.status.reserved_for))
