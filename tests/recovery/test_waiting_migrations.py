"""Migrations that wait without seats, of which tenants create thousands, delay no others and cost next to nothing."""

import asyncio
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any, cast

import pytest

from tests.kube.virtual import now, virtual_time
from tests.kube.world import world as cluster
from tests.recovery.runners import runner_of
from tests.recovery.world import World
from tests.scheduling.function_calls import calls_of, of_package
from topo_scheduler.api.migrations import Migration, MigrationOwner, MigrationStatus, Phase
from topo_scheduler.api.objects import ObjectMeta
from topo_scheduler.api.recovery import RecoverySpec
from topo_scheduler.kube.reading.owners import OwnerDirectory
from topo_scheduler.kube.writing.migrations import MigrationWriter
from topo_scheduler.recovery.controller import runner as runner_module
from topo_scheduler.recovery.controller.migration_reader import MigrationReader
from topo_scheduler.recovery.controller.moved_owners import CHECKED_MIGRATIONS, MovedOwners
from topo_scheduler.recovery.controller.runner import LONGEST_REST_SECONDS
from topo_scheduler.recovery.core.machine import Recovery
from topo_scheduler.recovery.core.waiting_lines import MIGRATIONS_WITHOUT_PAUSE, PAUSE_PER_MIGRATION_SECONDS
from topo_scheduler.scheduling.instructions import PodRef

SEATED = (Phase.RESERVING, Phase.EVICTING, Phase.PLACING)


class Ticking:
    """A clock that moves on with each reading: a step has time for few Migrations."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._readings = count()

    def __call__(self) -> float:
        return next(self._readings) * self.seconds


def waiting(number: int, clock: Callable[[], float] = lambda: 0.0) -> World:
    """Return a cluster in which a tenant has Migrations for which there is never room."""
    world = World(RecoverySpec(enabled=True, debounce=1), {"s1/l1": 6, "s1/l2": 6}, clock=clock)
    for index in range(number):
        world.put(f"own-{index}", "s1-l1-1", 0, namespace="tenant")
    world.settle()
    for index in range(number):
        world.request(f"wait-{index}", f"own-{index}", namespace="tenant", avoid=["s1"])
    world.settle()
    assert world.phases() == [Phase.PLANNED] * number
    return world


def calls_of_a_step(world: World) -> int:
    def step() -> None:
        world.recovery.step(world.now)
        world.recovery.take_changed()
        world.recovery.next_due()

    return of_package(calls_of(step)).total()


def test_a_step_in_which_nothing_is_due_costs_the_same_however_many_migrations_wait() -> None:
    alone, crowded = waiting(0), waiting(200)
    calls_of_a_step(crowded)
    assert calls_of_a_step(crowded) <= calls_of_a_step(alone) + 20, "6,700 when each step looked at each of them"


def test_migrations_of_a_namespace_with_many_pause_after_a_try_without_result() -> None:
    world = waiting(MIGRATIONS_WITHOUT_PAUSE + 50)
    world.put("other", "s1-l1-1", 0, namespace="other")
    world.request("other", "other", namespace="other", avoid=["s1"])
    world.run(5)
    tracked = world.recovery.migrations.context.tracked
    pauses = [waits.not_before - world.now for key, waits in tracked.items() if key.startswith("tenant/")]
    assert max(pauses) == pytest.approx(50 * PAUSE_PER_MIGRATION_SECONDS)
    assert tracked["other/other"].not_before <= world.now + 1, "it has paused for its search only"


def test_a_migration_that_has_paused_begins_once_there_is_room() -> None:
    world = waiting(MIGRATIONS_WITHOUT_PAUSE + 50)
    for key in list(world.migrations):
        world.edit(key, lambda migration: migration.spec.avoid.clear())
    world.d.engine.world.improve("s1-l1-2")
    world.run(30)
    assert sum(phase is Phase.DONE for phase in world.phases()) > 20


def test_pods_of_a_failed_node_do_not_wait_for_requests() -> None:
    clock = Ticking()
    world = waiting(100, clock)
    world.put("victim", "s1-l2-1", 8, namespace="victims")
    world.settle()
    clock.seconds = 0.004  # a step tries two or three
    world.fail("s1-l2-1")
    world.now = world.d.now = world.now + 3
    steps = 0
    while steps < 200:
        steps += 1
        world.d.engine.world.improve("s1-l1-2")
        for instruction in world.recovery.step(world.now):
            world.carry_out(instruction)
        healing = [migration for migration in world.migrations.values() if migration.metadata.namespace == "victims"]
        if healing and healing[0].phase in SEATED:
            break
        world.now = world.d.now = world.now + 0.05
    assert steps <= 5, "65 when it waited for its turn among requests"


def test_namespaces_take_turns() -> None:
    clock = Ticking()
    world = waiting(100, clock)
    world.put("other", "s1-l2-1", 1, namespace="other")
    world.settle()
    world.now = world.d.now = world.now + 60
    clock.seconds = 0.004
    world.recovery.step(world.now)  # has begun with those of the tenant
    world.request("other", "other", namespace="other")
    steps = 0
    while steps < 200:
        steps += 1
        for instruction in world.recovery.step(world.now):
            world.carry_out(instruction)
        if world.migrations["other/other"].phase in SEATED:
            break
        world.now = world.d.now = world.now + 0.02
    assert steps <= 4, "35 when it waited for all others"


# ---------------------------------------------------------------- pods that were read


def test_a_migration_remembers_only_pods_that_were_read_for_it() -> None:
    world = waiting(3)
    world.put("late", "s1-l2-1", 0)
    tracked = world.recovery.migrations.context.tracked
    tracked["tenant/wait-0"].state = None
    world.recovery.migrations.context.learn(tracked["tenant/wait-0"], [PodRef("default", "late", "late")])
    world.recovery.learned(["late", "unknown"])
    assert [waits.learned for waits in tracked.values()] == [{"late"}, set(), set()]
    del world.pods["late"]
    world.tell_pod("late")
    world.recovery.migrations.context.learn(tracked["tenant/wait-0"], [PodRef("tenant", "own-0", "own-0")])
    assert tracked["tenant/wait-0"].learned == set(), "the pod is gone"
    world.cancel("tenant/wait-0")
    assert not world.recovery.migrations.context.index.is_read("own-0")


def test_a_late_report_of_a_deletion_does_not_concern_a_later_migration_of_that_name() -> None:
    world = World(RecoverySpec(enabled=True), {"s1/l1": 2})
    world.request("m", "nothing")
    first = world.one()
    world.cancel(first.key)
    world.request("m", "nothing")
    world.run(5)
    assert world.phases() == [Phase.FAILED]
    world.recovery.migrations.gone(first.key, first.metadata.uid)
    second = world.one().metadata
    assert world.recovery.migrations.knows(first.key, second.uid, second.resource_version)
    assert len(world.recovery.migrations.context.finished) == 1


# ---------------------------------------------------------------- the runner


class CountedOwners:
    """Owners that are all there."""

    def __init__(self) -> None:
        self.resolved = 0

    def resolve(self, below: ObjectMeta) -> None:
        self.resolved += 1

    async def complete(self, below: ObjectMeta) -> None:
        pass


def owned(number: int) -> Migration:
    meta = ObjectMeta(name=f"m{number}", namespace="tenant", uid=f"m{number}")
    return Migration(
        metadata=meta, status=MigrationStatus(owners=[MigrationOwner("batch/v1", "Job", "j", f"j{number}")])
    )


@virtual_time
async def test_owners_are_checked_when_they_change_and_otherwise_a_few_in_turn() -> None:
    owners, tasks = CountedOwners(), []

    def start(work: Coroutine[Any, Any, None], name: str) -> None:
        tasks.append(asyncio.create_task(work))

    async def read(pod: PodRef) -> None:
        return None

    moved = MovedOwners(cast("OwnerDirectory", owners), read, start, lambda: None)
    moved.update({migration.key: migration for migration in map(owned, range(100))})
    await asyncio.gather(*tasks)
    list(moved.gone())
    assert owners.resolved == 100, "those that were read"
    owners.resolved = 0
    list(moved.gone())
    assert owners.resolved == CHECKED_MIGRATIONS
    moved.owner_changed("j99")
    owners.resolved = 0
    list(moved.gone())
    assert owners.resolved == CHECKED_MIGRATIONS + 1
    moved.update(dict.fromkeys(f"tenant/m{number}" for number in range(100)))
    assert not len(moved) and not moved.needs("j0") and not list(moved.gone())


@virtual_time
async def test_migrations_of_another_namespace_do_not_wait_until_all_of_one_were_read() -> None:
    order: list[str] = []

    class Slow:
        async def read(self, namespace: str, name: str) -> Migration:
            await asyncio.sleep(0.1)
            order.append(f"{namespace}/{name}")
            return Migration()

    tasks = []

    def start(work: Coroutine[Any, Any, None], name: str) -> None:
        tasks.append(asyncio.create_task(work))

    reader = MigrationReader(cast("MigrationWriter", Slow()), start, lambda migration: None, lambda *_: None)
    for number in range(100):
        reader.changed("tenant", f"m{number}", "u", "1")
    await asyncio.sleep(0.05)
    reader.changed("other", "m", "u", "1")
    await asyncio.gather(*tasks)
    assert order.index("other/m") <= 4


@virtual_time
async def test_recovery_rests_after_a_step_that_took_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each change of a pod causes a step; otherwise they would take the whole core."""
    steps: list[float] = []

    class Machine:
        spent = 0.0

        def __getattr__(self, name: str) -> Any:
            return lambda *_: None

        def step(self, at: float) -> list[Any]:
            steps.append(now())
            self.spent += self.takes
            return []

        def take_changed(self) -> dict[str, Any]:
            return {}

        takes = 0.02

    class NoWatcher:
        refused = False

        def __init__(self, *_: Any) -> None:
            pass

        def start(self) -> None:
            pass

        def wrong(self) -> str:
            return ""

        def take(self) -> list[Any]:
            return []

        def forget_unknown(self, nodes: object) -> bool:
            return False

        async def stop(self) -> None:
            pass

    monkeypatch.setattr(runner_module, "Watcher", NoWatcher)
    async with cluster() as w:
        machine = Machine()
        runner = runner_of(w, cast("Recovery", machine), lambda work, name: work.close())
        runner.clock = lambda: now() + machine.spent
        serving = asyncio.create_task(runner._serve())
        for takes, least, limit in ((0.02, 15, 25), (0.0, 500, 1001)):
            machine.takes = takes
            steps.clear()
            for _ in range(1000):
                runner.facts_changed()
                await asyncio.sleep(0.001)
            assert least <= len(steps) <= limit, f"{len(steps)} steps of {takes} s, {LONGEST_REST_SECONDS} s apart"
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
