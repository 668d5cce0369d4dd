"""A pod waits for a MIG slot though enough is free: at most two others move, and it gets the slot that they leave."""

from itertools import count

import msgspec
import pytest

from tests.recovery.slot_world import CONFIG, ON, SlotWorld, slot_world
from tests.recovery.world import Kill
from tests.scheduling.device_driver import DRIVER
from topo_scheduler.api.migrations import Cause, Phase
from topo_scheduler.api.objects import Container, ObjectMeta, Pod, PodSpec
from topo_scheduler.api.recovery import DefragmentationSpec, RecoveryLimits, RecoverySpec
from topo_scheduler.recovery.planning.voluntary_checks import MAX_SLOT_WAIT_SECONDS

TWO_GPUS = {"a": "s1-l1-1/gpu-0-1g-1", "b": "s1-l1-1/gpu-1-3g-0"}
"""No GPU is whole. If a goes to the other one, the first is."""
CHAIN = {
    "a": "s1-l1-1/gpu-0-3g-0",
    "b": "s1-l1-1/gpu-1-1g-1",
    "c": "s1-l1-1/gpu-1-3g-4",
    "d": "s1-l1-2/gpu-0-3g-0",
    "e": "s1-l1-2/gpu-0-2g-4",
}
"""A whole GPU needs a to leave. a has another slot only once b leaves it, and b has one on the other node only."""
STAYS = {"movable": "false"}


def _pending(placed: dict[str, str] = TWO_GPUS, **world: object) -> SlotWorld:
    made = slot_world(placed, **world)  # type: ignore[arg-type]
    made.asks("p", "7g")
    return made


def _chain() -> SlotWorld:
    world = SlotWorld(ON, {"s1/l1": 2}, CONFIG)
    world.gpus_of = {"s1-l1-2": 1}
    world.start()
    for name, device in CHAIN.items():
        world.runs(name, device, annotations=STAYS if name in "cde" else {})
    world.asks("p", "7g")
    return world


def _delete(world: SlotWorld, uid: str) -> None:
    """A user deletes a pod whose controller is gone."""
    del world.pods[uid]
    world.d.delete(Pod(metadata=ObjectMeta(uid=uid)))


def _all_over(world: SlotWorld) -> None:
    """What must hold once everything is over: nothing is held, and no device is there twice."""
    assert all(phase is not None and phase.over for phase in world.phases()), world.phases()
    assert not world.d.engine.preempting.replacements and not len(world.d.engine.preempting.nominations)
    world.no_device_twice()
    world.check()


# ---------------------------------------------------------------- what is asked for


def test_one_pod_moves_to_another_gpu_of_its_node() -> None:
    world = _pending()
    world.run(59)
    assert not world.migrations, "not before it has waited for repair.after"
    world.run(30)
    assert world.phases() == [Phase.DONE, Phase.DONE]
    held = world.held()
    assert held["p"] == "s1-l1-1/gpu-0-7g-0" and held["b"] == "s1-l1-1/gpu-1-3g-0"
    assert held["a"].startswith("s1-l1-1/gpu-1-1g-")
    assert [name for name, _ in world.evictions] == ["a"]
    migration, (helper,) = world.of_pod(), world.helpers()
    assert migration.spec.cause == (
        "pod default/p is pending. Moving 1 pod (default/a from s1-l1-1 to gpu-1-1g-6 on s1-l1-1) would free gpu-0-7g-0"
        " on s1-l1-1."
    )
    assert list(migration.status.times) == ["Planned", "Reserving", "Placing", "Done"]
    assert migration.status.message == "the pod is bound"
    (move,), (other,) = migration.status.moves, migration.status.others
    assert [(move.to, device.pool, device.device) for device in move.devices] == [("s1-l1-1", "s1-l1-1", "gpu-0-7g-0")]
    assert (other.name, other.to, other.devices[0].device) == ("a", "s1-l1-1", "gpu-1-1g-6")
    assert helper.cause is Cause.DEFRAGMENTATION and helper.status.moves[0].devices == other.devices
    _all_over(world)


@pytest.mark.parametrize("parts", range(6))
def test_a_pod_that_is_placed_during_the_search_for_its_slot_is_no_failure(parts: int) -> None:
    """Quotas count the members that are still to be placed, which are none by then."""
    quotas = "quotas: [{namespaces: [default], hard: {gpus: 100}}]"
    world = _pending(config=f"{{{quotas}, {CONFIG[1:]}")
    world.run(59)
    world.now = world.d.now = 61.0
    d, clock = world.d, map(float, count()).__next__  # each step does as little as it can
    for _ in range(parts):
        d.said += d.engine.step(d.now, clock)
    _delete(world, "a")
    d.drop_claim("a-claim")
    d.clock = clock
    world.run(2)
    assert world.held()["p"] == "s1-l1-1/gpu-0-7g-0"
    assert not d.complaints()


def test_two_pods_move_one_into_the_slot_of_the_other() -> None:
    world = _chain()
    world.run(100)
    assert world.held() == {
        "p": "s1-l1-1/gpu-0-7g-0",
        "a": "s1-l1-1/gpu-1-3g-0",
        "b": "s1-l1-2/gpu-0-1g-6",
        **{name: CHAIN[name] for name in "cde"},
    }
    assert sorted(name for name, _ in world.evictions) == ["a", "b"]
    assert world.phases() == [Phase.DONE] * 3
    _all_over(world)


def test_three_pods_do_not_move() -> None:
    placed = {name: f"s1-l1-1/gpu-0-1g-{start}" for name, start in (("a", 0), ("b", 2), ("c", 4))}
    world = _pending(placed | {name: f"s1-l1-1/gpu-1-1g-{start}" for name, start in (("d", 0), ("e", 2), ("f", 4))})
    world.run(300, step=5.0)
    assert "p" not in world.held() and not world.migrations


@pytest.mark.parametrize(
    "spec",
    [
        RecoverySpec(enabled=True),
        RecoverySpec(enabled=True, defragmentation=DefragmentationSpec(enabled=True)),
    ],
)
def test_it_is_off_by_default(spec: RecoverySpec) -> None:
    config = CONFIG.replace("migSlots: true", "migSlots: false").replace(
        "{recovery", "{repair: {enabled: true}, recovery"
    )
    world = _pending(spec=spec, config=config)
    world.run(300, step=5.0)
    assert not world.migrations and not world.evictions and "p" not in world.held()
    assert not any("Moving" in str(instruction) for instruction in world.d.said)


def test_a_pod_that_fits_moves_no_other_pod() -> None:
    world = slot_world(TWO_GPUS)
    world.asks("p", "3g")
    world.run(100)
    assert "p" in world.held() and not world.migrations


def test_a_dry_run_plans_and_moves_no_pod() -> None:
    world = _pending(spec=ON.model_copy(update={"dry_run": True}))
    world.run(120)
    assert world.phases() == [Phase.PLANNED] and not world.evictions
    assert not world.d.engine.preempting.replacements
    world.recovery.configure(ON, world.now)
    world.run(30)
    assert world.phases() == [Phase.DONE, Phase.DONE] and "p" in world.held()


# ---------------------------------------------------------------- who may move


@pytest.mark.parametrize("why", ["movable", "priority", "bare", "budget", "gang"])
def test_pods_that_may_not_move_stay(why: str) -> None:
    world = slot_world({})
    world.runs("b", TWO_GPUS["b"], annotations=STAYS)
    annotations = STAYS if why == "movable" else {}
    if why == "gang":
        annotations = {"gang-name": "team", "gang-size": "2"}
    world.runs("a", TWO_GPUS["a"], annotations=annotations, priority=1 if why == "priority" else 0, bare=why == "bare")
    if why == "budget":
        world.blocked = {"a"}
    world.asks("p", "7g")
    world.run(200, step=2.0)
    assert "p" not in world.held() and world.held()["a"] == TWO_GPUS["a"]
    assert not world.evictions or why == "budget"
    if why != "budget":
        assert not world.migrations


def test_moves_within_an_hour_are_limited() -> None:
    placed = {
        "a": "s1-l1-1/gpu-0-1g-1",
        "b": "s1-l1-1/gpu-1-1g-1",
        "c": "s1-l1-2/gpu-0-1g-1",
        "d": "s1-l1-2/gpu-1-1g-1",
    }
    world = _pending(placed, nodes=2, spec=ON.model_copy(update={"limits": RecoveryLimits(moves_per_hour=1)}))
    world.asks("q", "7g")
    world.run(900, step=5.0)
    assert len(world.evictions) == 1 and len({"p", "q"} & world.held().keys()) == 1
    waits = [migration for migration in world.migrations.values() if migration.phase is Phase.PLANNED]
    assert ["limits.movesPerHour is 1" in migration.status.conditions[0].message for migration in waits] == [True]
    world.run(3600, step=30.0)
    assert len(world.evictions) == 2 and {"p", "q"} <= world.held().keys()
    world.no_device_twice()


# ---------------------------------------------------------------- the slot is held


def _slot_held() -> SlotWorld:
    """Return a cluster where a slot is held for a pod, and the pod that is to leave stays."""
    world = _pending()
    world.blocked = {"a"}
    world.run(65)
    assert set(world.phases()) == {Phase.EVICTING, Phase.RESERVING}
    return world


def test_others_do_not_take_the_slot_that_is_made() -> None:
    world = _slot_held()
    world.asks("thief", "3g")
    world.run(5)
    assert "thief" not in world.held(), "gpu-0-3g-4 is free, and part of the slot"
    world.blocked = set()
    world.run(60)
    assert world.held()["p"] == "s1-l1-1/gpu-0-7g-0" and "thief" not in world.held()
    _all_over(world)


def test_others_get_slots_that_do_not_overlap_the_slot_that_is_held() -> None:
    """Although the held one overlaps that of the pod which is to leave."""
    world = _slot_held()
    world.asks("other", "2g")
    world.run(1)
    assert world.held()["other"] == "s1-l1-1/gpu-1-2g-4"
    world.blocked = set()
    world.run(60)
    assert world.held()["p"] == "s1-l1-1/gpu-0-7g-0"
    _all_over(world)


def test_a_pool_of_which_claims_have_more_than_there_is_gives_no_device() -> None:
    """As in Kubernetes: that the held slot does not count is no reason to ignore what claims have."""
    world = _pending()
    world.blocked = {"a"}
    world.run(65)
    claim = world.d.claims["default", "b-claim"]
    results = [
        {"request": "gpus", "driver": DRIVER, "pool": "s1-l1-1", "device": f"gpu-1-{slot}"} for slot in ("3g-0", "1g-0")
    ]
    status = {**msgspec.to_builtins(claim.status), "allocation": {"devices": {"results": results}}}
    world.d.put_claim(msgspec.structs.replace(claim, status=msgspec.convert(status, type(claim.status))))
    world.asks("other", "1g")
    world.run(5)
    assert not world.pods["other"].spec.node_name


@pytest.mark.parametrize(("grace", "moves"), [(60, True), (61, False)])
def test_pods_that_take_long_to_end_stay(grace: int, moves: bool) -> None:
    world = slot_world({"a": TWO_GPUS["a"]})
    world.runs("b", TWO_GPUS["b"], annotations=STAYS)
    world.pods["a"].spec.termination_grace_period_seconds = grace
    world.tell_pod("a")
    world.asks("p", "7g")
    world.run(100)
    assert ("p" in world.held()) is moves and [name for name, _ in world.evictions] == ["a"] * moves


def test_pods_that_are_deleted_once_others_are_evicted_have_few_others_moved() -> None:
    nodes = 8
    leaves = {f"s{number}/l1": 1 for number in range(1, nodes + 1)}
    world = SlotWorld(ON, leaves, CONFIG.replace("preemption", "repair: {after: 2s}, preemption"))
    for number in range(1, nodes + 1):
        for name, device in TWO_GPUS.items():
            on_node = device.replace("s1-", f"s{number}-")
            world.runs(f"{name}{number}", on_node, annotations=STAYS if name == "b" else {})
    world.kubelets_dead |= world.node_objects.keys()  # pods end only when the test says so
    evictions = 0
    for number in range(1, nodes + 1):
        spec = PodSpec(containers=[Container("main")], node_selector={"topology.scheduler/spine": f"s{number}"})
        pod = world.asks(f"p{number}", "7g", bare=True, spec=spec)
        world.run(15)
        evicted = [pod for pod in world.pods.values() if pod.metadata.deletion_timestamp]
        evictions += len(evicted)
        _delete(world, pod.metadata.uid)
        world.d.drop_claim(f"p{number}-claim")
        for moved in evicted:
            world.finish_pod(moved.metadata.uid)
        world.run(1)
    assert 2 <= evictions <= 5, "after 0, 0, 10, 20 and 40 seconds"


def test_a_slot_is_held_only_for_a_while_if_pods_do_not_leave_it() -> None:
    """Whatever their grace period: a finalizer may keep them, or their user deletes them with a longer one."""
    world = _pending()
    world.kubelets_dead = {"s1-l1-1"}
    world.run(70)
    assert world.pods["a"].metadata.deletion_timestamp and world.of_pod().phase is Phase.RESERVING
    world.run(MAX_SLOT_WAIT_SECONDS)
    migration = world.of_pod()
    assert migration.phase is Phase.CANCELLED and migration.status.message == "the pods to move did not leave in time"
    assert not world.view.held.has_seats_of(migration.key)


@pytest.mark.parametrize("how", ["pod deleted", "pod's Migration deleted", "other's Migration deleted"])
def test_when_moves_are_of_no_use_any_more_the_slot_is_given_back_and_no_pod_is_evicted(how: str) -> None:
    world = _pending()
    world.blocked = {"a"}
    world.run(65)
    asked = len(world.evictions)
    assert asked and set(world.phases()) == {Phase.EVICTING, Phase.RESERVING}
    if how == "pod deleted":
        _delete(world, "p")
    else:
        (helper,) = world.helpers()
        world.cancel(helper.key if how.startswith("other") else world.of_pod().key)
    world.asks("other", "2g")
    world.run(1)
    world.blocked = set()
    world.run(60)
    assert len(world.evictions) == asked and world.held()["a"] == TWO_GPUS["a"]
    assert world.held()["other"], "what was held is free for others"
    _all_over(world)


def test_a_moved_pod_that_does_not_come_back_holds_its_slot_for_a_while() -> None:
    world = _pending()
    world.controllers_stand = True
    world.run(100)
    assert world.held()["p"] == "s1-l1-1/gpu-0-7g-0"
    assert world.phases() == [Phase.DONE, Phase.PLACING] and world.d.engine.preempting.replacements
    world.run(1000, step=10.0)
    (helper,) = world.helpers()
    assert world.phases() == [Phase.DONE, Phase.FAILED] and "no pod took the place of a" in helper.status.message
    _all_over(world)


def test_a_pod_of_the_same_controller_on_the_node_is_no_replacement() -> None:
    world = slot_world({})
    world.runs("a", TWO_GPUS["a"], of="web")
    world.runs("b", TWO_GPUS["b"], of="web", annotations=STAYS)
    world.asks("p", "7g")
    world.controllers_stand = True
    world.run(100)
    assert world.held() == {"b": TWO_GPUS["b"], "p": "s1-l1-1/gpu-0-7g-0"}
    assert world.phases() == [Phase.DONE, Phase.PLACING], "the slot of a is still held for its replacement"


def test_devices_that_are_never_deallocated_end_the_plan() -> None:
    world = _pending(deallocates=False)
    world.run(100)
    first = world.of_pod()
    assert "p" not in world.held() and [name for name, _ in world.evictions] == ["a"]
    world.run(900, step=20.0)
    assert first.phase is Phase.FAILED and "did not use its room in time" in first.status.message
    assert world.held()["a"], "what was held is free for the pod that moved"
    assert not world.view.held.has_seats_of(first.key)


@pytest.mark.parametrize("node", ["s1-l1-1", "s1-l1-2"])
def test_a_node_that_dies_ends_the_plan(node: str) -> None:
    """The node whose slot is freed, or the one that a pod moves to."""
    world = _chain()
    world.blocked = {"a", "b"}
    world.run(65)
    assert world.phases().count(Phase.EVICTING) == 2
    world.fail(node)
    world.run(200, step=2.0)
    assert world.of_pod().phase is Phase.CANCELLED
    assert "p" not in world.held()
    assert not any("s1-l1" in seat for seat in world.d.engine.preempting.replacements.gpus())
    world.no_device_twice()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("write", range(12))
def test_killed_at_any_write_the_pod_gets_its_slot(write: int, after: bool) -> None:
    world = _pending()
    world.run(59)
    world.kill = Kill(write, after, count=0)
    world.run(700, step=2.0)
    assert world.kill.count > write
    held = world.held()
    assert held["p"] == "s1-l1-1/gpu-0-7g-0" and held["a"].startswith("s1-l1-1/gpu-1")
    assert {name for name, _ in world.evictions} == {"a"}
    _all_over(world)
