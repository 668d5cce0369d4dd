"""Random clusters in which nodes fail, and what recovery left behind."""

from collections.abc import Callable, Iterable
from random import Random
from typing import TypeVar

from tests.recovery.guarded_world import GuardedWorld
from topo_scheduler.api.migrations import Migration
from topo_scheduler.api.recovery import RecoveryLimits, RecoverySpec

AnyWorld = TypeVar("AnyWorld", bound=GuardedWorld)

MAX_DEAD_NODES = 4
QUIET_SECONDS = 1200.0
"""Longer than any reservation and any pause."""


def random_world(random: Random, kind: type[AnyWorld]) -> AnyWorld:
    """Return nodes in three leaves with gangs, and with pods of two tenants."""
    spec = RecoverySpec(
        enabled=True,
        debounce=1,
        force_delete=True,
        quarantine=random.choice((1, 60)),
        reservation_timeout=random.choice((60, 900)),
        limits=RecoveryLimits(per_hour=1000),
    )
    world = kind(spec, {"s1/l1": 4, "s1/l2": 4, "s2/l1": random.choice((2, 4))})
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


def fail_one(world: GuardedWorld, random: Random, dead: list[str]) -> None:
    """Let a node fail that is not dead yet."""
    dead.append(random.choice([name for name in world.node_objects if name not in dead]))
    world.fail(dead[-1])


def some_steps(world: GuardedWorld, random: Random, between: Callable[[], None] = lambda: None) -> None:
    """Let recovery do a few steps; not all binds are carried out at once."""
    for _ in range(random.choice((1, 2, 5, 30))):
        out = world.recovery.step(world.now)
        world.recovery.take_changed()
        for instruction in out:
            world.carry_out(instruction)
        world.d.step()
        if random.random() < 0.7:
            world._binds()
        between()
        world.now = world.d.now = world.now + random.choice((0.01, 0.3, 2))


def block_some(world: GuardedWorld, random: Random) -> None:
    """Let disruption budgets keep a few pods, and no others."""
    world.blocked = set(random.sample(sorted(world.pods), min(3, len(world.pods))))


def left_behind(world: GuardedWorld) -> dict[str, str]:
    """Return the pods on dead nodes, with their nodes."""
    return {name: pod.spec.node_name for name, pod in world.pods.items() if pod.spec.node_name in world.kubelets_dead}


def unfinished(world: GuardedWorld) -> list[Migration]:
    """Return the Migrations that are not over."""
    return [migration for migration in world.migrations.values() if migration.phase is None or not migration.phase.over]


def moved_by(migrations: Iterable[Migration]) -> set[str]:
    """Return the uids of the pods that Migrations name or move."""
    uids: set[str] = set()
    for migration in migrations:
        uids |= {pod.uid for pod in migration.spec.pods} | {move.uid for move in migration.status.moves}
    return uids
