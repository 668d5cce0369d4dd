"""Pods of other namespaces are too large to be read: gangs that lose a node near them are healed without delay."""

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from tests.kube.virtual import virtual_time
from tests.recovery.gang_scenes import KEY, SPEC, gang_with_neighbours
from tests.recovery.world import World
from tests.scheduling.driver import copies
from topo_scheduler.api.migrations import Phase
from topo_scheduler.kube.connection.client import Client
from topo_scheduler.kube.connection.errors import TooLarge
from topo_scheduler.kube.reading.owners import OwnerDirectory
from topo_scheduler.recovery.controller.pod_reader import LARGE_AGAIN_SECONDS, LARGE_PODS_OF_NAMESPACE, PodReader
from topo_scheduler.recovery.model.instructions import LearnPods, RecoveryInstruction
from topo_scheduler.scheduling.instructions import PodRef
from topo_scheduler.scheduling.scheduler_view import SchedulerControl

HOSTILE = "hostile"
LARGE_PODS = [f"large{number}" for number in range(LARGE_PODS_OF_NAMESPACE + 2)]


class _Reader(PodReader):
    """Reads the pods of a world, of which some are too large."""

    world: World

    async def _read(self, pod: PodRef) -> None:
        await asyncio.sleep(0.1)
        if pod.uid in LARGE_PODS:
            raise TooLarge("it has more than 4,194,304 bytes as JSON")
        if pod.uid in self.world.pods:
            self.world.d.engine.pods_reported(copies([self.world.pods[pod.uid]]), self.world.now)


class _WorldWithReader(World):
    """A world in which recovery reads pods as in a cluster, later than it asks for them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.tasks: list[asyncio.Task[None]] = []
        nothing = cast("Any", None)
        self.reader = _Reader(
            cast("Client", nothing),
            cast("SchedulerControl", nothing),
            cast("OwnerDirectory", nothing),
            lambda: self.now,
            self._start_task,
            lambda: self.recovery,
            lambda: None,
        )
        self.reader.world = self

    def _start_task(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self.tasks.append(asyncio.create_task(work, name=name))

    def carry_out(self, instruction: RecoveryInstruction) -> None:
        if isinstance(instruction, LearnPods):
            self.reader.learn(instruction.pods, instruction.migration)
        else:
            super().carry_out(instruction)

    async def pass_time(self, seconds: float, step: float = 0.05) -> None:
        for _ in range(round(2 * seconds)):
            self.run(0.5, step=step)
            await asyncio.sleep(0.5)

    def phase_of(self, gang: str) -> Phase | None:
        """Return the phase of the Migration of a gang."""
        (phase,) = (migration.phase for key, migration in self.migrations.items() if f"/{gang}-" in key)
        return phase

    def stop(self) -> None:
        for task in self.tasks:
            task.cancel()


def _after_restart(large: int) -> tuple[_WorldWithReader, str]:
    """Return a world with a new leader, and a node of a gang beside which another namespace has large pods."""
    world = _WorldWithReader(SPEC, {"s1/l1": 4, "s1/l2": 1})
    failed, (other,) = gang_with_neighbours(world)
    for name in LARGE_PODS[:large]:
        world.put(name, other, 0, namespace=HOSTILE)
    world.start()
    return world, failed


@pytest.mark.parametrize("large", [2, len(LARGE_PODS)])
@virtual_time
async def test_a_gang_is_healed_while_migrations_of_large_pods_wait(large: int) -> None:
    world, failed = _after_restart(large)
    for name in LARGE_PODS[:large]:
        world.request(name, name, namespace=HOSTILE)
    await world.pass_time(3)
    conditions = [world.migrations[f"{HOSTILE}/{name}"].status.conditions[0] for name in LARGE_PODS[:large]]
    assert {condition.reason for condition in conditions} == {"PodNotRead"}
    world.fail(failed)
    await world.pass_time(5)
    assert world.phase_of("gv") is Phase.DONE
    world.stop()


def _two_gangs_after_restart() -> tuple[_WorldWithReader, list[str]]:
    """Return a world with a new leader, and nodes of two gangs and of a hostile pod: only neighbours make room."""
    world = _WorldWithReader(SPEC, {"s1/l1": 9, "s1/l2": 1})
    elsewhere = world.put("elsewhere", "s1-l2-1", 7)
    for name, size in (("b", 3), ("a", 2)):
        world.gang(name, size)
        world.run(1)
    used = world.nodes_of("").values()
    own, *others = [name for name in world.node_objects if name not in used]
    world.put("own", own, 8, namespace=HOSTILE, priority=5)
    for number, node in enumerate(others):
        world.put(f"small{number}", node, 1, namespace="t", ran=1)
    world.put(LARGE_PODS[0], others[0], 0, namespace=HOSTILE)
    world.put("small", "s1-l2-1", 1, namespace="t")
    del world.pods[elsewhere.metadata.uid]
    world.tell_pod(elsewhere.metadata.uid)
    failed = [own, world.nodes_of("a")["a-0"], world.nodes_of("b")["b-0"]]
    world.start()
    return world, failed


@pytest.mark.parametrize("reader", ["large", "own"])
@virtual_time
async def test_no_plan_of_several_migrations_waits_for_a_pod_that_can_not_be_read(reader: str) -> None:
    """A Migration that names the pod waits for it, or one that heals a pod beside it: for as long as it exists."""
    world, (own, *failed) = _two_gangs_after_restart()
    if reader == "large":
        world.request("large", LARGE_PODS[0], namespace=HOSTILE)
    await world.pass_time(3)
    world.fail(*failed, *([own] if reader == "own" else ()))
    await world.pass_time(4)
    assert [world.phase_of(gang) for gang in "ab"] == [Phase.DONE, Phase.DONE]
    world.stop()


@virtual_time
async def test_a_migration_reports_that_it_waits_for_pods_nearby_that_are_being_read() -> None:
    world, failed = _after_restart(1)
    world.reader.reading[LARGE_PODS[0]] = ""  # its read takes long
    world.fail(failed)
    await world.pass_time(5)
    (migration,) = (migration for migration in world.migrations.values() if migration.metadata.namespace == "default")
    (condition,) = migration.status.conditions
    assert (condition.type, condition.status, condition.reason) == ("Reserved", "False", "Searching")
    assert "no node is free for 1 pod by the rules; the scheduler first reads other pods nearby" in condition.message
    world.recovery.learned(LARGE_PODS[:1])
    await world.pass_time(2)
    assert world.phase_of("gv") is Phase.DONE
    world.stop()


@virtual_time
async def test_a_migration_reports_which_pod_of_its_namespace_nearby_can_not_be_read() -> None:
    world, failed = _after_restart(0)
    (free,) = {"s1-l1-1", "s1-l1-2", "s1-l1-3", "s1-l1-4"} - set(world.nodes_of("gv").values())
    world.put(LARGE_PODS[0], free, 0)
    world.start()
    world.fail(failed)
    for _ in range(2 * round(LARGE_AGAIN_SECONDS)):
        await world.pass_time(1)
        if KEY in world.migrations and world.migrations[KEY].phase is Phase.PLANNED:
            break
    await world.pass_time(2)
    (condition,) = world.migrations[KEY].status.conditions
    assert condition.reason == "PodNotRead" and "pod default/large0 can't be read" in condition.message
    version = world.migrations[KEY].metadata.resource_version
    await world.pass_time(1.5 * LARGE_AGAIN_SECONDS, step=0.5)
    assert world.migrations[KEY].metadata.resource_version == version, "it is written once"
    world.stop()
