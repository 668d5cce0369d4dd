"""Several Migrations would move the same pods: one of them does, and the others end."""

import pytest

from tests.recovery.late_world import LateWorld, always
from tests.recovery.world import World, run_gang
from topo_scheduler.api.migrations import Migration, MigrationPod, MigrationSpec, Move, Phase
from topo_scheduler.api.recovery import RecoverySpec

FORCED = RecoverySpec(enabled=True, force_delete=True)
LEAVES = {"s1/l1": 6}
MAINTENANCE = {"cordoned": True, "taints": ("topology.scheduler/maintenance",)}


def _reason(migration: Migration) -> str:
    """Return the reason of the last condition of a Migration."""
    conditions = {condition.type: condition.reason for condition in migration.status.conditions}
    return conditions.get("Placed", conditions.get("Reserved", ""))


def _moves_once(world: World) -> None:
    """Check that no two unfinished Migrations move one pod, and that no pod was evicted twice in the same way."""
    unfinished = [
        migration for migration in world.migrations.values() if migration.phase is None or not migration.phase.over
    ]
    uids = [move.uid for migration in unfinished for move in migration.status.moves]
    assert len(uids) == len(set(uids))
    assert len(world.evictions) == len(set(world.evictions))


@pytest.mark.parametrize("size", [1, 2])
def test_of_identical_requests_one_moves_the_pod_and_the_others_fail(size: int) -> None:
    world = World(FORCED, LEAVES)
    run_gang(world, "g", size)
    for number in range(3):
        world.request(f"please-{number}", "g-0")
    world.run(5)
    first, *rest = world.migrations.values()
    assert first.phase is Phase.DONE
    assert {(later.phase, _reason(later)) for later in rest} == {(Phase.FAILED, "AlreadyMoved")}
    assert all("pod g-0 is moved by Migration default/please-0 already" in later.status.message for later in rest)
    assert [name for name, _ in world.evictions] == ["g-0"]


def test_two_nodes_under_maintenance_restart_a_gang_once() -> None:
    world = World(FORCED, {"s1/l1": 3, "s2/l1": 4})
    fillers = [world.put(f"other-{node}", node, 8, bare=True) for node in world.node_objects if node.startswith("s2")]
    world.gang("g", 3, said={"on-failure": "restart-gang"})
    world.run(1)
    nodes = sorted(world.nodes_of("g-").values())
    for node in nodes[:2]:
        world.extra[node] = MAINTENANCE
        world.cordon(node)
        world.run(0.3, step=0.1)
    for uid in ("g-0", "g-1"):
        world.made += 1
        spec = MigrationSpec(reason="NodeMaintenance", pods=[MigrationPod(uid, uid)])
        created = world._create("default", f"healing-{world.made}", spec)
        assert created is not None
        world.recovery.migration_seen(created, world.now)
    world.run(5)
    _moves_once(world)
    for filler in fillers:
        world.finish_pod(filler.metadata.uid)
    world.run(60)
    assert not set(nodes[:2]) & set(world.nodes_of("g-").values())
    _moves_once(world)


def test_pods_on_a_dead_node_are_moved_once_after_a_change_of_the_leader() -> None:
    """The write that reserves nodes for a request is on its way while healing plans, and then the leader dies."""
    world = LateWorld(FORCED, {"s1/l1": 4, "s1/l2": 4})
    run_gang(world, "g", 2)
    dead = world.nodes_of("g-")["g-0"]
    world.fail(dead)
    world.run(FORCED.debounce - 0.5, step=0.5)
    world.request("please", "g-0", "g-1")
    world.is_late = always
    for _ in range(2):
        world.run(0)
        if world.phases() != [Phase.PLANNED]:
            world.serve_all()
            world.answer_all()
            world.report_all()
    (reserves,) = world.requests
    world.requests.clear()
    world.run(1.0, step=0.25)
    for _ in range(2):
        world.serve_all()
        world.answer_all()
        world.report_all()
        world.run(0)
    assert [migration.phase for migration in world.migrations.values()] == [Phase.PLANNED, Phase.PLANNED]
    world.requests = [reserves]
    world.serve_all()
    world.start()
    world.catch_up()
    for _ in range(60):
        world.run(1)
        _moves_once(world)
    assert dead not in world.nodes_of("g-").values()


@pytest.mark.parametrize("reason", ["", "NodeUnreachable"])
def test_of_two_that_evict_when_a_leader_begins_one_goes_on(reason: str) -> None:
    """A write of the former leader came late."""
    world = World(FORCED, LEAVES)
    where = run_gang(world, "g", 2)
    free = [node for node in world.node_objects if node not in where.values()]
    for number, (name, why) in enumerate((("first", ""), ("second", reason))):
        created = world._create("default", name, MigrationSpec(reason=why, pods=[MigrationPod("g-0", "g-0")]))
        assert created is not None
        status = world.migrations[created.key].status
        status.phase, status.scheduler_name = Phase.EVICTING, world.scheduler
        status.moves = [Move(pod="g-0", uid="g-0", from_=where["g-0"], to=free[number], workload="g", gang=True)]
    world.blocked.add("g-0")
    if reason:
        world.fail(where["g-0"])
    world.start()
    world.run(30)
    over = [migration for migration in world.migrations.values() if migration.phase is Phase.CANCELLED]
    assert [(migration.metadata.name, _reason(migration)) for migration in over] == [
        ("first" if reason else "second", "AlreadyMoved")
    ]
    assert len(world.d.engine.preempting.replacements) == 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_request_for_a_member_keeps_no_gang_from_its_restart_elsewhere(when: str) -> None:
    """Its leaf has no room, so healing moves the whole gang, with the member for which the request waits."""
    world = World(FORCED, {"s1/l1": 3, "s2/l1": 4})
    fillers = [world.put(f"other-{node}", node, 8, bare=True) for node in world.node_objects if node.startswith("s2")]
    where = run_gang(world, "g", 3)
    if when == "before":
        world.request("please", "g-1")
    world.fail(where["g-0"])
    world.run(20)
    if when == "after":
        world.request("please", "g-1")
        world.run(1)
    for filler in fillers:
        world.finish_pod(filler.metadata.uid)
    for _ in range(60):
        world.run(1)
        _moves_once(world)
    assert all(node.startswith("s2") for node in world.nodes_of("g-").values())
    please = world.migrations["default/please"]
    assert (please.phase, _reason(please)) == (Phase.CANCELLED, "AlreadyMoved")


@pytest.mark.parametrize("is_requested", [False, True])
@pytest.mark.parametrize("dead", [0, 1])
def test_a_gang_on_a_dead_node_and_one_under_maintenance_moves_as_on_a_dead_one(
    dead: int, *, is_requested: bool
) -> None:
    world = World(FORCED, {"s1/l1": 3, "s2/l1": 4})
    fillers = [world.put(f"other-{node}", node, 8, bare=True) for node in world.node_objects if node.startswith("s2")]
    where = run_gang(world, "g", 3)
    names = sorted(where, key=lambda name: where[name])
    if is_requested:
        world.request("please", names[dead])
        world.run(1)
    node = where[names[1 - dead]]
    world.extra[node] = MAINTENANCE
    world.cordon(node)
    world.fail(where[names[dead]])
    world.run(20)
    healing = list(world.migrations.values())[-1]
    assert healing.spec.reason == "NodeUnreachable"
    for filler in fillers:
        world.finish_pod(filler.metadata.uid)
    world.run(60)
    assert all(node.startswith("s2") for node in world.nodes_of("g-").values())
