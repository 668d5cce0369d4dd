"""A daemon is killed before and after every write it makes, one after the other, and another one takes over."""

import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from tests.e2e import objects
from topo_scheduler.api.config import Configuration
from topo_scheduler.cli.drain import plan_drain
from topo_scheduler.kube.connection.resources import PODS
from topo_scheduler.kube.reading.decoding import Codec

from .invariants import settled
from .running import run
from .world import MIGRATIONS, World, cluster, configured

SMALL = {"s1/l1": 4, "s1/l2": 3}


@dataclass(frozen=True)
class Story:
    """What happens before the knife is out, what then, how one sees that all is well, and what is written meanwhile."""

    before: Callable[[World], Awaitable[None]]
    then: Callable[[World], None]
    well: Callable[[World], bool]
    writes: frozenset[str]
    configuration: Configuration = configured()  # noqa: RUF009 - a value


async def _nothing(world: World) -> None:
    pass


async def _taken(world: World) -> None:
    """A gang holds the only leaf that has four nodes."""
    world.gang("h", 4)
    await world.until(lambda: world.whole("h"))


async def _one_gang(world: World) -> None:
    world.gang("g", 3)
    await world.until(lambda: world.whole("g"))


async def _full(world: World) -> None:
    """Two gangs and a pod alone, and free is one node of another leaf than the first gang's."""
    world.gang("g", 3)
    await world.until(lambda: world.whole("g"))
    world.replicas("small", 1, gpus=8)
    await world.until(lambda: len(world.nodes_of("small")) == 1)
    world.gang("h", 2)
    await world.until(lambda: world.whole())


def _submit(world: World) -> None:
    world.gang("g", 4)


def _too_large(world: World) -> None:
    """There is no leaf for it: events say so, until nodes come."""
    world.gang("g", 4, gpus=8)
    world.loop.call_later(20.0, world.add_fabric, {"s1/l3": 4})


def _lose(world: World) -> None:
    world.fail(world.nodes_of("g")[1])


def _preempt(world: World) -> None:
    world.store.create("priorityclasses.scheduling.k8s.io", {"metadata": {"name": "high"}, "value": 1000})
    job = objects.gang("urgent", 2, 8, priorityClassName="high")
    job["spec"]["backoffLimit"] = 1_000
    world.store.create("jobs.batch", job)
    world.gangs["urgent"] = 2


async def _no_room_at_all(world: World) -> None:
    world.gang("g", 4)
    await world.until(lambda: world.whole())
    world.replicas("many", 3, gpus=8)
    await world.until(lambda: len(world.nodes_of("many")) == 3)


def _drain(world: World) -> None:
    """As ``topo-scheduler drain s1/l1`` does."""
    codec = Codec(PODS)
    pods = [codec.one(record.encoded()) for record in world.store.list("pods")]
    leaf = [name for name in world.node_names() if name.startswith(world.nodes_of("g")[0].rpartition("-")[0])]
    for name in leaf:
        world.store.modify("nodes", name, "", lambda node: {**node, "spec": {**node["spec"], "unschedulable": True}})
    for migration in plan_drain(pods, leaf, "s1/l1", objects.SCHEDULER).migrations:
        named = [{"name": name, "uid": uid} for name, uid in migration.pods]
        body = {
            "apiVersion": "topology.scheduler/v1alpha1",
            "kind": "Migration",
            "metadata": {"name": migration.name},
            "spec": {"cause": "s1/l1 is drained", "avoid": ["s1/l1"], "pods": named},
        }
        world.store.create(MIGRATIONS, body, migration.namespace)


def _drained(world: World) -> bool:
    return world.whole() and set(world.phases()) == {"Done"} and not _on_cordoned(world)


def _on_cordoned(world: World) -> bool:
    shut = {record.key.name for record in world.store.list("nodes") if record["spec"].get("unschedulable")}
    return any(pod["spec"]["nodeName"] in shut for pod in world.pods(bound=True))


def _healed(world: World) -> bool:
    return world.whole() and bool(world.phases()) and all(phase in ("Done", "Cancelled") for phase in world.phases())


MOVES = frozenset({"create migrations", "update migrations/status", "create pods/eviction", "create pods/binding"})
STORIES = {
    "a gang is bound": Story(
        _nothing, _submit, lambda world: world.whole(), frozenset({"create pods/binding", "create events"})
    ),
    "a gang waits for nodes": Story(
        _taken,
        _too_large,
        lambda world: world.whole(),
        frozenset({"create pods/binding", "patch pods/status", "create events"}),
    ),
    "a gang is preempted": Story(
        _no_room_at_all,
        _preempt,
        lambda world: world.whole("urgent"),
        frozenset({"create pods/binding", "create pods/eviction", "patch pods/status", "create events"}),
    ),
    "a member is replaced": Story(_one_gang, _lose, _healed, MOVES),
    "others make room": Story(_full, _lose, _healed, MOVES),
    "a leaf is drained": Story(_one_gang, _drain, _drained, MOVES - {"create migrations"}),
}


async def _tell(story: Story, write: int, after: bool) -> list[str]:
    """Run a story in which the daemon falls at a write; return what was written, empty where it never fell."""
    async with cluster(SMALL) as world:
        first = world.start(story.configuration)
        await world.leading()
        await story.before(world)
        await world.run(3.0)  # reports that are still due are written
        knife = first.wire.knife
        knife.writes.clear()
        knife.count, knife.write, knife.after = 0, write, after
        story.then(world)
        for _ in range(600):
            await world.run(0.5)
            if first.killed or (write < 0 and story.well(world)):
                break
        if write < 0:
            assert story.well(world), world.phases()
            await world.run(3.0)
            await settled(world)
            return list(knife.writes)
        assert first.killed, f"the daemon made {knife.count} writes this time"
        await first.bury()
        await world.run(1.0)
        world.start(story.configuration)
        await world.until(lambda: story.well(world), 400.0, step=0.5)
        await world.run(3.0)
        await settled(world)
        return list(knife.writes)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", STORIES)
def test_killed_at_any_write_it_ends_the_same(name: str) -> None:
    story = STORIES[name]
    written: list[str] = []

    async def whole() -> None:
        written.extend(await _tell(story, -1, False))

    run(whole())
    assert story.writes <= set(written), f"not all kinds of writes are made: {sorted(set(written))}"
    for number, after in itertools.product(range(len(written)), (False, True)):

        async def broken(number: int = number, after: bool = after) -> None:
            await _tell(story, number, after)

        try:
            run(broken())
        except Exception as error:
            where = "after" if after else "before"
            raise AssertionError(f"killed {where} write {number}, {written[number]}: {error}") from error
