"""Searches for voluntary moves run in slices: with the same result, and with what changes meanwhile."""

from collections.abc import Callable
from functools import partial
from itertools import count

import pytest

from tests.recovery.world import World
from topo_scheduler.api.migrations import Phase
from topo_scheduler.api.recovery import DefragmentationSpec, ImprovementSpec, RecoverySpec
from topo_scheduler.recovery.optimisation.defragmentation import Defragmenting
from topo_scheduler.recovery.optimisation.improvement import Improving
from topo_scheduler.recovery.optimisation.largest_block import BlockEnlarging

GANGS = RecoverySpec(enabled=True, defragmentation=DefragmentationSpec(enabled=True))
BLOCKS = RecoverySpec(enabled=True, defragmentation=DefragmentationSpec(enabled=True, largest_block=True))
IMPROVES = RecoverySpec(enabled=True, improvement=ImprovementSpec(enabled=True))
CONFIG = (
    "{recovery: {enabled: true, defragmentation: {enabled: true}}, preemption: {enabled: false},"
    " reservation: {enabled: false}"
)
SPREADS = f"{CONFIG}, topologyConstraints: {{enforcement: preferred}}}}"
LONG = {"expected-duration": "24h", "checkpoint-interval": "5m"}
STAYS = {"movable": "false"}
Clock = Callable[[], float]


def stands() -> Clock:
    """All is done in one step."""
    return lambda: 0.0


def slow() -> Clock:
    """A step does one part."""
    return partial(next, count(0.0, 1.0))


def _waits(clock: Clock) -> World:
    """A gang wants a leaf; one small pod is in the one leaf, two in the other."""
    world = World(GANGS, {"s1/l1": 2, "s1/l2": 2}, CONFIG + "}", clock=clock)
    for name, node in (("a", "s1-l1-1"), ("b", "s1-l2-1"), ("c", "s1-l2-2")):
        world.put(name, node, 2)
    world.gang("g", 2)
    return world


def _scattered(clock: Clock) -> World:
    """Each of two leaves has a node in use; one pod is enough to set all of the first free."""
    world = World(BLOCKS, {"s1/l1": 3, "s1/l2": 3}, SPREADS, clock=clock)
    for name, node in (("a", "s1-l1-1"), ("b", "s1-l2-1"), ("c", "s1-l2-2"), ("d", "s1-l2-2")):
        world.put(name, node, 2)
    return world


def _spread(clock: Clock) -> World:
    """A gang lies in two leaves, and now could lie in one."""
    world = World(IMPROVES, {"s1/l1": 4, "s1/l2": 4}, SPREADS, clock=clock)
    for name, node in (("a", "s1-l1-1"), ("b", "s1-l1-2"), ("c", "s1-l2-1"), ("d", "s1-l2-2")):
        world.put(name, node, 8, said=STAYS)
    world.gang("g", 4, said=LONG)
    world.run()
    for uid in ("a", "b"):
        del world.pods[uid]
        world.tell_pod(uid)
    return world


Maker = Defragmenting | BlockEnlarging | Improving
MAKERS: dict[Callable[[Clock], World], type[Maker]] = {
    _waits: Defragmenting,
    _scattered: BlockEnlarging,
    _spread: Improving,
}


def _maker(world: World, build: Callable[[Clock], World]) -> Maker:
    (maker,) = (search for search, _ in world.recovery._searches if isinstance(search, MAKERS[build]))
    return maker


@pytest.mark.parametrize("build", MAKERS, ids=lambda build: build.__name__)
def test_in_parts_it_comes_to_the_same(build: Callable[[Clock], World]) -> None:
    outcomes = []
    for clock in (stands(), slow()):
        world = build(clock)
        world.run(120, step=0.5)
        assert world.evictions and all(phase is Phase.DONE for phase in world.phases())
        outcomes.append(({name: pod.spec.node_name for name, pod in world.pods.items()}, world.evictions))
        world.check()
    assert outcomes[0] == outcomes[1]


def _begun(build: Callable[[Clock], World]) -> tuple[World, Maker]:
    """Run until a look has done its first part."""
    world = build(slow())
    maker = _maker(world, build)
    for _ in range(4000):
        world.run(0.03, step=0.03)
        if maker._parts.going:
            break
    assert maker._parts.going and not world.migrations
    assert maker.next_due(world.now) == pytest.approx(world.now + 0.02), "it goes on soon"
    return world, maker


@pytest.mark.parametrize("build", MAKERS, ids=lambda build: build.__name__)
def test_where_the_room_is_taken_meanwhile_no_pod_moves(build: Callable[[Clock], World]) -> None:
    world, maker = _begun(build)
    free = dict.fromkeys(world.node_objects, 8)
    for pod in world.pods.values():
        if node := pod.spec.node_name:
            free[node] -= int(pod.spec.containers[0].resources.limits["nvidia.com/gpu"])
    for number, node in enumerate(node for node, gpus in free.items() if gpus):
        world.put(f"late-{number}", node, free[node], said=STAYS)
    for _ in range(20):
        world.run(0.03, step=0.03)
    assert not maker._parts.going
    assert not world.migrations and not world.evictions
    world.check()


@pytest.mark.parametrize("build", MAKERS, ids=lambda build: build.__name__)
def test_a_look_ends_when_it_is_turned_off(build: Callable[[Clock], World]) -> None:
    world, maker = _begun(build)
    world.recovery.configure(RecoverySpec(enabled=True), world.now)
    world.run(1)
    assert not maker._parts.going and maker.next_due(world.now) is None
    world.run(120)
    assert not world.migrations and not world.evictions
