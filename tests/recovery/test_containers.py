"""Every container of recovery has a row in the table of caps, and keeps to it while users' Migrations come and go."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.bounds import check_containers
from tests.recovery.world import World
from tests.scheduling.driver import copies
from topo_scheduler.api.objects import ContainerState, ContainerStatus, Waiting
from topo_scheduler.api.recovery import RecoverySpec
from topo_scheduler.recovery.detection import pod_failures as module
from topo_scheduler.recovery.planning.joint_planning import JointPlanning, _Plan
from topo_scheduler.recovery.planning.seat_claims import SeatGrant

OTHERS = ("recovery._view", "recovery._control", "recovery.lost_gpus.view")
"""What belongs to the engine."""
MIGRATIONS = 120


def check(world: World) -> None:
    migrations = len(world.migrations)
    check_containers(world.recovery, "recovery", len(world.pods), len(world.node_objects), migrations, OTHERS)


def test_each_container_keeps_to_its_row_while_migrations_of_users_come_and_go() -> None:
    world = World(RecoverySpec(enabled=True, debounce=5, reservation_timeout=60), {"s1/l1": 4, "s1/l2": 4})
    for name in ("a", "b"):
        world.gang(name, 2)
    world.run()
    world.fail(world.nodes_of("a")["a-0"], ready="False")
    for number in range(30):
        world.put(f"absent-{number}", f"absent-{number}", 1, bare=True)
    for round_ in range(2):
        for number in range(MIGRATIONS):
            pods = ["b-0", "b-1"] if number % 2 else [f"invented-{number}"]
            world.request(f"m{round_}-{number}", *pods, cause="x" * 500, avoid=[f"nowhere-{number}"])
        for _ in range(20):
            world.run(1)
            check(world)
        for uid in [uid for uid, pod in world.pods.items() if pod.metadata.deletion_timestamp]:
            world.finish_pod(uid)
        world.run(20)
        check(world)
        for key in list(world.migrations):
            world.cancel(key)
        world.run(5)
        check(world)
    assert not world.migrations


def test_pods_that_crash_without_end_are_remembered_up_to_a_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FAILING_PODS", 50)
    world = World(RecoverySpec(enabled=True), {"s1/l1": 2})
    world.gang("a", 1)
    world.run()
    failures = world.recovery.pod_failures
    failures.decided = lambda uid: True
    (pod,) = world.pods.values()
    waiting = ContainerState(waiting=Waiting(module.CRASHES))
    for number in range(200):
        (crashing,) = copies([pod])
        crashing.metadata.uid = f"u{number}"
        crashing.status.container_statuses = [ContainerStatus("main", waiting, restart_count=99)]
        failures.applied([crashing], world.now)
        failures.deleted([crashing.metadata.uid])
    assert list(failures._failures) == [f"u{number}" for number in range(150, 200)]


def test_migrations_that_end_after_their_reserved_nodes_became_invalid_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(JointPlanning, "_good", lambda *_: False)
    context = SimpleNamespace(tracked={"default/m": None})
    together = JointPlanning(cast("Any", context), lambda: 0.0, cast("Any", None))
    for key in ("default/m", *(f"default/over-{number}" for number in range(100))):
        grant = {key: SeatGrant({"u": "node"})}
        together._plan = _Plan(grant, None, True, 0.0, for_now=False, leaving=(), until=0.0)
        assert together._planned(cast("Any", SimpleNamespace(key=key)), None, 0.0) is None
    assert together._failed == {"default/m", "default/over-99"}
