"""A Migration that names pods of another namespace keeps these from nothing, also before it is refused."""

import pytest

from tests.recovery.world import World, leaf
from topo_scheduler.api.migrations import Cause, MigrationPod, MigrationSpec, Phase
from topo_scheduler.api.recovery import RecoverySpec
from topo_scheduler.recovery.model.naming import name_for
from topo_scheduler.recovery.model.seating import find_moving_pods

FORCED = RecoverySpec(enabled=True, force_delete=True)
KEY = "hostile/theirs"


def name_pod(world: World, uid: str, *, reason: str, makes_room_for: str = "", namespace: str = "hostile") -> None:
    """A tenant writes a Migration for a scheduler that does not run, so that it is not refused at first."""
    spec = MigrationSpec(
        reason=reason,
        scheduler_name="not-running",
        makes_room_for=makes_room_for,
        leave_spares=bool(makes_room_for),
        pods=[MigrationPod("own", ""), MigrationPod(uid, uid)],
    )
    created = world._create(namespace, "theirs", spec)
    assert created is not None
    world.recovery.migration_seen(created, world.now)


@pytest.mark.parametrize("reason", [Cause.UNREACHABLE.value, Cause.REQUESTED.value, Cause.SCALE_DOWN.value])
def test_a_gang_whose_pod_another_namespace_names_is_healed(reason: str) -> None:
    world = World(FORCED, {"s1/l1": 3})
    gang = world.gang("g", 2)
    world.run()
    name_pod(world, "g-0", reason=reason)
    world.fail(gang[0].spec.node_name)
    world.run(60)
    assert world.migrations[KEY].phase is None, "its scheduler has not answered"
    (ours,) = (item for key, item in world.migrations.items() if key != KEY)
    assert ours.phase is Phase.DONE
    assert world.nodes_of("g").keys() == {"g-0", "g-1"}


@pytest.mark.parametrize("namespace", ["hostile", "default"])
def test_pods_that_a_user_says_were_asked_still_leave_the_spare_node_that_was_lent_to_them(namespace: str) -> None:
    world = World(FORCED, {"s1/l1": 4}, "{spares: {perLeaf: 1}}")
    world.gang("g", 3)
    world.run()
    world.gang("low", 1, priority=-1)
    world.run()
    where = world.nodes_of("g")
    assert leaf(world.nodes_of("low")["low-0"]) == leaf(where["g-1"])
    name = name_for(find_moving_pods(world.view, ["g-1"]))
    key = f"default/{name}"
    name_pod(world, "low-0", reason=Cause.REQUESTED.value, makes_room_for=key, namespace=namespace)
    world.fail(where["g-1"])
    world.run(60)
    assert key in world.migrations
    assert [evicted for evicted, _ in world.evictions] == ["low-0", "g-1"]
    assert len(world.nodes_of("g")) == 3
