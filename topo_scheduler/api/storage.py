"""Storage objects, with the fields that decide where a pod may run."""

from msgspec import field

from topo_scheduler.api.base import Base
from topo_scheduler.api.objects import ApiObject, AWSDisk, GCEDisk, Quantity, ResourceRequirements
from topo_scheduler.api.selectors import LabelSelector, NodeSelector

DEFAULT_MODE = "Filesystem"


class PersistentVolumeClaimSpec(Base):
    """``spec`` of a claim."""

    access_modes: list[str] = []
    resources: ResourceRequirements = field(default_factory=ResourceRequirements)
    volume_name: str = ""
    storage_class_name: str | None = None
    volume_mode: str = DEFAULT_MODE
    volume_attributes_class_name: str = ""
    selector: LabelSelector | None = None
    excess: str = ""
    """Why the selector is not kept; no field of Kubernetes."""


class StorageStatus(Base):
    """``status`` of a claim or a volume."""

    phase: str = ""


class PersistentVolumeClaim(ApiObject):
    """A PersistentVolumeClaim."""

    spec: PersistentVolumeClaimSpec = field(default_factory=PersistentVolumeClaimSpec)
    status: StorageStatus = field(default_factory=StorageStatus)


class ClaimReference(Base):
    """``spec.claimRef`` of a volume."""

    namespace: str = ""
    name: str = ""
    uid: str = ""


class CSISource(Base):
    """``spec.csi`` of a volume."""

    driver: str = ""
    volume_handle: str = ""


class VolumeNodeAffinity(Base):
    """``spec.nodeAffinity`` of a volume."""

    required: NodeSelector | None = None


class PersistentVolumeSpec(Base):
    """``spec`` of a volume."""

    capacity: dict[str, Quantity] = {}
    access_modes: list[str] = []
    claim_ref: ClaimReference | None = None
    storage_class_name: str = ""
    volume_mode: str = DEFAULT_MODE
    volume_attributes_class_name: str = ""
    node_affinity: VolumeNodeAffinity | None = None
    csi: CSISource | None = None
    gce_persistent_disk: GCEDisk | None = None
    aws_elastic_block_store: AWSDisk | None = None


class PersistentVolume(ApiObject):
    """A PersistentVolume."""

    spec: PersistentVolumeSpec = field(default_factory=PersistentVolumeSpec)
    status: StorageStatus = field(default_factory=StorageStatus)


class TopologyRequirement(Base):
    """One label of ``allowedTopologies``."""

    key: str = ""
    values: list[str] = []


class TopologyTerm(Base):
    """Labels that must all match; an empty term matches no node."""

    match_label_expressions: list[TopologyRequirement] = []


class StorageClass(ApiObject):
    """A StorageClass."""

    provisioner: str = ""
    volume_binding_mode: str | None = None
    allowed_topologies: list[TopologyTerm] = []


class CSINodeAllocatable(Base):
    """Maximum number of volumes of a driver on a node; None for no limit."""

    count: int | None = None


class CSINodeDriver(Base):
    """A driver on a node."""

    name: str = ""
    allocatable: CSINodeAllocatable | None = None


class CSINodeSpec(Base):
    """``spec`` of a CSINode."""

    drivers: list[CSINodeDriver] = []


class CSINode(ApiObject):
    """A CSINode; it has the name of its node."""

    spec: CSINodeSpec = field(default_factory=CSINodeSpec)


class CSIDriverSpec(Base):
    """``spec`` of a CSIDriver."""

    storage_capacity: bool = False


class CSIDriver(ApiObject):
    """A CSIDriver."""

    spec: CSIDriverSpec = field(default_factory=CSIDriverSpec)


class CSIStorageCapacity(ApiObject):
    """Free capacity of a storage class for the selected nodes.

    ``excess`` says what the scheduler did not read because it is too long; empty if there is no such thing.
    """

    storage_class_name: str = ""
    node_topology: LabelSelector | None = None
    capacity: Quantity | None = None
    maximum_volume_size: Quantity | None = None
    excess: str = field(default="", name="topology.scheduler/excess")


class VolumeAttachmentSource(Base):
    """``spec.source`` of an attachment."""

    persistent_volume_name: str | None = None


class VolumeAttachmentSpec(Base):
    """``spec`` of an attachment."""

    attacher: str = ""
    node_name: str = ""
    source: VolumeAttachmentSource = field(default_factory=VolumeAttachmentSource)


class VolumeAttachment(ApiObject):
    """A volume that is or will be attached to a node."""

    spec: VolumeAttachmentSpec = field(default_factory=VolumeAttachmentSpec)
