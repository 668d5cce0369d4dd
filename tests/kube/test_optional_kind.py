"""A kind that may not be served is followed while it is, and its objects go with its definition."""

import asyncio
from typing import Any

from tests.crds import node_topology_definition
from topo_scheduler.kube.connection.resources import NODE_TOPOLOGIES
from topo_scheduler.kube.reading.optional_kind import ASK_SECONDS, OptionalKind
from topo_scheduler.kube.reading.storage import StoreSink
from topo_scheduler.simulation.apiserver import Disconnect
from topo_scheduler.state.pods.numa_zones import NumaZones

from .virtual import now, virtual_time
from .world import World, running, warnings_logged, world

CRDS = "customresourcedefinitions.apiextensions.k8s.io"
KIND = NODE_TOPOLOGIES.described


def follows(w: World, zones: NumaZones) -> OptionalKind[Any]:
    sink = StoreSink(zones, NODE_TOPOLOGIES, zones.objects, lambda meta: meta.name, lambda: None)
    return OptionalKind(w.client, NODE_TOPOLOGIES, sink, clock=now)


def create(w: World, name: str) -> None:
    resources = [{"name": "cpu", "capacity": 4, "allocatable": 4, "available": 4}]
    item = {
        "metadata": {"name": name},
        "attributes": [{"name": "topologyManagerPolicy", "value": "single-numa-node"}],
        "zones": [{"name": "node-0", "type": "Node", "resources": resources}],
    }
    w.server.store.create(KIND, item)


@virtual_time
async def test_a_kind_that_comes_later_is_followed_and_one_that_goes_is_forgotten() -> None:
    zones = NumaZones()
    async with world() as w:
        kind = follows(w, zones)
        async with running(kind.run()):
            await kind.tried.wait()
            assert not zones.machines
            w.server.store.create(CRDS, node_topology_definition())
            create(w, "n0")
            await asyncio.sleep(ASK_SECONDS + 1)
            assert zones.state("n0") is not None
            create(w, "n1")
            await asyncio.sleep(1)
            assert set(zones.names()) == {"n0", "n1"}
            w.server.store.delete(CRDS, KIND)
            await asyncio.sleep(ASK_SECONDS + 1)
            assert not zones.machines
            w.server.store.create(CRDS, node_topology_definition())
            create(w, "n2")
            await asyncio.sleep(ASK_SECONDS + 1)
            assert set(zones.names()) == {"n2"}


@virtual_time
async def test_what_is_not_served_makes_no_noise_and_few_requests() -> None:
    with warnings_logged() as warnings:
        async with world() as w:
            kind = follows(w, NumaZones())
            async with running(kind.run()):
                await kind.tried.wait()
                before = len(w.server.requests)
                await asyncio.sleep(10 * ASK_SECONDS)
                asked = len(w.server.requests) - before
    assert not warnings
    assert asked <= 2 * 11


@virtual_time
async def test_a_server_that_does_not_answer_changes_nothing() -> None:
    zones = NumaZones()
    async with world() as w:
        w.server.store.create(CRDS, node_topology_definition())
        create(w, "n0")
        kind = follows(w, zones)
        async with running(kind.run()):
            await kind.tried.wait()
            w.server.faults.add(Disconnect(), where=lambda info: info.path.startswith("/apis"))
            await asyncio.sleep(3 * ASK_SECONDS)
            assert set(zones.names()) == {"n0"}
