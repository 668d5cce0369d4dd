"""A cluster in memory whose pods have MIG instances: devices that consume shared counters, as drivers publish them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tests.helpers import controlled_by, make_pod
from tests.recovery.device_world import DeviceWorld
from tests.scheduling.device_driver import DRIVER, DeviceDriver
from tests.scheduling.partitioned_nodes import partitioned, profile
from topo_scheduler.api.devices import DELETE_PROTECTION
from topo_scheduler.api.migrations import Cause, Migration
from topo_scheduler.api.objects import Pod, PodCondition
from topo_scheduler.api.recovery import DefragmentationSpec, RecoverySpec

ON = RecoverySpec(enabled=True, defragmentation=DefragmentationSpec(mig_slots=True))
CONFIG = (
    "{recovery: {enabled: true, defragmentation: {migSlots: true}},"
    " preemption: {enabled: false}, reservation: {enabled: false}}"
)
Placed = Mapping[str, str]
"""Device of each running pod, such as ``n1/gpu-0-1g-1``, by name of the pod."""


@dataclass
class SlotWorld(DeviceWorld):
    """`DeviceWorld` with partitioned GPUs. Each pod has a claim, which is made for it and vanishes with it."""

    gpus: int = 2
    gpus_of: Mapping[str, int] = field(default_factory=dict)
    """GPUs of nodes that have another number."""
    deallocates: bool = True
    """Whether kube-controller-manager deletes the claims of pods that are gone."""

    def _publish(self, d: DeviceDriver) -> None:
        for node in self.node_objects:
            d.slices(*partitioned(node, self.gpus_of.get(node, self.gpus)))

    # ------------------------------------------------------------ pods with claims

    def runs(self, name: str, device: str, **pod: Any) -> Pod:
        """A pod of a controller of its own runs already, with a device."""
        node, _, slot = device.partition("/")
        size = slot.split("-")[2]
        made = self._made(name, size, **pod)
        self.add(made)
        made.spec.node_name = node
        made.status.phase = "Running"
        made.status.conditions = [PodCondition("PodScheduled", "True")]
        self.tell_pod(made.metadata.uid)
        claim = self.d.claims["default", f"{name}-claim"]
        status = {
            "allocation": {
                "devices": {"results": [{"request": "gpus", "driver": DRIVER, "pool": node, "device": slot}]}
            },
            "reservedFor": [{"resource": "pods", "name": name, "uid": made.metadata.uid}],
        }
        metadata = msgspec.structs.replace(claim.metadata, finalizers=[DELETE_PROTECTION])
        self.d.put_claim(
            msgspec.structs.replace(claim, metadata=metadata, status=msgspec.convert(status, type(claim.status)))
        )
        return made

    def asks(self, name: str, size: str, **pod: Any) -> Pod:
        """A pod appears that asks for a slot."""
        made = self._made(name, size, **pod)
        self.add(made)
        return made

    def _made(self, name: str, size: str, *, bare: bool = False, of: str = "", **pod: Any) -> Pod:
        owner = None if bare else controlled_by("ReplicaSet", of or name)
        made = make_pod(name, uid=name, owner=owner, created=self.now, **pod)
        return self.d.with_claim(made, profile(size))

    def _remove(self, pod: Pod) -> None:
        name = pod.status.resource_claim_statuses[0].resource_claim_name or ""
        claim = self.d.claims["default", name]
        super()._remove(pod)
        if self.deallocates:
            self.d.drop_claim(name)
        for fresh in self.pods.values():
            named = fresh.status.resource_claim_statuses
            if named and named[0].resource_claim_name == name and fresh.metadata.uid != pod.metadata.uid:
                fresh.status.resource_claim_statuses = []
                self.d.with_claim(fresh, msgspec.to_builtins(claim.spec))

    # ------------------------------------------------------------ what came of it

    def held(self) -> dict[str, str]:
        """Return the device of each bound pod, by the name without what was generated."""
        devices = {}
        for pod in self.pods.values():
            if not pod.spec.node_name:
                continue
            name = pod.status.resource_claim_statuses[0].resource_claim_name or ""
            (device,) = self.d.devices_of(name)
            devices[pod.metadata.name.partition(".")[0]] = f"{pod.spec.node_name}/{device}"
        return devices

    def of_pod(self) -> Migration:
        """Return the Migration of the pending pod."""
        (migration,) = (entry for entry in self.migrations.values() if entry.cause is Cause.PENDING_POD)
        return migration

    def helpers(self) -> list[Migration]:
        """Return the Migrations that make room for it."""
        return [migration for migration in self.migrations.values() if migration.spec.makes_room_for]

    def no_device_twice(self) -> None:
        """Check that no memory slice of a GPU is in two allocations."""
        taken: set[tuple[str, str, int]] = set()
        for claim in self.d.claims.values():
            allocation = claim.status.allocation
            for result in allocation.devices.results if allocation is not None else ():
                for part in slices_of(result.device):
                    assert (result.pool, *part) not in taken, result
                    taken.add((result.pool, *part))


def slices_of(device: str) -> list[tuple[str, int]]:
    """Return the GPU and the memory slices of a device."""
    _, gpu, size, start = device.split("-")
    memory = {"1g": 1, "2g": 2, "3g": 4, "7g": 8}[size]
    return [(gpu, number) for number in range(int(start), int(start) + memory)]


def slot_world(
    placed: Placed, nodes: int = 1, *, spec: RecoverySpec = ON, config: str = CONFIG, **world: Any
) -> SlotWorld:
    """Return a cluster with running pods."""
    made = SlotWorld(spec, {"s1/l1": nodes}, config, **world)
    for name, device in placed.items():
        made.runs(name, device)
    return made
