"""Objects of dynamic resource allocation (``resource.k8s.io/v1``), with the fields that decide on devices.

Configuration of drivers is kept as it was written, because it is copied into the allocation.
"""

from typing import Any

from msgspec import field

from topo_scheduler.api.base import Base, Value
from topo_scheduler.api.objects import ApiObject, ObjectMeta, Quantity
from topo_scheduler.api.selectors import NodeSelector

EXACT_COUNT = "ExactCount"
ALL_DEVICES = "All"
DELETE_PROTECTION = "resource.kubernetes.io/delete-protection"
"""Finalizer without which Kubernetes never deallocates a claim."""
MAX_RESULTS = 32
"""Devices that one claim may get."""
MAX_CONSUMER_PODS = 256
"""Pods for which Kubernetes lets one claim be reserved."""
EXTENDED_RESOURCE_CLAIM = "resource.kubernetes.io/extended-resource-claim"
"""Annotation, ``"true"`` on claims that a scheduler made for the extended resources of a pod."""
POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"
"""Annotation of claims that Kubernetes made from a template."""
CLASS_RESOURCE_PREFIX = "deviceclass.resource.kubernetes.io/"
"""Prefix of the extended resource that every DeviceClass has without naming it."""


# ---------------------------------------------------------------- devices


class DeviceAttribute(Value, frozen=True):
    """One attribute: exactly one of the fields is set, none for an attribute that is a list."""

    int_: int | None = field(default=None, name="int")
    bool_: bool | None = field(default=None, name="bool")
    string: str | None = None
    version: str | None = None


class CapacityRange(Base):
    """``requestPolicy.validRange``."""

    min: Quantity | None = None
    max: Quantity | None = None
    step: Quantity | None = None


class CapacityPolicy(Base):
    """``requestPolicy`` of a capacity: which parts of it may be consumed."""

    default: Quantity | None = None
    valid_values: list[Quantity] | None = None
    valid_range: CapacityRange | None = None


class DeviceCapacity(Base):
    """``capacity`` of a device, one entry."""

    value: Quantity = 0
    request_policy: CapacityPolicy | None = None


class Counter(Base):
    """An amount of a shared counter."""

    value: Quantity = 0


class CounterSet(Base):
    """``sharedCounters[]`` of a slice, or ``consumesCounters[]`` of a device."""

    name: str = ""
    counter_set: str = ""
    counters: dict[str, Counter] = {}


class DeviceTaint(Base):
    """``taints[]`` of a device."""

    key: str = ""
    value: str = ""
    effect: str = ""
    time_added: str | None = None


class DeviceEntry(Base):
    """``devices[]`` of a slice."""

    name: str = ""
    attributes: dict[str, DeviceAttribute] = {}
    capacity: dict[str, DeviceCapacity] = {}
    consumes_counters: list[CounterSet] = []
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool = False
    taints: list[DeviceTaint] = []
    binds_to_node: bool = False
    binding_conditions: list[str] | None = None
    binding_failure_conditions: list[str] = []
    allow_multiple_allocations: bool | None = None
    node_allocatable_resource_mappings: dict[str, Any] = {}


class ResourcePool(Base):
    """``spec.pool`` of a slice."""

    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class ResourceSliceSpec(Base):
    """``spec`` of a slice."""

    driver: str = ""
    pool: ResourcePool = field(default_factory=ResourcePool)
    node_name: str = ""
    node_selector: NodeSelector | None = None
    all_nodes: bool = False
    per_device_node_selection: bool = False
    devices: list[DeviceEntry] = []
    shared_counters: list[CounterSet] = []


class ResourceSlice(ApiObject):
    """A ResourceSlice."""

    spec: ResourceSliceSpec = field(default_factory=ResourceSliceSpec)


# ---------------------------------------------------------------- classes and claims


class CELSelector(Base):
    """``cel`` of a selector."""

    expression: str = ""


class SelectorSource(Base):
    """``selectors[]`` of a class or a request."""

    cel: CELSelector | None = None


class DeviceToleration(Base):
    """``tolerations[]`` of a request."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class OpaqueConfiguration(Base):
    """``opaque`` of a configuration."""

    driver: str = ""
    parameters: Any = None


class DeviceConfiguration(Base):
    """``config[]`` of a class or a claim. ``requests``: those of a claim that it is for, all if there is none."""

    requests: list[str] = []
    opaque: OpaqueConfiguration | None = None


class DeviceClassSpec(Base):
    """``spec`` of a class."""

    selectors: list[SelectorSource] = []
    config: list[DeviceConfiguration] = []
    extended_resource_name: str = ""


class DeviceClass(ApiObject):
    """A DeviceClass."""

    spec: DeviceClassSpec = field(default_factory=DeviceClassSpec)


class CapacityRequirements(Base):
    """``capacity`` of a request."""

    requests: dict[str, Quantity] = {}


class ExactDeviceRequest(Base):
    """``exactly`` of a request, or an entry of its ``firstAvailable``, which has the ``name``."""

    name: str = ""
    device_class_name: str = ""
    selectors: list[SelectorSource] = []
    allocation_mode: str = ""
    count: int = 0
    admin_access: bool | None = None
    tolerations: list[DeviceToleration] = []
    capacity: CapacityRequirements | None = None


class DeviceRequest(Base):
    """``requests[]`` of a claim."""

    name: str = ""
    exactly: ExactDeviceRequest | None = None
    first_available: list[ExactDeviceRequest] = []


class DeviceConstraint(Base):
    """``constraints[]`` of a claim."""

    requests: list[str] = []
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class DeviceClaim(Base):
    """``spec.devices`` of a claim."""

    requests: list[DeviceRequest] = []
    constraints: list[DeviceConstraint] = []
    config: list[DeviceConfiguration] = []


class ResourceClaimSpec(Base):
    """``spec`` of a claim."""

    devices: DeviceClaim = field(default_factory=DeviceClaim)
    excess: str = field(default="", name="topology.scheduler/excess")
    """Why the claim is refused for its size, if its parts were dropped when it was read. No API server sends it."""


class AllocatedDevice(Base):
    """``status.allocation.devices.results[]``."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    tolerations: list[DeviceToleration] = []
    binding_conditions: list[str] = []
    binding_failure_conditions: list[str] = []
    share_id: str | None = field(default=None, name="shareID")
    consumed_capacity: dict[str, Quantity] | None = None


class AllocatedConfiguration(Base):
    """``status.allocation.devices.config[]``."""

    source: str = ""
    requests: list[str] = []
    opaque: OpaqueConfiguration | None = None


class DeviceAllocation(Base):
    """``status.allocation.devices``."""

    results: list[AllocatedDevice] = []
    config: list[AllocatedConfiguration] = []


class Allocation(Base):
    """``status.allocation``."""

    devices: DeviceAllocation = field(default_factory=DeviceAllocation)
    node_selector: NodeSelector | None = None
    allocation_timestamp: str | None = None


class Consumer(Base):
    """``status.reservedFor[]``."""

    api_group: str = ""
    resource: str = ""
    name: str = ""
    uid: str = ""


class DeviceCondition(Base):
    """``conditions[]`` of a device's status."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class DeviceStatus(Base):
    """``status.devices[]``."""

    driver: str = ""
    pool: str = ""
    device: str = ""
    share_id: str | None = field(default=None, name="shareID")
    conditions: list[DeviceCondition] = []


class ResourceClaimStatus(Base):
    """``status`` of a claim."""

    allocation: Allocation | None = None
    reserved_for: list[Consumer] = []
    devices: list[DeviceStatus] = []


class ClaimMetadata(ObjectMeta):
    """``metadata`` of a claim."""

    finalizers: list[str] = []


class ResourceClaim(Base):
    """A ResourceClaim."""

    metadata: ClaimMetadata = field(default_factory=ClaimMetadata)
    spec: ResourceClaimSpec = field(default_factory=ResourceClaimSpec)
    status: ResourceClaimStatus = field(default_factory=ResourceClaimStatus)
