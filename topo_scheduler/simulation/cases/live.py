"""Read a live cluster once, without watches or writes; an account that may list nodes and pods is enough."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from topo_scheduler.api.base import Base
from topo_scheduler.api.groups import GroupApi
from topo_scheduler.api.objects import Job, ObjectMeta, PartialObject, Pod
from topo_scheduler.kube.connection.client import Client
from topo_scheduler.kube.connection.errors import ApiError, Forbidden, KubeError, Misconfigured, NotFound
from topo_scheduler.kube.connection.resources import BUDGETS, NAMESPACES, NODES, OWNER_KINDS, PODS, Object, Resource
from topo_scheduler.kube.reading.listing import list_all
from topo_scheduler.kube.reading.pod_groups import served_groups
from topo_scheduler.kube.reading.storage import store_sinks
from topo_scheduler.simulation.cases.directory import known_owners
from topo_scheduler.simulation.cases.documents import Document
from topo_scheduler.simulation.cases.model import LIVE, Arrival, CaseError, ClusterCase
from topo_scheduler.state.devices.inventory import DeviceInventory
from topo_scheduler.state.pods.pod_groups import PodGroup, read_group
from topo_scheduler.state.storage.storage_objects import Storage

T = TypeVar("T", bound=Object)
log = logging.getLogger(__name__)


class _PriorityClass(Base):
    """A PriorityClass."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    value: int = 0
    global_default: bool = False
    preemption_policy: str = ""


_PRIORITIES: Final = Resource(
    "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", _PriorityClass, namespaced=False
)


def read_live(kubeconfig: str | None, context: str | None) -> ClusterCase:
    """List the objects that affect placement. Kinds that the account may not list are left out, except nodes and pods.

    Raises:
        CaseError: the kubeconfig can't be used, or the server does not answer or denies access.
    """
    return asyncio.run(_read(kubeconfig, context))


async def _read(kubeconfig: str | None, context: str | None) -> ClusterCase:
    try:
        client = await Client.connect(kubeconfig or None, context or None)
    except Misconfigured as error:
        raise CaseError(f"live: {error}") from error
    try:
        return await read_cluster_of(client)
    except KubeError as error:
        hint = f" (server {client.server})" if not isinstance(error, ApiError) else ""
        raise CaseError(f"live: {error}{hint}; check --kubeconfig, and that it may list nodes and pods") from error
    finally:
        await client.close()


async def read_cluster_of(client: Client) -> ClusterCase:
    """Return the cluster that a client is connected to.

    Raises:
        KubeError: nodes or pods can't be listed.
    """
    nodes, pods = await asyncio.gather(_all(client, NODES), _all(client, PODS))
    namespaces, budgets, priorities, groups, owners = await asyncio.gather(
        _allowed(client, NAMESPACES),
        _allowed(client, BUDGETS),
        _allowed(client, _PRIORITIES),
        _groups(client),
        _owners(client, pods),
    )
    stored: dict[str, tuple[Any, ...]] = {}
    for sink in store_sinks(Storage(), DeviceInventory()):
        stored[sink.resource.plural] = tuple(await _allowed(client, sink.resource))
    return ClusterCase(
        "live",
        tuple(nodes),
        tuple(pod for pod in pods if pod.spec.node_name and not pod.finished),
        owners,
        groups,
        tuple(budgets),
        tuple(namespaces),
        storage=stored,
        priority_classes=tuple(_priority_class_object(priority_class) for priority_class in priorities),
        waiting=_waiting(pods, owners),
    )


def _waiting(pods: Sequence[Pod], owners: Mapping[str, Job | PartialObject]) -> tuple[Arrival, ...]:
    """Return the pending pods as arrivals, as if they had been read from manifests."""
    from topo_scheduler.simulation.cases.manifests import read_manifests

    pending = [pod for pod in pods if not (pod.spec.node_name or pod.finished or pod.metadata.deletion_timestamp)]
    above = known_owners(pending, owners)
    objects = [{"apiVersion": "v1", "kind": "Pod", **_fields(pod)} for pod in pending]
    objects += [_owner(owner) for owner in above.values()]
    return read_manifests(LIVE, [Document(obj, Path(LIVE), 0) for obj in objects]).arrivals


def _owner(owner: Job | PartialObject) -> dict[str, Any]:
    fields = _fields(owner)
    return {"apiVersion": "batch/v1", "kind": "Job", **fields} if isinstance(owner, Job) else fields


def _fields(item: Object) -> dict[str, Any]:
    """Return an object as the API server writes it; `msgspec.to_builtins` knows no ``Raw`` fields."""
    fields: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(item))
    return fields


def _priority_class_object(priority_class: _PriorityClass) -> dict[str, Any]:
    fields: dict[str, Any] = {"metadata": {"name": priority_class.metadata.name}, "value": priority_class.value}
    fields |= {"preemptionPolicy": priority_class.preemption_policy} if priority_class.preemption_policy else {}
    return fields | ({"globalDefault": True} if priority_class.global_default else {})


async def _all(client: Client, resource: Resource[T]) -> list[T]:
    objects, problems = await list_all(client, resource)
    for problem in problems:
        log.warning("%s", problem)
    return objects


async def _allowed(client: Client, resource: Resource[T]) -> list[T]:
    try:
        return await _all(client, resource)
    except (Forbidden, NotFound) as error:
        log.warning("%s are left out: %s", resource.described, error)
        return []


async def _groups(client: Client) -> tuple[PodGroup, ...]:
    groups: list[PodGroup] = []
    for api, resource in (await served_groups(client)).items():
        groups += [read_group(GroupApi(api), resource.version, group) for group in await _allowed(client, resource)]
    return tuple(groups)


async def _owners(client: Client, pods: Sequence[Pod]) -> dict[str, Job | PartialObject]:
    """Return the controllers of pods, and their controllers, of the kinds that can be listed."""
    kinds = {(resource.kind, resource.api_version): resource for resource in OWNER_KINDS}
    listed: dict[str, Job | PartialObject] = {}
    kinds_in_use = {(ref.kind, ref.api_version) for pod in pods if (ref := pod.metadata.controller) is not None}
    parent_kinds = {("ReplicaSet", "apps/v1"): ("Deployment", "apps/v1"), ("Job", "batch/v1"): ("CronJob", "batch/v1")}
    kinds_in_use |= {parent_kinds[kind] for kind in kinds_in_use if kind in parent_kinds}
    for kind in sorted(kinds_in_use & kinds.keys()):
        for item in await _allowed(client, kinds[kind]):
            listed[item.metadata.uid] = item
    return known_owners(pods, listed)
