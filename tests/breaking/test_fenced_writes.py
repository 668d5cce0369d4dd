"""Whatever a leader has to write: nothing of it is sent once its fence says no, and all of it is without a fence.

Nor is a Binding that is wrong by the time it would leave.
"""

import pytest

from tests.e2e import objects
from tests.e2e.device_objects import CLASS, asking, by_name, claim, slice_of
from tests.e2e.volume_objects import DISK, HOST, LOCAL, using, volume
from tests.e2e.volume_objects import claim as volume_claim
from topo_scheduler.kube.connection.errors import Fenced
from topo_scheduler.kube.connection.fence import UNFENCED, Fence
from topo_scheduler.simulation.apiserver import Refuse

from .running import virtually
from .world import ELECTED, World, cluster, configured

OF_NO_LEASE = frozenset({"leases", "events"})
"""What no lease protects: the Lease itself, and events."""


WRITES = frozenset({"create", "update", "patch", "delete"})


def _written(world: World, since: int) -> set[str]:
    entries = list(world.server.requests)[since:]
    return {request.full_resource for request in entries if request.verb in WRITES} - OF_NO_LEASE


async def _leading(world: World) -> int:
    """Have a leader, a gang and a pod that run; return how many requests there were."""
    world.start(configured(ELECTED))
    await world.leading()
    world.gang("g", 3)
    world.replicas("low", 1, gpus=8)
    await world.until(lambda: world.whole("g") and world.nodes_of("low"))
    return len(world.server.requests)


def _more(world: World) -> None:
    """Have Bindings, conditions, evictions, Migrations, volumes and claims to write."""
    for kind in (LOCAL, DISK):
        world.store.create("storageclasses.storage.k8s.io", kind)
    node = next(name for name in world.node_names() if name not in world.nodes_of("g"))
    world.store.create("persistentvolumes", volume("pv", "local", on=(HOST, node)))
    world.store.create("deviceclasses.resource.k8s.io", CLASS)
    world.store.create("resourceslices.resource.k8s.io", slice_of(node, 1))
    world.store.create("resourceclaims.resource.k8s.io", claim("device", asking()), "default")
    for name, storage in (("reserved", "local"), ("provisioned", "disk")):
        world.store.create("persistentvolumeclaims", volume_claim(name, storage), "default")
        world.store.create("pods", objects.pod(f"with-{name}", volumes=using(name)), "default")
    world.store.create("pods", objects.pod("with-device", **by_name("device")), "default")
    urgent = {"metadata": {"name": "urgent"}, "value": 1000}
    world.store.create("priorityclasses.scheduling.k8s.io", urgent)
    (taken,) = world.nodes_of("low")
    pod = objects.pod("urgent", 8, nodeSelector={HOST: taken}, priorityClassName="urgent")
    world.store.create("pods", pod, "default")
    world.gang("next", 2)
    world.gang("too-large", 400)
    world.fail(world.nodes_of("g")[1])


@virtually
async def test_a_leader_whose_fence_says_no_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster({"s1/l1": 4, "s1/l2": 4}) as world:
        since = await _leading(world)
        asked = Fence.deadline

        def refused(self: Fence, seconds: float) -> float:
            if self is not UNFENCED:
                raise Fenced("the lease has ended")
            return asked(self, seconds)

        monkeypatch.setattr(Fence, "deadline", refused)
        _more(world)
        await world.run(30.0)
        assert _written(world, since) == set()


@virtually
async def test_the_same_leader_writes_all_of_it_otherwise() -> None:
    async with cluster({"s1/l1": 4, "s1/l2": 4}) as world:
        since = await _leading(world)
        _more(world)
        await world.run(30.0)
        wanted = {"pods/binding", "pods/status", "pods/eviction", "migrations/status"}
        wanted |= {"persistentvolumes", "persistentvolumeclaims", "resourceclaims", "resourceclaims/status"}
        assert wanted <= _written(world, since)
        evicted = {entry.name for entry in world.server.requests if entry.full_resource == "pods/eviction"}
        by_preemption = {name for name in evicted if name.startswith("low-")}
        assert by_preemption and evicted - by_preemption, "the others by a Migration"


@virtually
async def test_a_bind_that_is_tried_again_does_not_go_to_a_node_that_was_cordoned_meanwhile() -> None:
    async with cluster({"s1/l1": 2}) as world:
        daemon = world.start(configured())
        await world.leading()
        world.server.faults.add(Refuse(429), verb="create", resource="pods/binding")
        world.replicas("alone", 1, gpus=8)
        await world.until(lambda: "create pods/binding" in daemon.wire.knife.writes)
        (sent,) = daemon.engine.outcomes._sent.values()
        cordoned = sent.bind.node
        world.store.modify(
            "nodes", cordoned, "", lambda node: {**node, "spec": {**node["spec"], "unschedulable": True}}
        )
        await world.run(0.1)
        world.server.faults.clear()
        await world.until(lambda: world.nodes_of("alone"))
        assert world.nodes_of("alone") == [name for name in world.node_names() if name != cordoned]
