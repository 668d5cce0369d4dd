"""What holds a Migration back, ends it early, or was wrong with it from the start."""

import pytest

from tests.helpers import controlled_by, make_pod
from tests.recovery.world import RECOVERY_ENABLED, THREE_LEAVES, World, run_gang
from topo_scheduler.api.migrations import MigrationPod, MigrationSpec, Phase
from topo_scheduler.api.recovery import RecoveryLimits, RecoverySpec
from topo_scheduler.recovery.model.instructions import EmitMigrationEvent, Warn

FORCED = RecoverySpec(enabled=True, force_delete=True)


def test_what_a_user_asks_for_is_moved() -> None:
    world = World(RECOVERY_ENABLED, THREE_LEAVES)
    before = run_gang(world, "g")
    world.request("please", "g-0")
    world.run(3)
    assert world.phases() == [Phase.DONE]
    after = world.nodes_of("g")
    assert after["g-0"] not in before.values() and after["g-1"] == before["g-1"]
    assert world.evictions == [("g-0", False)]
    world.check()


def test_a_member_whose_siblings_are_on_their_way_gets_no_place_in_another_leaf_than_theirs() -> None:
    """Two nodes are drained one after the other, faster than a controller makes replacements."""
    world = World(RecoverySpec(enabled=True), {"s1/l1": 4, "s2/l1": 1})
    world.put("other", "s1-l1-4", 8, bare=True)
    world.gang("g", 2)
    world.run()
    before = world.nodes_of("g-")
    assert {node.rpartition("-")[0] for node in before.values()} == {"s1-l1"}
    evicted = world.pods["g-0"]
    world.controllers_stand = True
    for number, migration in enumerate(("first", "second")):
        world.cordon(before[f"g-{number}"])
        world.request(migration, f"g-{number}")
        world.run(30)
    assert world.phases() == [Phase.PLACING, Phase.PLANNED], "the other leaf has no room for both"
    assert world.evictions == [("g-0", False)]
    world.controllers_stand = False
    world.replace(evicted)
    world.tell_pod(evicted.metadata.uid)
    world.run(30)
    assert world.nodes_of("g-") == {"g-0": "s1-l1-3", "g-1": before["g-1"]}
    assert world.migrations["default/first"].phase is Phase.DONE


def test_nodes_and_domains_may_be_avoided() -> None:
    world = World(RECOVERY_ENABLED, THREE_LEAVES)
    before = run_gang(world, "g", 1)
    leaf = "/".join(before["g-0"].split("-")[:2])
    world.request("drain", "g-0", avoid=[leaf])
    world.run(3)
    assert world.phases() == [Phase.DONE]
    assert "/".join(world.nodes_of("g")["g-0"].split("-")[:2]) != leaf


def test_a_migration_that_names_a_part_of_a_gang_reports_that_the_whole_gang_could_move() -> None:
    world = World(RECOVERY_ENABLED, THREE_LEAVES)
    before = run_gang(world, "g")
    leaf = "/".join(before["g-0"].split("-")[:2])
    world.request("part", "g-0", avoid=[leaf])
    world.run(3)
    status, reason, message = world.condition("Reserved")
    assert (status, reason) == ("False", "NoRoom")
    assert message.endswith(f"a Migration that names all its {len(before)} pods moves it as a whole")
    world.cancel("default/part")
    world.request("whole", *before, avoid=[leaf])
    world.run(3)
    assert world.phases() == [Phase.DONE]
    assert leaf not in {"/".join(node.split("-")[:2]) for node in world.nodes_of("g").values()}


@pytest.mark.parametrize(
    ("pods", "reason"),
    [([], "NoPods"), (["nobody"], "UnknownPod"), (["bare"], "BarePod"), (["a-0", "b-0"], "SeveralGangs")],
)
def test_what_can_not_be_fails_with_a_reason_and_an_event(pods: list[str], reason: str) -> None:
    world = World(RECOVERY_ENABLED, THREE_LEAVES)
    world.add(make_pod("bare", gpus=8, uid="bare"))
    run_gang(world, "a")
    run_gang(world, "b")
    world.request("wrong", *pods)
    world.run(3)
    assert world.phases() == [Phase.FAILED]
    assert world.condition("Placed")[1] == reason
    (event,) = [instruction for instruction in world.emitted if isinstance(instruction, EmitMigrationEvent)]
    assert event.warning and event.reason == "MigrationFailed"
    assert not world.evictions


def test_pods_that_a_budget_keeps_are_reported_by_one_event_that_names_the_first() -> None:
    world = World(RECOVERY_ENABLED, THREE_LEAVES)
    run_gang(world, "g", 3)
    world.blocked = {"g-0", "g-1", "g-2"}
    world.request("please", *world.blocked)
    world.run(60)
    events = [instruction for instruction in world.emitted if isinstance(instruction, EmitMigrationEvent)]
    assert [(event.reason, event.message) for event in events] == [
        ("DisruptionBudget", "pod g-0 can't be evicted: a disruption budget keeps it")
    ]
    assert world.condition("Evicted")[2] == "pod g-0 can't be evicted: a disruption budget keeps it"


def test_a_target_to_avoid_must_be_there() -> None:
    world = World(RECOVERY_ENABLED, THREE_LEAVES)
    run_gang(world, "g")
    world.request("wrong", "g-0", avoid=["s1/l1", "s1/l9"])
    world.run(3)
    assert world.phases() == [Phase.FAILED]
    status, reason, message = world.condition("Placed")
    assert (status, reason) == ("False", "UnknownNode") and "'s1/l9'" in message
    (event,) = [instruction for instruction in world.emitted if isinstance(instruction, EmitMigrationEvent)]
    assert event.warning and not world.evictions


@pytest.mark.parametrize("gives", [False, True])
def test_none_makes_room_for_itself_or_in_a_circle(gives: bool) -> None:
    world = World(RECOVERY_ENABLED, THREE_LEAVES)
    run_gang(world, "g", 3)
    for name, pod, other in (("a", "g-0", "a"), ("b", "g-1", "c"), ("c", "g-2", "b")):
        world.request(name, pod, makesRoomFor=f"default/{other}", leaveSpares=gives)
    world.run(120, step=5.0)
    assert world.phases() == [Phase.FAILED] * 3
    assert {condition.reason for m in world.migrations.values() for condition in m.status.conditions} == {"Circular"}
    assert len([instruction for instruction in world.emitted if isinstance(instruction, EmitMigrationEvent)]) == 3
    assert not world.evictions


@pytest.mark.parametrize(("pod", "reason"), [("bare", "BarePod"), ("high", "NotLent")])
def test_no_pod_is_evicted_for_a_migration_without_a_lent_spare(pod: str, reason: str) -> None:
    """A user writes a Migration as the scheduler does, to get pods evicted without a node for their replacements."""
    world = World(RECOVERY_ENABLED, THREE_LEAVES)
    where = run_gang(world, "g", 1)
    world.blocked = {"g-0"}
    world.request("waits", "g-0")
    world.run(2)
    target = world.one().status.moves[0].to
    assert target not in where.values()
    world.put(pod, target, 0, bare=pod == "bare")
    world.run(1)
    wanted = MigrationSpec(makes_room_for="default/waits", leave_spares=True, pods=[MigrationPod(pod, pod)])
    created = world._create("default", "gives", wanted)
    assert created is not None
    world.recovery.migration_seen(created, world.now)
    world.run(20)
    gives = world.migrations["default/gives"]
    assert gives.phase is Phase.FAILED and gives.status.conditions[0].reason == reason
    assert {name for name, _ in world.evictions} == {"g-0"}


def test_two_migrations_of_one_pod_are_one_too_many() -> None:
    world = World(RecoverySpec(enabled=True, dry_run=True), THREE_LEAVES)
    run_gang(world, "g")
    world.request("first", "g-0")
    world.run(1)
    world.request("second", "g-0")
    world.run(1)
    assert world.phases() == [Phase.PLANNED, Phase.FAILED]


def test_pods_that_are_not_to_be_moved_are_moved_from_dead_nodes_only() -> None:
    world = World(FORCED, THREE_LEAVES)
    pods = [
        make_pod("m", gpus=8, uid="m", owner=controlled_by("ReplicaSet", "m"), annotations={"movable": "false"}),
    ]
    world.add(*pods)
    world.run()
    world.request("please", "m")
    world.run(2)
    assert world.phases() == [Phase.FAILED] and world.condition("Placed")[1] == "NotMovable"
    world.fail(*world.nodes_of("m").values())
    world.run(15)
    assert world.phases() == [Phase.FAILED, Phase.DONE]


def test_pods_alone_get_seats_by_their_controller() -> None:
    world = World(FORCED, THREE_LEAVES)
    owner = controlled_by("ReplicaSet", "web")
    world.add(*(make_pod(f"web-{n}", gpus=8, uid=f"web-{n}", owner=owner) for n in range(2)))
    world.run()
    lost = world.nodes_of("web")["web-0"]
    world.fail(lost)
    world.run(15)
    assert world.phases() == [Phase.DONE]
    (move,) = world.one().status.moves
    assert world.nodes_of("web")["web-0"] == move.to != lost
    world.check()


def test_a_disruption_budget_is_respected_and_named_in_the_condition() -> None:
    world = World(RECOVERY_ENABLED, THREE_LEAVES)
    run_gang(world, "g")
    world.blocked.add("g-0")
    world.request("please", "g-0")
    world.run(60)
    assert world.phases() == [Phase.EVICTING]
    assert world.condition("Evicted")[1] == "DisruptionBudget"
    assert 2 <= len(world.evictions) <= 4, "tried again, at a pace that slows"
    world.blocked.clear()
    world.run(60)
    assert world.phases() == [Phase.DONE]


def test_a_node_that_is_well_before_anything_was_evicted_cancels() -> None:
    world = World(RecoverySpec(enabled=True, limits=RecoveryLimits(per_hour=1)), THREE_LEAVES)
    first, second = run_gang(world, "a"), run_gang(world, "b")
    world.fail(first["a-0"])
    world.run(12)
    world.fail(second["b-0"])
    world.run(15)
    (key,) = [key for key in world.migrations if key.startswith("default/b-")]
    waiting = world.migrations[key]
    assert waiting.status.phase == "Planned"
    assert (
        next(condition for condition in waiting.status.conditions if condition.type == "Reserved").reason == "Limited"
    )
    world.heal(second["b-0"])
    world.run(2)
    assert world.migrations[key].status.phase == "Cancelled"
    assert "b-0" not in [name for name, _ in world.evictions]


@pytest.mark.parametrize("limits", [RecoveryLimits(at_once=1), RecoveryLimits(per_namespace=1)])
def test_no_more_at_once_than_configured(limits: RecoveryLimits) -> None:
    world = World(RecoverySpec(enabled=True, limits=limits), THREE_LEAVES)
    first, second = run_gang(world, "a"), run_gang(world, "b")
    world.controllers_stand = True
    world.request("one", "a-0")
    world.request("two", "b-0")
    world.run(5)
    assert sorted(map(str, world.phases())) == ["Placing", "Planned"]
    assert first and second
    placing = next(migration for migration in world.migrations.values() if migration.phase is Phase.PLACING)
    world.cancel(placing.key)
    world.run(5)
    assert world.phases() == [Phase.PLACING]


def test_a_target_that_fails_before_the_eviction_is_planned_again() -> None:
    world = World(RecoverySpec(enabled=True, dry_run=True), THREE_LEAVES)
    run_gang(world, "g")
    world.request("please", "g-0")
    world.run(2)
    target = world.one().status.moves[0].to
    world.fail(target)
    world.recovery.configure(RECOVERY_ENABLED, world.now)
    world.run(5)
    assert world.phases() == [Phase.DONE]
    assert world.one().status.moves[0].to != target


def test_seats_of_two_failures_are_two() -> None:
    world = World(FORCED, {"s1/l1": 8, "s1/l2": 8})
    a, b = run_gang(world, "a", 3), run_gang(world, "b", 3)
    world.fail(a["a-0"], b["b-1"])
    world.run(20)
    assert world.phases() == [Phase.DONE, Phase.DONE]
    targets = [migration.status.moves[0].to for migration in world.migrations.values()]
    assert len(set(targets)) == 2
    world.check()


def test_a_leaf_that_fails_is_one_cause_for_each_gang() -> None:
    world = World(FORCED, {"s1/l1": 4, "s1/l2": 4, "s2/l1": 4})
    where = run_gang(world, "g", 4)
    world.fail(*where.values())
    world.run(20)
    migration = world.one()
    assert migration.phase is Phase.DONE
    assert "4 of its 4 nodes are not ready" in migration.spec.cause
    assert len({node.rpartition("-")[0] for node in world.nodes_of("g").values()}) == 1
    assert not set(world.nodes_of("g").values()) & set(where.values())
    world.check()


def test_a_quota_that_is_full_counts_the_pods_that_leave_only_once() -> None:
    config = "{quotas: [{namespaces: [default], hard: {gpus: 16}}]}"
    world = World(FORCED, THREE_LEAVES, config)
    where = run_gang(world, "g")
    world.fail(where["g-0"])
    world.run(15)
    assert world.phases() == [Phase.DONE]
    assert len(world.nodes_of("g-")) == 2
    world.check()


def test_a_pod_that_was_evicted_is_forced_as_soon_as_its_node_has_been_dead_for_long_enough() -> None:
    """Not ten seconds after it was asked."""
    world = World(FORCED, {"s1/l1": 4})
    world.gang("g", 2)
    world.run()
    world.fail(world.nodes_of("g")["g-0"])
    world.run(7)
    world.request("please", "g-0")
    world.run(2)
    assert "g-0" in world.pods
    world.run(3)
    assert "g-0" not in world.pods


def test_a_planned_migration_off_a_dead_node_waits_while_most_nodes_look_dead() -> None:
    world = World(RecoverySpec(enabled=True), {"s1/l1": 4})
    before = run_gang(world, "g", 4)
    world.fail(before["g-0"])
    world.run(12)
    assert world.phases() == [Phase.PLANNED] and world.condition("Reserved")[1] != "MostNodesNotReady"
    world.fail(before["g-1"], before["g-2"])
    world.run(12)
    assert {migration.phase for migration in world.migrations.values()} == {Phase.PLANNED}
    _, reason, message = world.condition("Reserved")
    assert reason == "MostNodesNotReady" and "3 of 4 nodes are not ready" in message


def test_further_nodes_that_fail_while_most_look_dead_cause_no_writes() -> None:
    """The API server may be in trouble then, and each waiting Migration would be written for each node."""
    world = World(RecoverySpec(enabled=True), {"s1/l1": 8})
    before = list(run_gang(world, "g", 8).values())
    world.fail(*before[:2])
    world.run(12)
    assert world.phases() and set(world.phases()) == {Phase.PLANNED}
    world.fail(*before[2:5])
    world.run(12)
    assert world.condition("Reserved")[1] == "MostNodesNotReady"
    world.emitted.clear()
    revision = world.revision
    for node in before[5:]:
        world.fail(node)
        world.run(2)
    assert world.revision == revision
    assert not world.emitted
    world.heal(*before[2:])
    world.run(2)
    (warning,) = [instruction for instruction in world.emitted if isinstance(instruction, Warn)]
    assert "most nodes are ready again" in warning.message
