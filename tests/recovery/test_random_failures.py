"""Nodes fail and return, leaders change, budgets keep pods: at last no pod stays on a dead node needlessly."""

from random import Random

import pytest

from tests.recovery.guarded_world import GuardedWorld
from topo_scheduler.api.recovery import RecoveryLimits, RecoverySpec

STEPS = 16
MAX_DEAD_NODES = 4
QUIET_SECONDS = 1200.0
"""Longer than any reservation and any pause."""


def random_world(random: Random) -> GuardedWorld:
    """Return nodes in three leaves with gangs, and with pods of two tenants."""
    spec = RecoverySpec(
        enabled=True,
        debounce=1,
        force_delete=True,
        quarantine=random.choice((1, 60)),
        reservation_timeout=random.choice((60, 900)),
        limits=RecoveryLimits(per_hour=1000),
    )
    world = GuardedWorld(spec, {"s1/l1": 4, "s1/l2": 4, "s2/l1": random.choice((2, 4))})
    for number in range(random.choice((1, 1, 2))):
        policy = random.choice(("replace", "replace", "restart-gang", "shrink"))
        gpus = random.choice((4, 8))
        world.gang(f"g{number}", random.choice((2, 3)), gpus=gpus, said={"on-failure": policy})
        world.run(1)
    for number in range(random.choice((2, 4, 8))):
        node, namespace = random.choice(list(world.node_objects)), random.choice("uv")
        world.put(f"v{number}", node, random.choice((1, 2, 4)), namespace=namespace, ran=random.choice((1, 1000)))
    world.run(1)
    return world


def some_steps(world: GuardedWorld, random: Random) -> None:
    """Let recovery do a few steps; not all binds are carried out at once."""
    for _ in range(random.choice((1, 2, 5, 30))):
        out = world.recovery.step(world.now)
        world.recovery.take_changed()
        for instruction in out:
            world.carry_out(instruction)
        world.d.step()
        if random.random() < 0.7:
            world._binds()
        world.now = world.d.now = world.now + random.choice((0.01, 0.3, 2))


def random_history(world: GuardedWorld, random: Random) -> list[str]:
    """Let things happen; return the nodes that are dead at the end."""
    dead: list[str] = []
    for _ in range(STEPS):
        what = random.random()
        if what < 0.3 and len(dead) < MAX_DEAD_NODES:
            dead.append(random.choice([name for name in world.node_objects if name not in dead]))
            world.fail(dead[-1])
        elif what < 0.38 and dead:
            world.heal(dead.pop(random.randrange(len(dead))))
        elif what < 0.45:
            world.start()
        elif what < 0.55:
            world.blocked = set(random.sample(sorted(world.pods), min(3, len(world.pods))))
        else:
            some_steps(world, random)
    return dead


def left_behind(world: GuardedWorld) -> dict[str, str]:
    """Return the pods on dead nodes, with their nodes."""
    return {name: pod.spec.node_name for name, pod in world.pods.items() if pod.spec.node_name in world.kubelets_dead}


@pytest.mark.parametrize("seed", [*range(9), 28, 69])
def test_no_pod_that_may_move_stays_on_a_dead_node_although_there_is_room(seed: int) -> None:
    random = Random(seed)
    world = random_world(random)
    dead = random_history(world, random)
    world.blocked = set()
    world.run(QUIET_SECONDS, step=10)
    open_migrations = [
        migration for migration in world.migrations.values() if not (migration.phase and migration.phase.over)
    ]
    keys = {migration.key for migration in open_migrations}
    for migration in open_migrations:
        beneficiary = migration.spec.makes_room_for
        assert not beneficiary or beneficiary in keys, f"{migration.key} makes room for none"
    left = left_behind(world)
    named = {pod.uid for migration in open_migrations for pod in migration.spec.pods}
    named |= {move.uid for migration in open_migrations for move in migration.status.moves}
    assert left.keys() <= named, "no Migration moves it"
    world.label(next(name for name in world.node_objects if name not in dead), new="label")
    world.run(60, step=5)
    assert left_behind(world) == left, "it was not tried again once there was room"
    world.start()
    world.run(120, step=5)
    assert left_behind(world) == left, "the next leader finds room that this one did not look for"
