"""A driver with storage: claims, volumes and classes, and a controller that binds them."""

from collections.abc import Iterable, Sequence

import msgspec

from tests.helpers import NVIDIA, make_node, make_pod, term, where
from tests.scheduling.driver import Driver
from topo_scheduler.api.objects import (
    ClaimSource,
    Container,
    Node,
    ObjectMeta,
    Pod,
    PodSpec,
    Quantity,
    ResourceRequirements,
    Volume,
)
from topo_scheduler.api.selectors import NodeSelector
from topo_scheduler.api.storage import (
    ClaimReference,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    PersistentVolumeSpec,
    StorageClass,
    StorageStatus,
    VolumeNodeAffinity,
)
from topo_scheduler.scheduling.instructions import Instruction, PrepareVolumes
from topo_scheduler.state.storage.claim_annotations import BIND_COMPLETED, SELECTED_NODE
from topo_scheduler.state.storage.storage_objects import ReserveVolume, Storage, VolumeWrite

HOST = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
LOCAL, DELAYED, IMMEDIATE = "local", "delayed", "immediate"


def zoned(*zones: str) -> list[Node]:
    """Nodes n1, n2, … of 8 GPUs in these zones, all under one leaf."""
    return [
        make_node(f"n{number}", "s1/l1", labels={HOST: f"n{number}", ZONE: zone})
        for number, zone in enumerate(zones, 1)
    ]


def using(*claims: str, name: str = "p", gpus: int = 1, gang: int = 0, created: float = 0, uid: str = "") -> Pod:
    """A pod that uses claims."""
    requests: dict[str, Quantity] = {NVIDIA: gpus, "cpu": "1"}
    spec = PodSpec(
        containers=[Container("main", ResourceRequirements(requests, {NVIDIA: gpus}))],
        volumes=[Volume(f"v{number}", ClaimSource(claim)) for number, claim in enumerate(claims)],
    )
    annotations = {"gang-name": "g", "gang-size": str(gang)} if gang else {}
    return make_pod(name, spec=spec, annotations=annotations, created=created, uid=uid)


def claim(
    name: str, of: str = DELAYED, *, size: str = "1Gi", modes: Sequence[str] = ("ReadWriteOnce",)
) -> PersistentVolumeClaim:
    """A claim that is not bound."""
    return PersistentVolumeClaim(
        ObjectMeta(name=name, namespace="default", uid=f"claim-{name}"),
        PersistentVolumeClaimSpec(list(modes), ResourceRequirements({"storage": size}), storage_class_name=of),
        StorageStatus("Pending"),
    )


def volume(
    name: str, of: str = LOCAL, *, node: str = "", zones: Sequence[str] = (), size: str = "1Gi"
) -> PersistentVolume:
    """A volume that is there for the taking, which a node or some zones can use."""
    requirement = where(HOST, "In", node) if node else where(ZONE, "In", *zones)
    affinity = VolumeNodeAffinity(NodeSelector((term(requirement),))) if node or zones else None
    return PersistentVolume(
        ObjectMeta(name=name, uid=f"volume-{name}"),
        PersistentVolumeSpec(
            {"storage": size}, ["ReadWriteOnce", "ReadWriteMany"], storage_class_name=of, node_affinity=affinity
        ),
        StorageStatus("Available"),
    )


class StorageDriver(Driver):
    """A driver that also plays the API server's part for volumes, and that of who binds them."""

    def __init__(self, nodes: Iterable[Node] = (), **more: object) -> None:
        super().__init__(nodes, **more)  # type: ignore[arg-type]
        self.claims: dict[str, PersistentVolumeClaim] = {}
        self.volumes: dict[str, PersistentVolume] = {}
        self.preparing: dict[str, PrepareVolumes] = {}
        """Volume writes that were asked for and not answered, by uid of the pod."""
        self._version = 0
        for name, provisioner, mode in (
            (LOCAL, "kubernetes.io/no-provisioner", "WaitForFirstConsumer"),
            (DELAYED, "disk.example.com", "WaitForFirstConsumer"),
            (IMMEDIATE, "disk.example.com", "Immediate"),
        ):
            made = StorageClass(ObjectMeta(name=name), provisioner, mode)
            self.storage.put(self.storage.classes, name, made)

    @property
    def storage(self) -> Storage:
        """What the engine knows of storage."""
        return self.engine.world.around.storage

    # ------------------------------------------------------------ facts

    def tell(self, *items: PersistentVolumeClaim | PersistentVolume) -> None:
        """Claims and volumes appear or change, and the watch tells."""
        for item in items:
            self.change(item)
            self.tell_as_it_is(item)

    def tell_as_it_is(self, *items: PersistentVolumeClaim | PersistentVolume) -> None:
        """The watch reports what it did not report yet."""
        for item in items:
            copy = msgspec.convert(msgspec.to_builtins(item), type(item))
            if isinstance(copy, PersistentVolume):
                self.storage.put(self.storage.volumes, copy.metadata.name, copy)
            else:
                self.storage.put(self.storage.claims, (copy.metadata.namespace, copy.metadata.name), copy)

    def change(self, item: PersistentVolumeClaim | PersistentVolume) -> str:
        """They change at the API server, without a report; return the resourceVersion."""
        self._version += 1
        item.metadata.resource_version = str(self._version)
        if isinstance(item, PersistentVolume):
            self.volumes[item.metadata.name] = item
        else:
            self.claims[item.metadata.name] = item
        return item.metadata.resource_version

    def bind_claim(self, name: str, to: PersistentVolume) -> None:
        """The volume controller binds a claim to a volume."""
        pvc = self.claims[name]
        pvc.spec.volume_name, pvc.status.phase = to.metadata.name, "Bound"
        pvc.metadata.annotations[BIND_COMPLETED] = "yes"
        to.spec.claim_ref = ClaimReference("default", name, pvc.metadata.uid)
        to.status.phase = "Bound"
        self.tell(to, pvc)

    # ------------------------------------------------------------ what the engine wants

    def step(self, seconds: float = 0) -> list[Instruction]:
        """As a driver does; volume writes are kept until they are answered."""
        said = super().step(seconds)
        self.preparing |= {
            instruction.pod.uid: instruction for instruction in said if isinstance(instruction, PrepareVolumes)
        }
        return said

    def carry_out(self, pod: Pod, *, reported: bool = True) -> None:
        """The server writes for a pod, or says that things have changed; ``reported``: and the watch reports it."""
        done = self.preparing.pop(pod.metadata.uid)
        written: list[tuple[VolumeWrite, str]] = []
        problem = ""
        for write in done.writes:
            item = self.volumes[write.volume] if isinstance(write, ReserveVolume) else self.claims[write.claim[1]]
            if item.metadata.resource_version != write.version:
                problem = "it changed meanwhile"
                break
            if isinstance(write, ReserveVolume):
                assert isinstance(item, PersistentVolume)
                item.spec.claim_ref = ClaimReference(*write.claim, write.claim_uid)
            else:
                item.metadata.annotations[SELECTED_NODE] = write.node
            written.append((write, self.change(item)))
            if reported:
                self.tell_as_it_is(item)
        self.engine.volumes_written(pod.metadata.uid, written, problem)

    def fail(self, pod: Pod, problem: str) -> None:
        """The writes for a pod fail."""
        self.preparing.pop(pod.metadata.uid)
        self.engine.volumes_written(pod.metadata.uid, [], problem)

    def provision(self) -> None:
        """Bind what was chosen: the volume controller's part and that of a provisioner that can make everything."""
        for name, pvc in list(self.claims.items()):
            if pvc.spec.volume_name:
                continue
            chosen = next(
                (v for v in self.volumes.values() if v.spec.claim_ref and v.spec.claim_ref.name == name), None
            )
            node = pvc.metadata.annotations.get(SELECTED_NODE)
            if chosen is None and node is not None:
                chosen = volume(f"made-{name}", pvc.spec.storage_class_name or "", node=node)
            if chosen is not None:
                self.bind_claim(name, chosen)

    def settle(self, seconds: float = 0) -> list[Instruction]:
        """As a driver does; volumes are written and bound meanwhile."""
        said = super().settle(seconds)
        while self.preparing:
            for uid in list(self.preparing):
                self.carry_out(self.pods[uid])
            self.provision()
            said += super().settle()
        return said
