"""Migrations that tenants create, and keep from ending, hold up none that heals a failed node."""

import time

import pytest

from tests.recovery.world import World
from topo_scheduler.api.migrations import (
    MAX_PODS,
    Migration,
    MigrationPod,
    MigrationSpec,
    MigrationStatus,
    Move,
    Phase,
)
from topo_scheduler.api.objects import ObjectMeta
from topo_scheduler.api.recovery import RecoveryLimits, RecoverySpec
from topo_scheduler.recovery.model.limits import MigrationLimits
from topo_scheduler.recovery.model.migration_state import Tracked


def _hostile(world: World, count: int) -> None:
    """Pods of two namespaces on healthy nodes, with Migrations that a disruption budget never lets through."""
    for number in range(count):
        name, namespace = f"h{number}", f"hostile-{number % 2}"
        world.put(name, f"s1-l1-{number + 1}", 1, namespace=namespace)
        world.blocked.add(name)
        world.request(f"ask-{name}", name, namespace=namespace)


@pytest.mark.parametrize("per_hour", [1000, 4])
@pytest.mark.parametrize("restarted", [False, True])
def test_requested_migrations_do_not_use_up_the_limits_of_failed_nodes(per_hour: int, *, restarted: bool) -> None:
    limits = RecoveryLimits(at_once=4, per_namespace=2, per_hour=per_hour)
    world = World(RecoverySpec(enabled=True, limits=limits), {"s1/l1": 6, "s1/l2": 2})
    _hostile(world, 6)
    world.run(10)
    assert sorted(filter(None, world.phases())) == [Phase.EVICTING] * 4 + [Phase.PLANNED] * 2, "the limits hold"
    for name in ("a", "b", "c"):
        world.put(name, "s1-l2-1", 1)
    if restarted:
        world.start()
    world.fail("s1-l2-1")
    world.run(20)
    phases = [migration.phase for migration in world.migrations.values() if migration.metadata.namespace == "default"]
    assert sorted(filter(None, phases)) == [Phase.EVICTING, Phase.EVICTING, Phase.PLANNED], "limits.perNamespace"


def test_migrations_that_never_end_leave_an_equal_share_to_those_of_other_namespaces() -> None:
    world = World(
        RecoverySpec(enabled=True, limits=RecoveryLimits(at_once=4, per_namespace=2)), {"s1/l1": 6, "s1/l2": 4}
    )
    _hostile(world, 6)
    world.run(10)
    for number in range(2):
        world.put(f"p{number}", f"s1-l2-{number + 1}", 1)
        world.blocked.add(f"p{number}")
        world.request(f"ask-{number}", f"p{number}")
    world.run(10)
    phases = [migration.phase for migration in world.migrations.values() if migration.metadata.namespace == "default"]
    assert phases == [Phase.EVICTING, Phase.PLANNED], "a third of four is one"
    hostile = [migration.phase for migration in world.migrations.values() if migration.metadata.namespace != "default"]
    assert hostile.count(Phase.EVICTING) == 4


def test_migrations_off_a_failed_node_that_a_budget_keeps_delay_no_other_namespace() -> None:
    limits = RecoveryLimits(at_once=4, per_namespace=2)
    world = World(RecoverySpec(enabled=True, limits=limits), {"s1/l1": 3, "s1/l2": 3})
    for number in range(6):
        world.put(f"h{number}", "s1-l1-1", 0, namespace=f"hostile-{number % 2}")
        world.blocked.add(f"h{number}")
    for number in range(3):
        world.put(f"p{number}", "s1-l1-2", 1)
    world.put("alone", "s1-l1-2", 1, namespace="other")
    world.fail("s1-l1-1")
    world.kubelets_dead.clear()
    world.run(20)
    assert world.phases().count(Phase.EVICTING) == limits.at_once
    world.fail("s1-l1-2")
    world.kubelets_dead.clear()
    world.run(20)
    phases: dict[str, list[Phase | None]] = {"hostile": [], "others": []}
    for migration in world.migrations.values():
        kind = "hostile" if migration.metadata.namespace.startswith("hostile") else "others"
        phases[kind].append(migration.phase)
    assert phases["others"] == [Phase.DONE] * 4, "one after the other in each namespace"
    assert phases["hostile"].count(Phase.EVICTING) == limits.at_once, "they begin no more"


def test_a_namespace_begins_more_than_an_equal_share_while_the_limit_is_not_used_up() -> None:
    """Mass failures of few tenants heal as fast as `limits.perNamespace` allows."""
    limits, settings = MigrationLimits(), RecoveryLimits(at_once=6, per_namespace=4)

    def begins(namespace: str, name: str) -> bool:
        migration = Migration(metadata=ObjectMeta(namespace=namespace, name=name))
        if limits.lacking(migration, settings, 1000.0):
            return False
        limits.begin(migration, 1000.0)
        return True

    assert [begins("a", f"a{number}") for number in range(5)] == [True] * 4 + [False], "limits.perNamespace"
    assert [begins("b", f"b{number}") for number in range(4)] == [True] * 3 + [False], "half of six"
    assert [begins("c", f"c{number}") for number in range(3)] == [True] * 2 + [False], "a third of six"
    assert not begins("a", "a4")


def test_migrations_whose_seats_have_expired_do_not_use_up_the_limits_of_failed_nodes() -> None:
    """Disruption budgets may keep pods on failed nodes for ever."""
    limits = RecoveryLimits(at_once=2, per_namespace=2)
    world = World(RecoverySpec(enabled=True, limits=limits, reservation_timeout=60.0), {"s1/l1": 2, "s1/l2": 2})
    for name in ("a", "b"):
        world.put(name, "s1-l1-1", 1, namespace="blocked")
        world.blocked.add(name)
    world.put("c", "s1-l1-2", 1)
    world.fail("s1-l1-1", "s1-l1-2")
    world.kubelets_dead.clear()
    world.run(30)
    assert sum(phase is Phase.EVICTING for phase in world.phases()) == 2
    world.run(120)
    (mine,) = (migration for migration in world.migrations.values() if migration.metadata.namespace == "default")
    assert mine.phase is Phase.DONE


def test_large_migrations_cost_a_step_no_more_than_their_pods() -> None:
    """Tenants create them. No work grows with the square of their pods, or with their pods times those that fail."""
    world = World(RecoverySpec(enabled=True), {"s1/l1": 2})
    context = world.recovery.migrations.context
    uids = [f"u{number}" for number in range(MAX_PODS)]
    status = MigrationStatus(moves=[Move(pod=uid, uid=uid, from_="s1-l1-1") for uid in uids])
    spec = MigrationSpec(pods=[MigrationPod(uid, uid) for uid in uids])
    migrations = [
        Migration(metadata=ObjectMeta(name=f"m{number}", uid=f"m{number}"), spec=spec, status=status)
        for number in range(8)
    ]
    for migration in migrations:
        context.track(Tracked(migration))
    began = time.process_time()
    assert not context.warranted(migrations[0])
    assert time.process_time() - began < 0.1, "0.3 s when each pod was compared with each"
    for number in range(400):
        world.put(f"p{number}", "s1-l1-1", 0)
    world.fail("s1-l1-1")
    world.now += 20
    for migration in migrations:
        context.track(Tracked(migration))
    began = time.process_time()
    world.recovery.step(world.now)
    assert time.process_time() - began < 0.8, "1.6 s when each Migration looked up each pod"


def test_a_new_leader_counts_the_migrations_of_failed_nodes_that_an_earlier_one_began() -> None:
    """It reads them before it knows which nodes have failed, and they may not change for long."""
    limits = RecoveryLimits(at_once=2, per_namespace=3)
    world = World(RecoverySpec(enabled=True, limits=limits), {"s1/l1": 3, "s1/l2": 3})
    for number, name in enumerate("abc", 1):
        world.put(name, f"s1-l1-{number}", 1)
        world.blocked.add(name)
    world.fail("s1-l1-1", "s1-l1-2")
    world.kubelets_dead.clear()
    world.run(30)
    assert world.phases() == [Phase.EVICTING] * 2
    world.start()
    world.fail("s1-l1-3")
    world.run(30)
    assert world.phases() == [Phase.EVICTING] * 2 + [Phase.PLANNED], "limits.atOnce"


def test_migrations_that_begin_and_are_deleted_do_not_use_up_the_limits_of_failed_nodes() -> None:
    """A pod on a cordoned node is enough to begin, and delete, any number of Migrations."""
    limits = RecoveryLimits(per_hour=6)
    world = World(RecoverySpec(enabled=True, limits=limits), {"s1/l1": 3})
    world.put("kept", "s1-l1-1", 1, namespace="hostile")
    world.blocked.add("kept")
    world.node_objects["s1-l1-1"].spec.unschedulable = True
    world.d.nodes(*world.node_objects.values())
    for number in range(8):
        world.request(f"ask-{number}", "kept", namespace="hostile")
        world.run(2)
        begun = world.migrations[f"hostile/ask-{number}"].phase
        assert begun is (Phase.EVICTING if number < limits.per_hour else Phase.PLANNED)
        world.cancel(f"hostile/ask-{number}")
    for name in ("a", "b"):
        world.put(name, "s1-l1-2", 1)
    world.fail("s1-l1-2")
    world.kubelets_dead.clear()
    world.run(30)
    assert set(world.phases()) == {Phase.DONE}


def test_a_migration_that_began_and_lost_its_seats_begins_again_although_its_namespace_has_had_its_share() -> None:
    limits, migrations = MigrationLimits(), RecoveryLimits(per_hour=2)
    for namespace, name in (("hostile", "a"), ("hostile", "b"), ("default", "c")):
        limits.begin(Migration(metadata=ObjectMeta(namespace=namespace, name=name)), 1000.0)
    (began, fresh) = (Migration(metadata=ObjectMeta(namespace="default", name=name)) for name in "cd")
    assert limits.lacking(fresh, migrations, 1001.0)
    assert not limits.lacking(began, migrations, 1001.0)
