"""Each Migration belongs to one scheduler; the others neither write to it, nor hold seats or evict pods for it."""

import msgspec
import pytest

from tests.helpers import EPOCH, SCHEDULER, controlled_by, make_pod
from tests.kube.virtual import virtual_time
from tests.kube.world import world as kube_world
from tests.recovery.runners import runner_of
from tests.recovery.world import RECOVERY_ENABLED, THREE_LEAVES, World, run_gang
from topo_scheduler.api.migrations import Migration, MigrationPod, MigrationSpec, MigrationStatus, Phase
from topo_scheduler.api.objects import ObjectMeta
from topo_scheduler.api.recovery import FinishedSpec, RecoveryLimits, RecoverySpec
from topo_scheduler.recovery.controller.disabled import without_recovery
from topo_scheduler.recovery.model.instructions import EmitMigrationEvent, WriteStatus
from topo_scheduler.recovery.model.ownership import UNANSWERED_SECONDS, UNCLAIMED_SECONDS, answers_at, bound_pods
from topo_scheduler.recovery.model.seating import find_moving_pod
from topo_scheduler.recovery.planning.relocation import MAX_READ_PODS, unread_neighbours
from topo_scheduler.recovery.planning.voluntary_moves import find_pods_to_read
from topo_scheduler.scheduling.time_slicing import whole

OTHER = "other"
NODE = "s2-l1-1"


def world_with(*schedulers: str, named: str = SCHEDULER) -> World:
    """Return a world with a bound pod of each of some schedulers: ``pod-0``, ``pod-1`` and so on."""
    world = World(RECOVERY_ENABLED, THREE_LEAVES, scheduler=named)
    for number, scheduler in enumerate(schedulers):
        name = f"pod-{number}"
        owner = controlled_by("ReplicaSet", name)
        world.add(make_pod(name, gpus=1, uid=name, owner=owner, scheduler=scheduler, node=NODE))
    return world


def _untouched(world: World, key: str) -> bool:
    migration = world.migrations[key]
    return migration.status == MigrationStatus() and not any(
        isinstance(instruction, EmitMigrationEvent) for instruction in world.emitted
    )


def _by_uid(world: World, name: str, *pods: str) -> None:
    world.request(name, pods=[{"name": pod, "uid": pod} for pod in pods])


# ---------------------------------------------------------------- Migrations without the name of a scheduler


@pytest.mark.parametrize("by_uid", [True, False])
def test_one_for_pods_of_another_scheduler_is_left_alone(by_uid: bool) -> None:
    world = world_with(OTHER, OTHER)
    if by_uid:
        _by_uid(world, "m", "pod-0", "pod-1")
    else:
        world.request("m", "pod-0", "pod-1")
    world.run(200, step=5)
    assert _untouched(world, "default/m") and not world.evictions
    world.run(UNANSWERED_SECONDS - 200 + 5, step=5)
    assert world.phases() == [Phase.FAILED], "its scheduler does not answer"
    assert not world.evictions
    migrations = world.recovery.migrations
    assert not len(migrations) and not migrations._memory._bytes, "nothing of it is kept"


@pytest.mark.parametrize("pods", [("pod-0", "pod-1"), ("nobody", "pod-1", "pod-0"), ("pod-2", "pod-0")])
def test_of_several_schedulers_that_of_the_first_pod_refuses_it(pods: tuple[str, ...]) -> None:
    """kube-scheduler carries out no Migration, so its pods don't count."""
    schedulers = ("first", "second", "default-scheduler")
    first = "second" if pods[0] == "nobody" else "first"
    for named in ("first", "second", SCHEDULER):
        world = world_with(*schedulers, named=named)
        world.request("m", *pods)
        world.run(200, step=5)
        if named == first:
            assert world.phases() == [Phase.FAILED] and world.one().status.scheduler_name == named
        else:
            assert _untouched(world, "default/m")
        assert not world.evictions


@pytest.mark.parametrize("pod", ["nobody", "pod-0"])
def test_of_no_scheduler_the_one_with_the_default_name_refuses_it_at_once_and_others_later(pod: str) -> None:
    world = world_with("default-scheduler")
    world.request("m", pod)
    world.run()
    assert world.phases() == [Phase.FAILED]
    world = world_with("default-scheduler", named="renamed")
    world.request("m", pod)
    world.run(UNCLAIMED_SECONDS - 1)
    assert _untouched(world, "default/m")
    world.run(2)
    assert world.phases() == [Phase.FAILED] and world.one().status.scheduler_name == "renamed"


def test_one_whose_pod_appears_while_it_belongs_to_none_goes_to_the_scheduler_of_that_pod() -> None:
    world = world_with(named="renamed")
    world.request("m", "pod-0")
    world.run(5)
    world.add(make_pod("pod-0", gpus=1, uid="pod-0", scheduler=OTHER, node=NODE))
    world.run(100, step=5)
    assert _untouched(world, "default/m")


def test_without_recovery_no_scheduler_answers_at_once_that_there_is_no_such_pod() -> None:
    view = world_with(OTHER).view
    meta = ObjectMeta(name="m", namespace="default", creation_timestamp="1970-01-01T00:01:40Z")
    pods = [MigrationPod("nobody"), MigrationPod("pod-0")]
    nobodys = Migration(metadata=meta, spec=MigrationSpec(pods=pods[:1]))
    theirs = Migration(metadata=meta, spec=MigrationSpec(pods=pods))
    for migration, at in ((nobodys, 130.0), (theirs, 430.0)):
        assert answers_at(view, migration, first=False) == at
        assert answers_at(view, migration, first=False, bound=lambda: bound_pods(view)) == at
    answer = without_recovery(nobodys, "here", EPOCH)
    assert answer is not None and answer[0].status.scheduler_name == "here"


# ---------------------------------------------------------------- Migrations that name a scheduler


def test_one_that_names_another_scheduler_is_left_alone_whatever_its_pods() -> None:
    world = World(RECOVERY_ENABLED, THREE_LEAVES)
    run_gang(world, "g")
    world.request("m", "g-0", schedulerName=OTHER)
    world.run(200, step=5)
    assert _untouched(world, "default/m") and not world.evictions
    world.run(UNANSWERED_SECONDS, step=5)
    assert world.phases() == [Phase.FAILED] and not world.evictions
    assert world.condition("Placed")[1] == "NotOurs" and f"scheduler {OTHER}" in world.condition("Placed")[2]
    events = [instruction for instruction in world.emitted if isinstance(instruction, EmitMigrationEvent)]
    assert [event.reason for event in events] == ["MigrationFailed"]


def test_one_of_another_scheduler_whose_failure_is_not_written_at_once_moves_no_pod_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(RECOVERY_ENABLED, THREE_LEAVES)
    run_gang(world, "g")
    world.request("m", "g-0", schedulerName=OTHER)
    world.run(UNANSWERED_SECONDS - 10, step=5)
    monkeypatch.setattr(world, "_patch", lambda _: None)
    world.run(100, step=5)
    assert _status(world) == MigrationStatus() and not world.evictions
    monkeypatch.undo()
    world.run(100, step=5)
    assert world.phases() == [Phase.FAILED] and not world.evictions


@virtual_time
async def test_one_of_another_scheduler_fails_also_while_recovery_is_off() -> None:
    """Otherwise it would be this scheduler's from then on, and its pods would move once recovery is on."""
    async with kube_world() as w:
        runner = runner_of(w, None, lambda _, __: None)
        runner._pods_of_round = dict
        written: list[object] = []
        runner._answer = written.extend  # type: ignore[method-assign,assignment]
        meta = ObjectMeta(name="m", namespace="default", uid="m", creation_timestamp="1970-01-01T00:00:00Z")
        runner.epoch = 1000.0
        runner._answer_one(Migration(metadata=meta, spec=MigrationSpec(scheduler_name=OTHER)))
        status, event = written
        assert isinstance(status, WriteStatus) and isinstance(event, EmitMigrationEvent)
        assert status.status.phase == Phase.FAILED and event.reason == "MigrationFailed"
        assert [condition.reason for condition in status.status.conditions] == ["NotOurs"]


def _status(world: World) -> MigrationStatus:
    return world.one().status


@pytest.mark.parametrize("by_uid", [True, False])
def test_one_that_names_this_scheduler_moves_no_pod_of_another(by_uid: bool) -> None:
    world = world_with(OTHER)
    pod = {"name": "pod-0", "uid": "pod-0"} if by_uid else {"name": "pod-0"}
    world.request("m", pods=[pod], schedulerName=SCHEDULER)
    world.run(200, step=5)
    assert world.phases() == [Phase.FAILED] and not world.evictions
    assert world.condition("Placed")[1] == "NotOurs"


@pytest.mark.parametrize("names", [True, False])
def test_a_status_that_names_a_pod_of_another_scheduler_evicts_nothing(names: bool) -> None:
    """Right before the eviction, whichever client wrote the status: another scheduler, or an earlier version of one."""
    world = world_with(OTHER)
    run_gang(world, "g")
    world.kill.write = world.kill.count + 2  # what would begin the evictions is not written
    world.request("m", "g-0")
    world.run()
    world.kill.write = -1

    def mislead(migration: Migration) -> None:
        (move,) = migration.status.moves
        migration.status.phase = Phase.EVICTING
        migration.status.scheduler_name = SCHEDULER if names else ""
        migration.status.moves = [msgspec.structs.replace(move, pod="pod-0", uid="pod-0", from_=NODE)]

    world.edit("default/m", mislead)
    world.run(200, step=5)
    assert not [name for name, _ in world.evictions if name == "pod-0"]
    assert world.condition("Placed")[1] == "NotOurs"


def test_the_work_of_another_scheduler_holds_no_seats_and_counts_in_no_limit() -> None:
    spec = RecoverySpec(enabled=True, limits=RecoveryLimits(at_once=1, per_hour=1))
    world = World(spec, THREE_LEAVES)
    run_gang(world, "g")
    world.request("theirs", "pod-0", schedulerName=OTHER)

    def carry_out(migration: Migration) -> None:
        migration.status = msgspec.convert(
            {
                "phase": "Evicting",
                "schedulerName": OTHER,
                "times": {"Reserving": "2030-01-01T00:00:00Z"},
                "moves": [{"pod": "pod-0", "uid": "pod-0", "to": "s1-l1-1", "requests": {"gpu": 1}}],
            },
            MigrationStatus,
        )

    world.edit("default/theirs", carry_out)
    before = world.migrations["default/theirs"].status
    world.request("m", "g-0")
    world.run(60)
    assert world.migrations["default/m"].phase is Phase.DONE
    assert world.migrations["default/theirs"].status == before
    assert not world.d.engine.preempting.replacements


def test_what_another_scheduler_has_finished_is_not_deleted() -> None:
    spec = RecoverySpec(enabled=True, keep_finished=FinishedSpec(max_count=0), limits=RecoveryLimits(cooldown=1))
    world = World(spec, THREE_LEAVES)
    for name, scheduler in (("mine", SCHEDULER), ("theirs", OTHER)):
        world.request(name, "nobody", schedulerName=scheduler)
    world.run()

    def finish(migration: Migration) -> None:
        migration.status.phase, migration.status.scheduler_name = Phase.DONE, OTHER

    world.edit("default/theirs", finish)
    world.run(3 * 3600, step=600)
    assert list(world.migrations) == ["default/theirs"]


# ---------------------------------------------------------------- Migrations of this scheduler


def test_each_that_recovery_makes_names_its_scheduler_and_so_does_each_status() -> None:
    for scheduler in (SCHEDULER, "renamed"):
        world = World(RecoverySpec(enabled=True, force_delete=True), THREE_LEAVES, scheduler=scheduler)
        lost = run_gang(world, "g")["g-0"]
        world.fail(lost)
        world.run(60)
        assert world.phases() == [Phase.DONE]
        assert (world.one().spec.scheduler_name, world.one().status.scheduler_name) == (scheduler, scheduler)


@pytest.mark.parametrize("write", range(1, 7))
@pytest.mark.parametrize("served", [True, False], ids=["fields served", "older definition"])
def test_a_renamed_scheduler_goes_on_with_what_it_began_when_the_pods_are_gone(write: int, served: bool) -> None:
    world = World(RECOVERY_ENABLED, THREE_LEAVES, scheduler="renamed")
    if not served:
        world = Pruning(RECOVERY_ENABLED, THREE_LEAVES, scheduler="renamed")
    run_gang(world, "g")
    world.kill.write, world.kill.after = world.kill.count + write, True
    world.request("m", "g-0")
    world.run(100)
    assert world.phases() == [Phase.DONE]
    assert len(world.nodes_of("g-")) == 2
    world.check()


class Pruning(World):
    """An API server with the definition of an earlier version: it drops the names of schedulers."""

    def _patch(self, write: WriteStatus) -> Migration | None:
        write.status.scheduler_name = ""
        return super()._patch(write)

    def _create(self, namespace: str, name: str, spec: MigrationSpec) -> Migration | None:
        return super()._create(namespace, name, msgspec.structs.replace(spec, scheduler_name=""))


def test_with_the_definition_of_an_earlier_version_nothing_is_written_again_and_again() -> None:
    world = Pruning(RecoverySpec(enabled=True, dry_run=True), THREE_LEAVES)
    run_gang(world, "g")
    world.request("m", "g-0")
    world.run(1)
    before = world.revision
    world.run(600, step=5)
    assert world.revision == before and world.phases() == [Phase.PLANNED]


# ---------------------------------------------------------------- pods that a new leader reads


def test_pods_of_other_schedulers_take_no_place_among_those_that_a_new_leader_reads() -> None:
    """Many pods of kube-scheduler in the leaves of a gang: those of this scheduler are read nevertheless."""
    world = World(RECOVERY_ENABLED, THREE_LEAVES)
    run_gang(world, "g")
    world.put("zz-single", "s1-l1-4", 1)
    names = [f"a-{number}" for number in range(MAX_READ_PODS)]
    others = [make_pod(name, cpu="1m", memory="1Mi", uid=name, scheduler=OTHER, node="s1-l1-1") for name in names]
    world.add(*others)
    world.start()
    members = [find_moving_pod(world.view, uid) for uid in ("g-0", "g-1")]
    unread = unread_neighbours(world.view, [pod for pod in members if pod is not None])
    assert {pod.name for pod in unread} == {"g-0", "g-1", "zz-single"}
    uids = sorted(uid for uid, _ in world.view.entries())
    assert {pod.name for pod in whole(find_pods_to_read(world.view, uids, set()))} == {"g-0", "g-1", "zz-single"}
