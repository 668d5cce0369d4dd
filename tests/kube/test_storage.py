"""What the API server reports of storage is known; what can't be listed is named, and holds up no other pod."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from topo_scheduler.kube.reading.reflector import Reflector
from topo_scheduler.kube.reading.storage import store_sinks
from topo_scheduler.simulation.apiserver import Refuse
from topo_scheduler.state.devices.inventory import DeviceInventory
from topo_scheduler.state.storage.storage_objects import Storage

from .virtual import virtual_time
from .world import World, world


@asynccontextmanager
async def watched(w: World) -> AsyncIterator[Storage]:
    """Storage that follows a server."""
    storage = Storage()
    reflectors = {
        sink.resource.plural: Reflector(w.client, sink.resource, sink, refused=sink.refused)
        for sink in store_sinks(storage, DeviceInventory())
    }
    assert len(storage.unlisted) == 7
    tasks = [asyncio.create_task(reflector.run()) for reflector in reflectors.values()]
    try:
        async with asyncio.timeout(5):
            for reflector in reflectors.values():
                await reflector.tried.wait()
        yield storage
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


@virtual_time
async def test_objects_are_known_by_name_while_they_exist() -> None:
    async with world() as w:
        store = w.server.store
        store.create("persistentvolumes", {"metadata": {"name": "pv"}, "spec": {"storageClassName": "c"}})
        store.create("persistentvolumeclaims", {"metadata": {"name": "data"}, "spec": {}}, "default")
        store.create("storageclasses.storage.k8s.io", {"metadata": {"name": "c"}, "provisioner": "p"})
        store.create("csinodes.storage.k8s.io", {"metadata": {"name": "n1"}, "spec": {"drivers": []}})
        store.create("csidrivers.storage.k8s.io", {"metadata": {"name": "p"}, "spec": {"storageCapacity": True}})
        body = {"metadata": {"name": "room"}, "storageClassName": "c", "capacity": "5Gi"}
        store.create("csistoragecapacities.storage.k8s.io", body, "default")
        spec = {"attacher": "p", "nodeName": "n1", "source": {"persistentVolumeName": "pv"}}
        store.create("volumeattachments.storage.k8s.io", {"metadata": {"name": "a"}, "spec": spec})
        async with watched(w) as storage:
            assert not storage.unlisted
            assert storage.claims.keys() == {("default", "data")} and storage.volumes.keys() == {"pv"}
            assert storage.classes["c"].volume_binding_mode == "Immediate", "which is the default"
            assert storage.classes["c"].provisioner == "p" and storage.drivers["p"].spec.storage_capacity
            assert storage.csi_nodes.keys() == {"n1"} and storage.attachments["a"].spec.node_name == "n1"
            assert storage.capacities["default", "room"].capacity == 5 * 2**30
            changes = storage.changes
            store.delete("persistentvolumes", "pv")
            await asyncio.sleep(1)
            assert not storage.volumes and storage.changes > changes


@virtual_time
async def test_what_may_not_be_listed_or_is_not_served_stays_unlisted_until_it_is() -> None:
    async with world() as w:
        for code, resource in ((403, "persistentvolumes"), (404, "csistoragecapacities")):
            w.server.faults.add(Refuse(code), verb="list", resource=resource)
        async with watched(w) as storage:
            assert storage.unlisted == {"persistentvolumes": True, "csistoragecapacities.storage.k8s.io": True}
            w.server.faults.clear()
            await asyncio.sleep(90)
            assert not storage.unlisted


@virtual_time
async def test_a_list_that_the_server_does_not_answer_is_no_refusal() -> None:
    async with world() as w:
        w.server.faults.add(Refuse(503), verb="list", resource="persistentvolumes")
        async with watched(w) as storage:
            assert storage.unlisted == {"persistentvolumes": False}
