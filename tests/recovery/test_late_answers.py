"""Answers to writes arrive after the watch has reported that a user deleted the Migration."""

from collections.abc import Callable
from random import Random

import pytest

from tests.recovery.late_world import LateWorld, always
from tests.recovery.random_worlds import (
    MAX_DEAD_NODES,
    QUIET_SECONDS,
    block_some,
    fail_one,
    left_behind,
    moved_by,
    random_world,
    some_steps,
    unfinished,
)
from tests.recovery.world import run_gang
from topo_scheduler.api.migrations import Phase
from topo_scheduler.api.recovery import RecoverySpec
from topo_scheduler.recovery.model.instructions import CreateMigration, MigrationRequest, WriteStatus

FORCED = RecoverySpec(enabled=True, force_delete=True)
LEAVES = {"s1/l1": 4, "s1/l2": 4}
STEPS = 24


def begins_evicting(request: MigrationRequest) -> bool:
    return isinstance(request, WriteStatus) and request.status.phase == Phase.EVICTING


def creates(request: MigrationRequest) -> bool:
    return isinstance(request, CreateMigration)


def running(world: LateWorld) -> str:
    """Run a gang whose pods a disruption budget keeps; return the node of one."""
    world.gang("g", 3)
    world.run()
    world.blocked.update(world.nodes_of("g"))
    return world.nodes_of("g")["g-1"]


def test_a_deleted_migration_evicts_no_more() -> None:
    world = LateWorld(FORCED, LEAVES, is_late=begins_evicting)
    running(world)
    world.request("move", "g-1")
    world.run(1)
    world.serve_all()
    world.cancel("default/move")
    world.report_all()
    assert world.answers
    world.answer_all()
    assert not len(world.recovery.migrations)
    world.run(60)
    assert not world.evictions


@pytest.mark.parametrize("is_late", [begins_evicting, creates])
def test_the_pods_of_a_failed_node_get_another_migration(is_late: Callable[[MigrationRequest], bool]) -> None:
    world = LateWorld(FORCED, LEAVES, is_late=is_late)
    lost = running(world)
    world.fail(lost)
    while not world.requests:
        world.run(1)
    world.serve_all()
    world.cancel(next(iter(world.migrations)))
    world.report_all()
    world.answer_all()
    assert not len(world.recovery.migrations)
    world.run(60)
    world.blocked.clear()
    world.catch_up()
    world.run(600)
    assert lost not in world.nodes_of("g").values()


def random_history(world: LateWorld, random: Random, *, restarts: bool) -> None:
    """Let nodes fail and return, and users delete Migrations, while everything is late."""
    dead: list[str] = []
    for _ in range(STEPS):
        what = random.random()
        if what < 0.25 and len(dead) < MAX_DEAD_NODES:
            fail_one(world, random, dead)
        elif what < 0.3 and dead:
            world.heal(dead.pop(random.randrange(len(dead))))
        elif what < 0.33 and restarts:
            world.start()
        elif what < 0.4:
            block_some(world, random)
        elif what < 0.55 and world.migrations:
            world.cancel(random.choice(sorted(world.migrations)))
        else:
            some_steps(world, random, between=lambda: world.let_pass(random))


@pytest.mark.parametrize("seed", [*range(4), 49, 67, 78])
def test_recovery_knows_those_migrations_that_exist(seed: int) -> None:
    random = Random(seed)
    world = random_world(random, LateWorld)
    world.is_late = always
    random_history(world, random, restarts=seed % 3 == 0)
    world.catch_up()
    known = {key: tracked.migration.metadata.uid for key, tracked in world.recovery.migrations.context.tracked.items()}
    assert known == {migration.key: migration.metadata.uid for migration in unfinished(world)}
    world.blocked = set()
    world.run(QUIET_SECONDS, step=10)
    assert left_behind(world).keys() <= moved_by(unfinished(world)), "no Migration moves it"


@pytest.mark.parametrize("first", ["please", "healing"], ids=["the request ends first", "healing ends first"])
def test_two_migrations_that_each_leave_the_pods_to_the_other_leave_none_on_a_dead_node(first: str) -> None:
    """A request reserves nodes as the debounce ends: healing finds it under way, and it finds the node dead."""
    world = LateWorld(FORCED, LEAVES)
    run_gang(world, "g", 2)
    dead = world.nodes_of("g-")["g-0"]
    world.fail(dead)
    world.run(FORCED.debounce - 0.5, step=0.5)
    world.is_late = always
    world.request("please", "g-0", "g-1")
    world.run(0)
    _everything_arrives(world)
    world.run(0)
    assert world.phases() == [Phase.PLANNED] and world.requests, "the write that reserves nodes is on its way"
    world.run(1.0, step=0.25)
    _everything_arrives(world)
    world.run(0)
    assert [request.status.phase for request in world.requests if isinstance(request, WriteStatus)] == [
        Phase.CANCELLED,
        Phase.CANCELLED,
    ]
    for request in sorted(world.requests, key=lambda request: (request.name == "please") != (first == "please")):
        world.requests.remove(request)
        world.serve(request)
        world.answer_all()
        world.report_all()
        world.run(0)
    world.catch_up()
    world.run(120)
    assert dead not in world.nodes_of("g-").values(), world.phases()


def _everything_arrives(world: LateWorld) -> None:
    world.serve_all()
    world.answer_all()
    world.report_all()
