"""Drives an engine with devices: claims are written at once, as far as a test lets them."""

from collections import Counter
from typing import Any

import msgspec

from tests.helpers import make_pod
from tests.scheduling.driver import Driver, fabric, gang
from topo_scheduler.api.config import Configuration
from topo_scheduler.api.devices import (
    AllocatedDevice,
    Allocation,
    DeviceAllocation,
    DeviceClass,
    ResourceClaim,
    ResourceSlice,
)
from topo_scheduler.api.objects import (
    Node,
    Pod,
    PodClaimStatus,
    PodExtendedResourceClaimStatus,
    PodResourceClaim,
)
from topo_scheduler.kube.reading.sinks import Deleted
from topo_scheduler.recording.observed_engine import sinks_of_storage
from topo_scheduler.scheduling.instructions import Instruction, WriteClaims
from topo_scheduler.state.devices.claim_writes import AllocateClaim, ClaimWrite, CreateClaim, DeleteClaim, after

DRIVER = "gpu.example.com"
Json = dict[str, Any]


def slice_of(node: str, gpus: int = 8, *, generation: int = 1, **device: Any) -> ResourceSlice:
    """Return the slice of a node with whole GPUs."""
    devices = [
        {"name": f"gpu-{number}", "attributes": {"numa": {"int": number // 4}}, **device} for number in range(gpus)
    ]
    pool = {"name": node, "generation": generation, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices}
    return msgspec.convert({"metadata": {"name": f"{node}-gpus"}, "spec": spec}, ResourceSlice)


def asking(count: int = 1, **exactly: Any) -> Json:
    """Return the spec of a claim for some GPUs."""
    request = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count, **exactly}
    return {"devices": {"requests": [{"name": "gpus", "exactly": request}]}}


class DeviceDriver(Driver):
    """An engine on nodes that each have a slice."""

    def __init__(
        self,
        nodes: list[Node],
        gpus: int = 8,
        *,
        synced: bool = True,
        config: Configuration | None = None,
        **device: Any,
    ) -> None:
        super().__init__(nodes, config)
        self.claims: dict[tuple[str, str], ResourceClaim] = {}
        self.writes: list[WriteClaims] = []
        self.problem = ""
        """Why no claim can be written."""
        self.unanswered: list[WriteClaims] | None = None
        """If it is a list, writes wait there until a test answers them."""
        self._version = 0
        self._sinks = {sink.resource.plural: sink for sink in sinks_of_storage(self.engine, lambda: None)}
        expression = f"device.driver == '{DRIVER}'"
        spec = {"selectors": [{"cel": {"expression": expression}}]}
        self.classes(msgspec.convert({"metadata": {"name": "gpu"}, "spec": spec}, DeviceClass))
        self.slices(*(slice_of(node.metadata.name, gpus, **device) for node in nodes))
        if synced:
            self.sync()

    def sync(self) -> None:
        """The lists are complete."""
        for sink in self._sinks.values():
            sink.synced()

    def refuse(self, plural: str) -> None:
        """The API server refuses the list of a kind."""
        self._sinks[plural].refused()

    # ------------------------------------------------------------ facts

    def classes(self, *classes: DeviceClass) -> None:
        """Classes appear or change."""
        self._sinks["deviceclasses"].applied(classes)

    def drop_class(self, name: str) -> None:
        """A class vanishes."""
        self._sinks["deviceclasses"].deleted([Deleted("", name, "")])

    def slices(self, *slices: ResourceSlice) -> None:
        """Slices appear or change."""
        self._sinks["resourceslices"].applied(slices)

    def drop_slice(self, name: str) -> None:
        """A slice vanishes."""
        self._sinks["resourceslices"].deleted([Deleted("", name, "")])

    def claim(self, name: str, spec: Json, *, pod: Pod | None = None) -> tuple[str, str]:
        """A claim appears, made for a pod if one is given."""
        metadata: Json = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
        if pod is not None:
            owner = {"kind": "Pod", "name": pod.metadata.name, "uid": pod.metadata.uid, "controller": True}
            metadata["ownerReferences"] = [owner]
        self.put_claim(msgspec.convert({"metadata": metadata, "spec": spec}, ResourceClaim))
        return "default", name

    def put_claim(self, claim: ResourceClaim) -> None:
        """A claim appears or changes."""
        self._version += 1
        metadata = msgspec.structs.replace(claim.metadata, resource_version=str(self._version))
        claim = msgspec.structs.replace(claim, metadata=metadata)
        self.claims[claim.metadata.namespace, claim.metadata.name] = claim
        self._sinks["resourceclaims"].applied([msgspec.convert(msgspec.to_builtins(claim), ResourceClaim)])

    def drop_claim(self, name: str, namespace: str = "default") -> None:
        """A claim vanishes."""
        claim = self.claims.pop((namespace, name))
        self._sinks["resourceclaims"].deleted([Deleted(namespace, name, claim.metadata.uid)])

    def pod(self, name: str, spec: Json, **pod: Any) -> Pod:
        """Return a pod whose claim was made from a template."""
        return self.with_claim(make_pod(name, **pod), spec)

    def with_claim(self, pod: Pod, spec: Json) -> Pod:
        """Give a pod a claim that was made for it."""
        _, name = self.claim(f"{pod.metadata.name}-claim", spec, pod=pod)
        pod.spec.resource_claims = [PodResourceClaim("devices", resource_claim_template_name="template")]
        pod.status.resource_claim_statuses = [PodClaimStatus("devices", name)]
        return pod

    def sharing(self, pod: Pod, name: str) -> Pod:
        """Give a pod a claim that exists."""
        pod.spec.resource_claims = [PodResourceClaim("devices", resource_claim_name=name)]
        return pod

    def gang(self, size: int, spec: Json, name: str = "g") -> list[Pod]:
        """Return the pods of a gang, each with a claim of its own."""
        return [self.with_claim(pod, spec) for pod in gang(size, gpus=0, name=name)]

    # ------------------------------------------------------------ steps and answers

    def step(self, seconds: float = 0) -> list[Instruction]:
        said = super().step(seconds)
        answered = 0
        while wanted := [instruction for instruction in said if isinstance(instruction, WriteClaims)][answered:]:
            answered += len(wanted)
            for write in wanted:
                self.writes.append(write)
                if self.unanswered is None:
                    self.write_claims(write)
                else:
                    self.unanswered.append(write)
            said += super().step()
        return said

    def write_claims(self, wanted: WriteClaims) -> None:
        """Carry out a write, or fail it if there is a `problem`."""
        done: list[tuple[ClaimWrite, ResourceClaim]] = []
        problem = self.problem
        for write in wanted.writes if not problem else ():
            if isinstance(write, CreateClaim | DeleteClaim):
                done.append((write, self._write_extended(write)))
                continue
            if write.key not in self.claims:
                problem = "not found"
                break
            if self.claims[write.key].metadata.resource_version != write.version and not _only_reserves(write):
                problem = "changed meanwhile"
                break
            self._version += 1
            claim = after(write, self.claims[write.key])
            metadata = msgspec.structs.replace(claim.metadata, resource_version=str(self._version))
            self.claims[write.key] = claim = msgspec.structs.replace(claim, metadata=metadata)
            done.append((write, claim))
        self.engine.claims_written(wanted.pod.uid, done, problem, self.now)

    def _write_extended(self, write: CreateClaim | DeleteClaim) -> ResourceClaim:
        """Make or remove the claim for extended resources of a pod, as the API server would."""
        pod, claim = self.pods.get(write.pod.uid), after(write, None)
        self._version += 1
        if isinstance(write, CreateClaim):
            assert write.key not in self.claims, "the pod got two claims"
            metadata = msgspec.structs.replace(
                claim.metadata, uid=f"uid-{self._version}", resource_version=str(self._version)
            )
            self.claims[write.key] = claim = msgspec.structs.replace(claim, metadata=metadata)
        elif write.key in self.claims:
            self.drop_claim(write.key[1])
        if pod is not None:
            named = PodExtendedResourceClaimStatus(write.key[1]) if isinstance(write, CreateClaim) else None
            pod.status.extended_resource_claim_status = named
            self.tell_again(pod)
        return claim

    # ------------------------------------------------------------ what came of it

    def allocated(self) -> Counter[tuple[str, str]]:
        """Return each allocated device, as pool and name, with how many claims have it."""
        return Counter(
            (result.pool, result.device)
            for claim in self.claims.values()
            if claim.status.allocation is not None
            for result in claim.status.allocation.devices.results
        )

    def devices_of(self, name: str) -> list[str]:
        """Return the devices of a claim by name."""
        allocation = self.claims["default", name].status.allocation
        return [result.device for result in allocation.devices.results] if allocation is not None else []


def _only_reserves(write: ClaimWrite) -> bool:
    return isinstance(write, AllocateClaim) and write.allocation is None


def driver(leaves: dict[str, int] | None = None, gpus: int = 8, *, synced: bool = True) -> DeviceDriver:
    """Return a driver of nodes that have their GPUs in slices only."""
    return DeviceDriver(fabric(leaves or {"s1/l1": 2}, gpus=0), gpus, synced=synced)


def nodes_of(pods: list[Pod]) -> list[str]:
    """Return the nodes of the pods that have one."""
    return [pod.spec.node_name for pod in pods if pod.spec.node_name]


def taken(claim: ResourceClaim, node: str, *devices: str) -> ResourceClaim:
    """The claim as another scheduler allocates it."""
    results = [AllocatedDevice("gpus", DRIVER, node, device) for device in devices]
    status = msgspec.structs.replace(claim.status, allocation=Allocation(DeviceAllocation(results)))
    return msgspec.structs.replace(claim, status=status)
