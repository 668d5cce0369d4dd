"""An engine with a snapshot of the cluster, to explain a pending pod."""

import asyncio
import time
from typing import Any, Final

from topo_scheduler.api.config import Configuration, PreemptionSpec
from topo_scheduler.api.objects import Pod
from topo_scheduler.cli.snapshot import Listed
from topo_scheduler.kube.connection.client import Client
from topo_scheduler.kube.connection.errors import Forbidden, NotFound
from topo_scheduler.kube.connection.resources import (
    BUDGETS,
    DEVICE_CLASSES,
    NAMESPACES,
    NODE_TOPOLOGIES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from topo_scheduler.kube.reading.listing import list_all
from topo_scheduler.kube.reading.optional_kind import is_served
from topo_scheduler.kube.reading.owner_chains import Missing
from topo_scheduler.kube.reading.owners import OwnerDirectory
from topo_scheduler.kube.reading.pod_groups import served_groups
from topo_scheduler.kube.reading.storage import StoreSink, store_sinks
from topo_scheduler.kube.writing.migrations import MIGRATIONS
from topo_scheduler.plugins.isolation import Isolated
from topo_scheduler.plugins.loading import load_extensions
from topo_scheduler.recovery.model.seating import seat_of
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.scheduling.intake.understand import Lineage
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.devices.extended_resources import may_be_backed
from topo_scheduler.state.pods.pod_groups import Serving, read_group

_INSTALL: Final = (
    "Plugins decide here as they do in the scheduler: install it here too, or name a configuration without it by"
    " --config FILE"
)


async def _add_groups(client: Client, engine: Engine, listed: Listed, now: float) -> None:
    """Add all PodGroups to an engine."""
    for api, resource in (await served_groups(client)).items():
        try:
            objects, bad = await list_all(client, resource)
        except Forbidden:
            listed.problems.append(
                f"{resource.described} may not be listed: pods that name one are taken to wait for it"
            )
            engine.groups_served(api, Serving.UNKNOWN, now, now)
            continue
        listed.problems.extend(bad)
        engine.groups_served(api, Serving.LISTED, now, now)
        engine.groups_applied([read_group(api, resource.version, item) for item in objects], now)


async def build_engine(client: Client, listed: Listed, configuration: Configuration) -> Engine:
    """Return an engine in the state of a scheduler that starts now, with the owners of pending pods resolved.

    Raises:
        KubeError: the API server did not answer the request for an owner.
        ConfigError: a plugin of the configuration can't be loaded here.
    """
    # The plugins of the scheduler are needed: without them the answer could differ.
    scheduler = configuration.scheduler
    extensions = load_extensions(scheduler, Isolated(scheduler.plugin_timeout), remedy=_INSTALL)
    owners = OwnerDirectory(client, annotations=extensions.annotations)
    name = scheduler.scheduler_name
    pending = [
        pod
        for pod in listed.pods
        if pod.spec.scheduler_name == name and not pod.spec.node_name and not pod.finished and pod.metadata.controller
    ]
    await asyncio.gather(*(owners.complete(pod.metadata) for pod in pending))

    def resolve(pod: Pod) -> Lineage | None:
        if pod.metadata.controller is None:
            return Lineage()
        chain = owners.resolve(pod.metadata)
        if isinstance(chain, Missing):
            return None
        return Lineage(chain.owners, chain.complaint, chain.gone, chain.doubt)

    now = time.monotonic()
    engine = Engine(configuration, resolve, extensions, time.time() - now)
    try:
        engine.namespaces_applied((await list_all(client, NAMESPACES))[0])
    except Forbidden:
        listed.problems.append("namespaces may not be listed: selectors of namespaces are taken to mean all of them")
    await _add_groups(client, engine, listed, now)
    waiting = [pod for pod in listed.pods if not pod.spec.node_name]
    if any(_has_claims(pod) for pod in waiting):
        await _list_stores(client, engine.world, listed)
    elif any(_extended_resources(pod) for pod in waiting):
        await _list_devices_of_requests(client, engine.world, listed, waiting)
    await _list_numa_zones(client, engine.world, listed)
    await _list_budgets(client, engine, listed)
    engine.nodes_applied(listed.nodes, now)
    engine.pods_applied(listed.pods, now)
    if configuration.topology.spec.recovery.enabled:
        await _hold_seats(client, engine, listed, name)
    return engine


async def _list_budgets(client: Client, engine: Engine, listed: Listed) -> None:
    """List the disruption budgets. Without them, the engine evicts no pod and moves none."""
    try:
        budgets, problems = await list_all(client, BUDGETS)
    except (Forbidden, NotFound):
        listed.problems.append(
            f"{BUDGETS.described} may not be listed: the answer does not say whether the scheduler would evict or move"
            " pods to make room"
        )
        engine.preempting.configure(PreemptionSpec(enabled=False))
        return
    listed.problems.extend(problems)
    engine.budgets_applied(budgets)
    engine.budgets_known()


async def _hold_seats(client: Client, engine: Engine, listed: Listed, scheduler: str) -> None:
    """Hold the nodes that Migrations of a scheduler reserve for replacements that have none yet."""
    try:
        migrations, problems = await list_all(client, MIGRATIONS)
    except NotFound:
        return  # the scheduler can move no pod
    except Forbidden:
        listed.problems.append(
            f"{MIGRATIONS.described} may not be listed: nodes that are reserved for replacements of moved pods count as"
            " free"
        )
        return
    listed.problems.extend(problems)
    bound = {pod.metadata.uid for pod in listed.pods if pod.spec.node_name}
    for migration in migrations:
        status = migration.status
        if migration.phase is not None and migration.phase.running and status.scheduler_name == scheduler:
            moves = [move for move in status.moves if move.to and move.replacement not in bound]
            engine.seats_kept(migration.key, [seat_of(migration, move) for move in moves])


def _has_claims(pod: Pod) -> bool:
    return bool(pod.spec.resource_claims) or any(
        volume.persistent_volume_claim is not None or volume.ephemeral is not None for volume in pod.spec.volumes
    )


def _extended_resources(pod: Pod) -> set[str]:
    """Return the resources of a pod's requests that devices may back."""
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    named = (*(container.resources.requests for container in containers), pod.spec.overhead)
    return {name for requests in named for name in requests if may_be_backed(name)}


async def _list_numa_zones(client: Client, world: World, listed: Listed) -> None:
    """List the NUMA nodes of machines, if they are served."""
    if not await is_served(client, NODE_TOPOLOGIES):
        return
    try:
        objects, problems = await list_all(client, NODE_TOPOLOGIES)
    except Forbidden:
        listed.problems.append(
            f"{NODE_TOPOLOGIES.described} may not be listed: it is assumed that no kubelet rejects pods for NUMA nodes"
        )
        return
    listed.problems.extend(problems)
    zones = world.numa_zones
    for item in objects:
        zones.put(zones.objects, item.metadata.name, item)


async def _list_stores(client: Client, world: World, listed: Listed) -> None:
    """List what claims depend on."""
    forbidden: list[str] = []
    for sink in store_sinks(world.around.storage, world.inventory):
        try:
            await _fill(client, sink, listed)
        except NotFound:
            sink.refused()
        except Forbidden:
            sink.refused()
            forbidden.append(sink.resource.described)
    if forbidden:
        listed.problems.append(
            f"{', '.join(forbidden)} may not be listed with this kubeconfig. If the answer above is a refusal because"
            " of that, the scheduler itself may decide otherwise; docs/reference/cli-permissions.md has the permissions"
        )


async def _list_devices_of_requests(client: Client, world: World, listed: Listed, pods: list[Pod]) -> None:
    """List the devices that pods may get by extended resources, if DeviceClasses back any resource of these pods."""
    sinks = {sink.resource.plural: sink for sink in store_sinks(world.around.storage, world.inventory)}
    for kind in (DEVICE_CLASSES, RESOURCE_SLICES, RESOURCE_CLAIMS):
        try:
            await _fill(client, sinks[kind.plural], listed)
        except NotFound:
            return  # an API server without devices
        except Forbidden:
            missing = f"{kind.described} may not be listed"
            listed.problems.append(f"devices of extended resources are not counted: {missing}")
            return
        if not any(world.inventory.backing_class(name) for pod in pods for name in _extended_resources(pod)):
            return


async def _fill(client: Client, sink: StoreSink[Any, Any], listed: Listed) -> None:
    objects, problems = await list_all(client, sink.resource)
    listed.problems.extend(problems)
    sink.applied(objects)
    sink.synced()
