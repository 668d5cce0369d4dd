"""Nodes fail and return, leaders change, budgets keep pods: at last no pod stays on a dead node needlessly."""

from random import Random

import pytest

from tests.recovery.guarded_world import GuardedWorld
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

STEPS = 16


def random_history(world: GuardedWorld, random: Random) -> list[str]:
    """Let things happen; return the nodes that are dead at the end."""
    dead: list[str] = []
    for _ in range(STEPS):
        what = random.random()
        if what < 0.3 and len(dead) < MAX_DEAD_NODES:
            fail_one(world, random, dead)
        elif what < 0.38 and dead:
            world.heal(dead.pop(random.randrange(len(dead))))
        elif what < 0.45:
            world.start()
        elif what < 0.55:
            block_some(world, random)
        else:
            some_steps(world, random)
    return dead


@pytest.mark.parametrize("seed", range(8))
def test_no_pod_that_may_move_stays_on_a_node_that_was_deleted_between_two_leaders(seed: int) -> None:
    random = Random(seed)
    world = random_world(random, GuardedWorld)
    dead = random_history(world, random)
    present = sorted(set(world.node_objects) - set(dead))
    world.delete_nodes(*random.sample(present, 2), *random.sample(dead, min(1, len(dead))), watched=False)
    world.start()
    some_steps(world, random)
    world.blocked = set()
    world.run(QUIET_SECONDS, step=10)
    left = left_behind(world)
    assert left.keys() <= moved_by(unfinished(world)), "no Migration moves it"
    world.start()
    world.run(120, step=5)
    assert left_behind(world) == left, "the next leader finds room that this one did not look for"


@pytest.mark.parametrize("seed", [*range(9), 28, 69])
def test_no_pod_that_may_move_stays_on_a_dead_node_although_there_is_room(seed: int) -> None:
    random = Random(seed)
    world = random_world(random, GuardedWorld)
    dead = random_history(world, random)
    world.blocked = set()
    world.run(QUIET_SECONDS, step=10)
    open_migrations = unfinished(world)
    keys = {migration.key for migration in open_migrations}
    for migration in open_migrations:
        beneficiary = migration.spec.makes_room_for
        assert not beneficiary or beneficiary in keys, f"{migration.key} makes room for none"
    left = left_behind(world)
    assert left.keys() <= moved_by(open_migrations), "no Migration moves it"
    world.label(next(name for name in world.node_objects if name not in dead), new="label")
    world.run(60, step=5)
    assert left_behind(world) == left, "it was not tried again once there was room"
    world.start()
    world.run(120, step=5)
    assert left_behind(world) == left, "the next leader finds room that this one did not look for"
