"""A Migration ends, and gives its seats back, when the workload that it moves is deleted."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
import pytest

from tests.kube.owner_objects import POD_TEMPLATE, create_object, create_ray_cluster
from tests.kube.virtual import now, virtual_time
from tests.kube.world import World as Server
from tests.kube.world import running, world
from tests.recovery.world import RECOVERY_ENABLED, THREE_LEAVES, World, run_gang
from topo_scheduler.api.migration_reasons import ConditionType, MigrationReason
from topo_scheduler.api.migrations import (
    MAX_OWNERS,
    Migration,
    MigrationOwner,
    MigrationPod,
    MigrationSpec,
    MigrationStatus,
    Move,
    Phase,
)
from topo_scheduler.api.objects import ObjectMeta
from topo_scheduler.kube.connection.errors import Unreachable
from topo_scheduler.kube.connection.resources import JOBS
from topo_scheduler.kube.reading.owners import NEEDED_SECONDS, TICK_SECONDS, OwnerDirectory
from topo_scheduler.recovery.controller.eviction_guard import EvictionGuard
from topo_scheduler.recovery.controller.moved_owners import AGAIN_SECONDS, ANSWER_SECONDS, MovedOwners
from topo_scheduler.recovery.model.migration_state import ConditionUpdate, changed_status
from topo_scheduler.scheduling.instructions import PodRef
from topo_scheduler.simulation.apiserver import Delay, Refuse
from topo_scheduler.simulation.apiserver.deletion import DeleteOptions

WHY = "Job g was deleted"
KEY = "default/please"


# ---------------------------------------------------------------- the machine


def test_an_eviction_for_a_deleted_migration_is_not_carried_out_for_another_one_of_its_name() -> None:
    held = World(RECOVERY_ENABLED, THREE_LEAVES)
    run_gang(held, "g")
    held.request("please", "g-0")
    guard = EvictionGuard(cast("MovedOwners", None), lambda: held.recovery)
    uid = held.migrations[KEY].metadata.uid
    assert guard.why_over(KEY, uid) == ""
    held.cancel(KEY)
    assert guard.why_over(KEY, uid)
    held.request("please", "g-1")
    assert guard.why_over(KEY, uid) == f"Migration {KEY} is over"
    assert guard.why_over(KEY, held.migrations[KEY].metadata.uid) == guard.why_over(KEY) == ""


@pytest.mark.parametrize("phase", [Phase.PLANNED, Phase.RESERVING, Phase.EVICTING, Phase.PLACING])
def test_a_migration_whose_owner_is_gone_ends_and_evicts_nothing_more(phase: Phase) -> None:
    held = World(RECOVERY_ENABLED, THREE_LEAVES)
    held.controllers_stand = True  # so that nothing takes the seats
    before = run_gang(held, "g")
    held.request("please", "g-0")
    for _ in range(40):
        if next(iter(held.migrations.values())).status.phase == phase:
            break
        for instruction in held.recovery.step(held.now):
            held.carry_out(instruction)
        held.d.step()
    assert held.phases() == [phase]
    replacements = held.d.engine.preempting.replacements
    held_before, evictions = replacements.knows(KEY), list(held.evictions)
    assert held_before == (phase is not Phase.PLANNED)
    held.recovery.migrations.owner_gone(KEY, WHY)
    assert not replacements.knows(KEY), "at once, whatever is being written"
    held.run(5)
    assert held.phases() == [Phase.CANCELLED] and held.condition("Placed")[1] == "OwnerDeleted"
    assert WHY in next(iter(held.migrations.values())).status.message
    assert held.evictions == evictions and not replacements.knows(KEY)
    assert set(before) >= set(held.nodes_of("g"))


def test_no_migration_is_planned_for_pods_that_were_learned_after_their_owner_was_deleted() -> None:
    world_ = World(RECOVERY_ENABLED, THREE_LEAVES)
    run_gang(world_, "g")
    world_.start()  # a new daemon, for which all pods were bound by an earlier one
    for pod in world_.pods.values():
        controller = pod.metadata.controller
        assert controller is not None
        world_.d.gone[controller.uid] = WHY
    world_.request("please", "g-0")
    world_.run(5)
    assert world_.phases() == [Phase.CANCELLED] and world_.condition("Placed")[1] == "OwnerDeleted"
    assert world_.evictions == []


OWNER = MigrationOwner("batch/v1", "Job", "g", "uid-g")


def test_the_topmost_owners_stand_in_the_status_from_the_next_write_on_and_are_never_dropped() -> None:
    held = World(RECOVERY_ENABLED, THREE_LEAVES)
    held.controllers_stand = True
    run_gang(held, "g")
    held.request("please", "g-0")
    for instruction in held.recovery.step(held.now):
        held.carry_out(instruction)
    assert held.phases() == [Phase.PLANNED] and next(iter(held.migrations.values())).status.owners == []
    held.recovery.owners_read(KEY, [OWNER])
    held.run(5)
    (migration,) = held.migrations.values()
    assert held.phases() == [Phase.PLACING] and migration.status.owners == [OWNER]
    held.start()  # another daemon
    held.run(2)
    held.recovery.owners_read(KEY, [MigrationOwner("batch/v1", "Job", "h", "uid-h")])
    held.recovery.migrations.owner_gone(KEY, WHY)
    held.run(5)
    (migration,) = held.migrations.values()
    assert held.phases() == [Phase.CANCELLED] and [owner.uid for owner in migration.status.owners] == ["uid-g", "uid-h"]


def test_a_status_is_not_written_for_its_owners_alone_and_keeps_few_of_them() -> None:
    migration = Migration(status=MigrationStatus(phase=Phase.PLACING.value, owners=[OWNER]))
    many = [MigrationOwner("batch/v1", "Job", f"j{number}", f"uid-{number}") for number in range(2 * MAX_OWNERS)]
    assert changed_status(migration, 0.0, scheduler="s", owners=many) is None
    status = changed_status(migration, 0.0, scheduler="s", message="else", owners=many)
    assert status is not None and status.owners == [OWNER, *many[: MAX_OWNERS - 1]]


def test_messages_of_a_status_have_escape_codes_for_invisible_characters() -> None:
    hostile, shown = "Ki\u202end\x9b31m was deleted", "Ki\\u202end\\x9b31m was deleted"
    update = ConditionUpdate(ConditionType.RESERVED, status=False, reason=MigrationReason.MALFORMED, message=hostile)
    status = changed_status(Migration(), 0.0, scheduler="s", message=hostile, conditions=[update])
    assert status is not None and [status.message, *(each.message for each in status.conditions)] == [shown, shown]
    again = Migration(status=status)
    assert changed_status(again, 1.0, scheduler="s", message=hostile, conditions=[update]) is None, "nothing changed"


# ---------------------------------------------------------------- what follows the owners


class Moves:
    """One Migration of one pod, whose topmost owner is followed."""

    def __init__(self, server: Server, pod: ObjectMeta | None, owners: OwnerDirectory) -> None:
        self.reads = 0
        self.tasks: list[asyncio.Task[None]] = []
        self.pod = pod
        self.owners = owners
        self.moved = MovedOwners(owners, self._read, self._start, lambda: None)
        move = Move(pod="g-0", uid="uid-g-0", workload="default/g", controller="Job g", gang=True)
        self.migration = Migration(
            metadata=ObjectMeta(name="please", namespace="default", uid="m"),
            spec=MigrationSpec(pods=[MigrationPod("g-0", "uid-g-0")]),
            status=MigrationStatus(phase=Phase.RESERVING, moves=[move]),
        )

    async def _read(self, pod: PodRef) -> ObjectMeta | None:
        self.reads += 1
        if self.reads == 1:
            raise Unreachable("once")
        return self.pod

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self.tasks.append(asyncio.create_task(work, name=name))

    async def follow(self) -> None:
        for _ in range(3):
            self.moved.update({self.migration.key: self.migration})
            await asyncio.gather(*self.tasks)


@asynccontextmanager
async def following(server: Server, owner: dict[str, Any]) -> AsyncIterator[Moves]:
    pod = ObjectMeta(name="g-0", namespace="default", uid="uid-g-0")
    made = server.create_pod("g-0", ownerReferences=[_controlled_by(owner)])
    pod.owner_references = made.metadata.owner_references
    holder: list[Moves] = []
    owners = OwnerDirectory(server.client, needed=lambda uid: holder[0].moved.needs(uid), clock=now)
    holder.append(Moves(server, pod, owners))
    jobs = server.reflector(JOBS, owners.sink(JOBS))  # type: ignore[arg-type]
    async with running(jobs.run(), owners.run()):
        await jobs.synced.wait()
        await holder[0].follow()
        yield holder[0]


def _controlled_by(owner: dict[str, Any]) -> dict[str, Any]:
    meta = owner["metadata"]
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
    }


@pytest.mark.parametrize("propagation", ["Background", "Foreground"])
@virtual_time
async def test_a_job_that_is_deleted_is_known_at_once(propagation: Any) -> None:
    async with world() as server:
        job = create_object(server, "jobs.batch", "g", spec={"template": POD_TEMPLATE})
        async with following(server, job) as moves:
            assert not list(moves.moved.gone()) and moves.moved.needs(job["metadata"]["uid"])
            server.server.store.delete("jobs.batch", "g", "default", DeleteOptions(propagation=propagation))
            await asyncio.sleep(1)
            ((key, why),) = moves.moved.gone()
            assert key == KEY and why.startswith("Job g ")
            moves.moved.clear()
            assert not len(moves.moved) and not moves.moved.needs(job["metadata"]["uid"])


@asynccontextmanager
async def followed_by_a_later_leader(server: Server, *owners: dict[str, Any]) -> AsyncIterator[Moves]:
    """A Migration whose pods are gone, and the owners of which an earlier leader has written into its status."""
    holder: list[Moves] = []
    directory = OwnerDirectory(server.client, needed=lambda uid: holder[0].moved.needs(uid), clock=now)
    moves = Moves(server, None, directory)
    holder.append(moves)
    moves.migration.status.phase = Phase.PLACING
    read = [_controlled_by(owner) for owner in owners]
    moves.migration.status.owners = [
        MigrationOwner(reference["apiVersion"], reference["kind"], reference["name"], reference["uid"])
        for reference in read
    ]
    jobs = server.reflector(JOBS, directory.sink(JOBS))  # type: ignore[arg-type]
    async with running(jobs.run(), directory.run()):
        await jobs.synced.wait()
        await moves.follow()
        yield moves


@pytest.mark.parametrize("deleted", ["before", "after", "made anew"])
@virtual_time
async def test_a_later_leader_knows_of_a_job_that_is_deleted_though_no_pod_is_left(deleted: str) -> None:
    async with world() as server:
        job = create_object(server, "jobs.batch", "g", spec={"template": POD_TEMPLATE})
        if deleted != "after":
            server.server.store.delete("jobs.batch", "g", "default", DeleteOptions(propagation="Background"))
        if deleted == "made anew":
            create_object(server, "jobs.batch", "g", spec={"template": POD_TEMPLATE})
        async with followed_by_a_later_leader(server, job) as moves:
            if deleted == "after":
                assert not list(moves.moved.gone()) and moves.moved.needs(job["metadata"]["uid"])
                server.server.store.delete("jobs.batch", "g", "default", DeleteOptions())
                await asyncio.sleep(1)
            ((key, why),) = moves.moved.gone()
            assert key == KEY and why.startswith("Job g ")


@virtual_time
async def test_a_later_leader_asks_again_for_owners_for_which_the_api_server_did_not_answer() -> None:
    async with world() as server:
        job = create_ray_cluster(server, "g")
        server.server.store.delete("rayclusters.ray.io", "g", "default", DeleteOptions())
        rule = server.server.faults.add(Refuse(503), where=lambda info: "/rayclusters/" in info.path)
        async with followed_by_a_later_leader(server, job) as moves:
            assert not list(moves.moved.gone())
            server.server.faults.remove(rule)
            await moves.follow()
            assert [key for key, _ in moves.moved.gone()] == [KEY]


@virtual_time
async def test_a_permission_to_read_owners_that_is_missing_is_named() -> None:
    refusal = 'jobs.batch "g" is forbidden: User "topo" cannot get resource "jobs" in API group "batch"'
    async with world() as server:
        job = create_object(server, "jobs.batch", "g", spec={"template": POD_TEMPLATE})
        async with following(server, job) as moves:
            await asyncio.sleep(2.0)
            server.server.faults.add(Refuse(403, message=refusal), verb="get", resource="jobs")
            assert await moves.moved.confirm(KEY) == "Job g cannot be read: grant the verb get on jobs.batch"


@virtual_time
async def test_owners_that_could_not_be_read_are_not_confirmed() -> None:
    async with world() as server:
        job = create_object(server, "jobs.batch", "g", spec={"template": POD_TEMPLATE})
        async with following(server, job) as moves:
            assert not await moves.moved.confirm(KEY)
            moves.moved.clear()
            moves.reads = 0  # the next read of the pod fails
            moves.moved.update({moves.migration.key: moves.migration})
            assert await moves.moved.confirm(KEY)
            await asyncio.sleep(AGAIN_SECONDS / 2)
            assert await moves.moved.confirm(KEY), "nothing is known of the owner"
            await moves.follow()
            assert not await moves.moved.confirm(KEY)


@virtual_time
async def test_a_pod_that_could_not_be_read_before_the_migration_was_planned_holds_up_nothing_after_that() -> None:
    async with world() as server:
        job = create_object(server, "jobs.batch", "g", spec={"template": POD_TEMPLATE})
        async with following(server, job) as moves:
            moves.moved.clear()
            planned, moves.reads = moves.migration.status.moves, 0
            moves.migration.status.moves = []
            moves.moved.update({moves.migration.key: moves.migration})
            assert await moves.moved.confirm(KEY)
            moves.migration.status.moves = planned
            await moves.follow()
            assert not await moves.moved.confirm(KEY)


@virtual_time
async def test_a_job_that_is_still_there_ends_nothing_under_a_later_leader() -> None:
    async with world() as server:
        job = create_object(server, "jobs.batch", "g", spec={"template": POD_TEMPLATE})
        async with followed_by_a_later_leader(server, job, create_ray_cluster(server, "whole")) as moves:
            await asyncio.sleep(2 * NEEDED_SECONDS)
            assert not list(moves.moved.gone()) and not await moves.moved.confirm(KEY)


@virtual_time
async def test_what_was_read_is_reported_once_and_is_the_topmost_owner() -> None:
    async with world() as server:
        ray = create_ray_cluster(server, "whole")
        job = create_object(server, "jobs.batch", "g", spec={"template": POD_TEMPLATE}, owner=ray)
        async with following(server, job) as moves:
            ((key, owners),) = moves.moved.take_read()
            assert key == KEY
            assert [(owner.kind, owner.name, owner.uid) for owner in owners] == [
                ("RayCluster", "whole", ray["metadata"]["uid"])
            ]
            assert moves.moved.take_read() == []


@pytest.mark.parametrize("field", ["api_version", "kind", "name", "uid"])
def test_an_owner_that_the_api_server_would_refuse_is_not_recorded(field: str) -> None:
    assert OWNER.fits
    assert not msgspec.structs.replace(OWNER, **{field: "x" * 400}).fits


@virtual_time
async def test_a_job_that_its_owner_creates_again_ends_no_migration_and_the_end_of_that_owner_does() -> None:
    async with world() as server:
        ray = create_ray_cluster(server, "whole")
        job = create_object(server, "jobs.batch", "g", spec={"template": POD_TEMPLATE}, owner=ray)
        async with following(server, job) as moves:
            server.server.store.delete("jobs.batch", "g", "default", DeleteOptions())
            await asyncio.sleep(2 * NEEDED_SECONDS)
            assert not list(moves.moved.gone()) and moves.moved.needs(ray["metadata"]["uid"])
            server.server.store.delete("rayclusters.ray.io", "whole", "default", DeleteOptions())
            assert not await moves.moved.confirm(KEY)
            assert list(moves.moved.gone()) == [(KEY, "RayCluster whole does not exist")], "asked right now"


@virtual_time
async def test_an_owner_that_is_not_watched_is_known_to_be_gone_within_seconds() -> None:
    async with world() as server, following(server, create_ray_cluster(server, "g")) as moves:
        server.server.store.delete("rayclusters.ray.io", "g", "default", DeleteOptions())
        await asyncio.sleep(NEEDED_SECONDS + TICK_SECONDS + 1)
        assert [key for key, _ in moves.moved.gone()] == [KEY]


@virtual_time
async def test_an_owner_that_does_not_answer_is_not_gone_and_not_confirmed() -> None:
    async with world() as server, following(server, create_ray_cluster(server, "g")) as moves:
        server.server.faults.add(Delay(600.0), where=lambda info: "/rayclusters/" in info.path)
        began = now()
        assert await moves.moved.confirm(KEY)
        assert now() - began <= ANSWER_SECONDS + 1
        assert not list(moves.moved.gone())
