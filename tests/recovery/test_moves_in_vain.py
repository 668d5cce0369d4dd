"""Users that get pods of others moved, and then do not use the room: soon no pod moves for their namespace."""

from collections.abc import Callable

import pytest

from tests.helpers import controlled_by, make_pod
from tests.recovery.world import World
from topo_scheduler.api.migrations import Cause, Phase
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.recovery import DefragmentationSpec, RecoveryLimits, RecoverySpec
from topo_scheduler.scheduling.preemption.room_by_moves import UNUSED_SECONDS
from topo_scheduler.scheduling.preemption.vain_evictions import USED_AFTER_SECONDS

ON = RecoverySpec(
    enabled=True, defragmentation=DefragmentationSpec(enabled=True), limits=RecoveryLimits(moves_per_hour=1000)
)
CONFIG = (
    "{recovery: {enabled: true, defragmentation: {enabled: true}}, repair: {after: 2s},"
    " preemption: {enabled: false}, reservation: {enabled: false}}"
)
SPINES = 14


def half_used() -> World:
    """In each spine a pod of another tenant keeps a gang of two whole nodes away; one more spine has room for them."""
    leaves = {f"s{number}/l1": 2 for number in range(1, SPINES + 1)}
    world = World(ON, {**leaves, "rest/l1": 4}, CONFIG)
    for number in range(1, SPINES + 1):
        world.put(f"v{number}", f"s{number}-l1-1", 2, namespace="theirs")
    world.kubelets_dead |= world.node_objects.keys()  # pods end only when the test says so
    return world


def hostile_gang(world: World, number: int, namespace: str = "evil") -> list[Pod]:
    """A gang asks for both nodes of a spine."""
    name = f"{namespace}-{number}"
    pods = [
        make_pod(
            f"{name}-{index}",
            uid=f"{name}-{index}",
            namespace=namespace,
            gpus=8,
            owner=controlled_by("Job", name),
            annotations={"gang-name": name, "gang-size": "2"},
            created=world.now,
        )
        for index in range(2)
    ]
    for pod in pods:
        pod.spec.node_selector = {"topology.scheduler/spine": f"s{number}"}
    world.add(*pods)
    return pods


def going(world: World) -> list[Pod]:
    return [pod for pod in world.pods.values() if pod.metadata.deletion_timestamp]


def run_until_evicted(world: World, seconds: int = 30) -> list[Pod]:
    """Let time pass until pods are evicted; return these."""
    for _ in range(seconds):
        if evicted := going(world):
            return evicted
        world.run(1)
    return []


def delete(world: World, *pods: Pod) -> None:
    for pod in pods:
        if world.pods.pop(pod.metadata.uid, None) is not None:
            world.tell_pod(pod.metadata.uid)


def end(world: World, pods: list[Pod]) -> None:
    for pod in pods:
        world.finish_pod(pod.metadata.uid)


def is_deleted(world: World, pods: list[Pod]) -> None:
    delete(world, *pods)


def loses_its_migration(world: World, pods: list[Pod]) -> None:
    """Users may delete the Migrations of their namespace: also then the room was made for their gang."""
    key = next(key for key, migration in world.migrations.items() if migration.cause is Cause.PENDING_GANG)
    world.cancel(key)
    delete(world, *pods)


@pytest.mark.parametrize("spoil", [is_deleted, loses_its_migration])
def test_gangs_that_are_deleted_once_others_are_evicted_have_few_others_moved(
    spoil: Callable[[World, list[Pod]], None],
) -> None:
    world = half_used()
    evictions = 0
    for number in range(1, SPINES + 1):
        pods = hostile_gang(world, number)
        if evicted := run_until_evicted(world, 15):
            evictions += len(evicted)
            world.run(1)
            spoil(world, pods)
            end(world, evicted)
        delete(world, *pods)
        world.run(1)
    assert 2 <= evictions <= 6, "after 0, 0, 10, 20, 40 and 80 seconds"


def evict_in_vain(world: World, rounds: int) -> None:
    for number in range(1, rounds + 1):
        pods = hostile_gang(world, number)
        evicted = run_until_evicted(world)
        assert evicted
        world.run(1)
        delete(world, *pods)
        end(world, evicted)
        world.run(1)


def test_the_reason_says_why_no_pod_moves_and_other_namespaces_go_on() -> None:
    world = half_used()
    evict_in_vain(world, 3)
    pods = hostile_gang(world, 4)
    world.run(12)
    assert not going(world)
    assert any(
        "Moving 1 pod" in text and "evicts no pod to make room for this namespace now" in text
        for text in world.d.told(pods[0])
    )
    hostile_gang(world, 5, "other")
    assert [pod.spec.node_name for pod in run_until_evicted(world)] == ["s5-l1-1"]


def test_after_the_pause_a_gang_that_waited_gets_its_room() -> None:
    world = half_used()
    evict_in_vain(world, 2)
    hostile_gang(world, 3)
    end(world, run_until_evicted(world))
    world.run(5)
    assert world.nodes_of("evil-3") == {"evil-3-0": "s3-l1-1", "evil-3-1": "s3-l1-2"}


def test_gangs_that_are_bound_for_some_time_and_then_deleted_are_no_reason() -> None:
    world = half_used()
    for number in range(1, SPINES + 1):
        pods = hostile_gang(world, number)
        evicted = run_until_evicted(world)
        assert len(evicted) == 1
        end(world, evicted)
        world.run(3)
        assert len(world.nodes_of(f"evil-{number}")) == 2
        world.run(USED_AFTER_SECONDS)
        delete(world, *pods)
        world.run(1)


def test_gangs_that_are_deleted_right_after_their_binds_are_a_reason() -> None:
    world = half_used()
    for number in (1, 2):
        pods = hostile_gang(world, number)
        end(world, run_until_evicted(world))
        world.run(3)
        assert len(world.nodes_of(f"evil-{number}")) == 2
        delete(world, *pods)
        world.run(1)
    hostile_gang(world, 3)
    assert not run_until_evicted(world, seconds=8), "its namespace pauses"


def test_a_gang_that_does_not_use_its_room_keeps_pods_from_moving_for_others_of_its_namespace() -> None:
    """Also before it is certain that the room was made in vain; and afterwards only for a while."""
    world = half_used()
    pods = hostile_gang(world, 1)
    evicted = run_until_evicted(world)
    delete(world, pods[0])
    end(world, evicted)
    world.run(2)
    hostile_gang(world, 2)
    world.run(UNUSED_SECONDS - 5)
    assert not going(world)
    world.run(30)
    assert [pod.spec.node_name for pod in going(world)] == ["s2-l1-1"]


def test_a_gang_that_is_placed_and_not_bound_keeps_pods_from_moving_for_others_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its volumes may have no provisioner, for example."""
    world = half_used()
    hostile_gang(world, 1)
    evicted = run_until_evicted(world)
    with monkeypatch.context() as patched:
        patched.setattr(world, "_binds", lambda: False)
        end(world, evicted)
        world.run(1)
        hostile_gang(world, 2)
        world.run(100, step=5.0)
        assert not going(world)
    world.run(30)
    assert len(world.nodes_of("evil-1")) == 2 and [pod.spec.node_name for pod in going(world)] == ["s2-l1-1"]


def test_pods_that_do_not_leave_are_no_fault_of_the_gang_unless_they_are_of_its_namespace() -> None:
    world = half_used()
    world.recovery.configure(spec := ON.model_copy(update={"reservation_timeout": 120.0}), world.now)
    doubted = world.view.planning.evicted_in_vain
    for own in (False, True):
        for number in (1, 2) if not own else (3, 4):
            if own:
                delete(world, world.pods[f"v{number}"])
                world.put(f"own{number}", f"s{number}-l1-1", 2, namespace="evil")
            pods = hostile_gang(world, number)
            evicted = run_until_evicted(world)
            world.run(spec.reservation_timeout + 30, step=10.0)
            assert all(phase is not None and phase.over for phase in world.phases() if phase is not Phase.EVICTING)
            delete(world, *pods)
            end(world, evicted)
            world.run(1)
        assert doubted("evil", world.now) is own


@pytest.mark.parametrize("taken", [True, False])
def test_room_that_fails_or_that_another_namespace_takes_is_no_fault_of_the_gang(taken: bool) -> None:
    world = half_used()
    doubted = world.view.planning.evicted_in_vain
    for number in (1, 2):
        pods = hostile_gang(world, number)
        evicted = run_until_evicted(world)
        if taken:
            world.put(f"quick{number}", f"s{number}-l1-1", 2, namespace="third", bare=True)
        else:
            world.fail(f"s{number}-l1-1")
        end(world, evicted)
        world.run(UNUSED_SECONDS + 30, step=5.0)
        assert world.nodes_of(f"evil-{number}") == {}
        delete(world, *pods)
        world.run(1)
    assert not doubted("evil", world.now)


def test_two_answers_for_one_deleted_gang_count_once() -> None:
    world = half_used()
    for deleted in ("gone", "gone", "gone too"):
        assert not world.view.planning.evicted_in_vain("evil", world.now)
        world.d.engine.moved_for([], deleted, "evil", world.now + 60, world.now)
        world.now = world.d.now = world.now + 1
        world.run(1)
    assert world.view.planning.evicted_in_vain("evil", world.now)


def test_after_evictions_in_vain_pods_move_for_one_gang_at_a_time() -> None:
    world = half_used()
    evict_in_vain(world, 2)
    for number in range(3, SPINES + 1):
        hostile_gang(world, number)
    world.run(60)
    assert len(going(world)) == 1
    for count in range(2, 4):
        end(world, going(world))
        world.run(40)
        assert len(going(world)) == 1 and len(world.nodes_of("evil")) == 2 * (count - 1)


def test_gangs_that_begin_together_take_turns_once_evictions_were_in_vain() -> None:
    """Their Migrations exist already, and have not begun."""
    world = half_used()
    world.recovery.configure(ON.model_copy(update={"dry_run": True}), world.now)
    for number in range(3, SPINES + 1):
        hostile_gang(world, number)
    world.run(120)
    assert world.phases() == [Phase.PLANNED] * (SPINES - 2)
    for deleted in ("gone", "gone too"):
        world.d.engine.moved_for([], deleted, "evil", world.now, world.now)
        world.now = world.d.now = world.now + 1
    world.recovery.configure(ON, world.now)
    world.run(5)
    assert not going(world)
    condition = next(iter(world.migrations.values())).status.conditions[0]
    assert condition.reason == "InVain" and "evicts no pod to make room for this namespace now" in condition.message
    world.run(30)
    assert len(going(world)) == 1
