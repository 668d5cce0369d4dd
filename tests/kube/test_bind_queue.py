"""Binds of namespaces take turns, and one whose binds hang can't hold all workers."""

import asyncio
import random
from collections import Counter
from typing import cast

import pytest

from tests.kube.virtual import virtual_time
from topo_scheduler.api.annotations import GANG_ID
from topo_scheduler.kube.connection.namespace_shares import HANGS_AFTER_SECONDS, HUNG_SECONDS, loop_time
from topo_scheduler.runtime.bind_queue import HANGING_WORKERS, BindQueue, Work, namespace_of
from topo_scheduler.scheduling.instructions import Bind, DryRunBind, PodRef

WORKERS, RESERVED = 48, 8


def bind(namespace: str, number: int = 0) -> Bind:
    return Bind(PodRef(namespace, f"p{number}", f"{namespace}-{number}"), "node-1", {}, 0.0, 0.0)


def busy(queue: BindQueue) -> bool:
    return queue.busy


class Workers:
    """Workers that each take one bind; it ends when the test says so."""

    def __init__(self, queue: BindQueue, count: int = WORKERS) -> None:
        self._queue = queue
        self.taken: list[Work] = []
        self.tasks: list[asyncio.Task[None]] = []
        self._ends: dict[str, asyncio.Future[None]] = {}
        self.add(count)

    def add(self, count: int) -> None:
        self.tasks += [asyncio.create_task(self._work()) for _ in range(count)]

    async def _work(self) -> None:
        while True:
            work = await self._queue.take()
            uid = (work if isinstance(work, Bind) else work.bind).pod.uid
            self.taken.append(work)
            began = loop_time()
            self._ends[uid] = asyncio.get_running_loop().create_future()
            await self._ends[uid]
            self._queue.done(work, loop_time() - began)

    async def settle(self) -> Counter[str]:
        """Return how many binds of each namespace were taken."""
        for _ in range(8):
            await asyncio.sleep(0)
        return Counter(map(namespace_of, self.taken))

    def end(self, namespace: str) -> None:
        for uid, end in self._ends.items():
            if uid.startswith(f"{namespace}-") and not end.done():
                end.set_result(None)

    def cancel(self) -> None:
        for task in self.tasks:
            task.cancel()


async def test_however_many_binds_of_one_namespace_hang_those_of_others_have_workers_at_once() -> None:
    queue = BindQueue(WORKERS)
    workers = Workers(queue)
    for number in range(200):
        queue.put(bind("hostile", number))
    assert (await workers.settle())["hostile"] == 40
    for number in range(8):
        queue.put(bind("victim", number))
    assert (await workers.settle())["victim"] == 1
    for number in range(8):
        workers.end("victim")
        assert (await workers.settle())["victim"] == min(number + 2, 8)
    workers.cancel()


@virtual_time
async def test_a_namespace_whose_binds_hang_holds_few_workers_until_none_has_hung_for_some_minutes() -> None:
    queue = BindQueue(WORKERS)
    workers = Workers(queue)
    for number in range(400):
        queue.put(bind("hostile", number))
    await workers.settle()
    queue.hangs("hostile")
    assert not busy(queue)
    await asyncio.sleep(HANGS_AFTER_SECONDS)
    queue.put(bind("prompt"))
    await workers.settle()
    workers.end("prompt")
    workers.end("hostile")
    assert (await workers.settle())["hostile"] == 40 + HANGING_WORKERS
    await asyncio.sleep(HUNG_SECONDS - HANGS_AFTER_SECONDS - 1)
    queue.hangs("hostile")
    await asyncio.sleep(HUNG_SECONDS - 1)
    workers.end("hostile")
    assert (await workers.settle())["hostile"] == 40 + 2 * HANGING_WORKERS
    await asyncio.sleep(1)
    workers.end("hostile")
    assert (await workers.settle())["hostile"] == 40 + 2 * HANGING_WORKERS + 40
    assert busy(queue)
    workers.cancel()


async def test_waves_of_three_namespaces_whose_binds_hang_leave_workers_to_others() -> None:
    """The workers of each wave get stand-ins once it is known to hang, which the next wave finds idle."""
    queue = BindQueue(WORKERS)
    workers = Workers(queue)
    for wave in range(2):
        names = [f"hostile{wave}{name}" for name in "abc"]
        for name in names:
            for number in range(45):
                queue.put(bind(name, number))
        held = await workers.settle()
        assert held.total() <= (wave + 1) * (WORKERS - RESERVED + 2)
        queue.put(bind(f"victim{wave}"))
        assert (await workers.settle())[f"victim{wave}"] == 1
        workers.end(f"victim{wave}")
        for name in names:
            queue.hangs(name)
        workers.add(sum(held[name] for name in names))
    workers.cancel()


async def test_however_many_marked_namespaces_there_are_they_take_nothing_of_the_reserve() -> None:
    queue = BindQueue(WORKERS)
    workers = Workers(queue)
    names = [f"hostile{chr(ord('a') + number)}" for number in range(20)]
    for name in names:
        queue.put(bind(name, 0))
    await workers.settle()
    for name in names:
        queue.hangs(name)
        for number in range(1, 10):
            queue.put(bind(name, number))
    held = await workers.settle()
    assert held.total() == WORKERS - RESERVED
    assert max(held.values()) == HANGING_WORKERS
    for number in range(RESERVED):
        queue.put(bind(f"victim{number}"))
    assert (await workers.settle()).total() == WORKERS
    workers.cancel()


@virtual_time
async def test_a_marked_namespace_gets_its_turn_though_others_never_leave_more_than_the_reserve_idle() -> None:
    queue = BindQueue(WORKERS)
    workers = Workers(queue)
    queue.put(bind("marked", 0))
    await workers.settle()
    queue.hangs("marked")
    await asyncio.sleep(HANGS_AFTER_SECONDS)
    queue.put(bind("prompt"))
    await workers.settle()
    workers.end("prompt")
    await workers.settle()
    workers.end("marked")
    for number in range(WORKERS - RESERVED):
        queue.put(bind(f"other{number}x"))
    await workers.settle()
    queue.put(bind("marked", 1))
    assert (await workers.settle())["marked"] == 1
    await asyncio.sleep(HUNG_SECONDS)
    queue.put(bind("other"))
    assert (await workers.settle())["marked"] == 2
    workers.cancel()


@pytest.mark.parametrize("others", [True, False])
@virtual_time
async def test_the_mark_ends_with_a_prompt_bind_unless_binds_of_others_were_prompt_meanwhile(others: bool) -> None:
    """Writes may be slow for all, while reads are answered."""
    queue = BindQueue(WORKERS)
    workers = Workers(queue)
    queue.put(bind("slow", 0))
    await workers.settle()
    await asyncio.sleep(HANGS_AFTER_SECONDS)
    queue.hangs("slow")
    await asyncio.sleep(HANGS_AFTER_SECONDS)
    queue.put(bind("other" if others else "slow", 1))
    await workers.settle()
    workers.end("other")
    workers.end("slow")
    await workers.settle()
    assert queue._shares.is_marked("slow") is others
    workers.cancel()


@pytest.mark.parametrize("seed", range(6))
@virtual_time
async def test_whatever_happened_a_namespace_without_a_worker_has_one_unless_as_many_others_as_are_reserved(
    seed: int,
) -> None:
    """Idle workers and namespaces that hold a worker without a stand-in are never fewer than the reserve."""
    chance, loop = random.Random(seed), asyncio.get_running_loop()
    queue, reserved = BindQueue(24), 4
    tasks: set[asyncio.Task[None]] = set()
    without_stand_in: Counter[str] = Counter()

    async def work() -> None:
        replaced = False
        while not replaced:
            work, began = await queue.take(), loop.time()
            name = namespace_of(work)
            hangs = name.startswith("evil") and chance.random() < 0.7
            without_stand_in[name] += 1
            await asyncio.sleep(3 if hangs else chance.random() / 10)
            if hangs:
                queue.hangs(name)
                replaced = len(tasks) < 24 + 30
                if replaced:
                    without_stand_in[name] -= 1
                    tasks.add(asyncio.create_task(work_()))
                await asyncio.sleep(chance.choice([1, 20]))
            without_stand_in[name] -= not replaced
            queue.done(work, loop.time() - began)

    async def work_() -> None:
        await work()
        tasks.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    tasks |= {asyncio.create_task(work_()) for _ in range(24)}
    for number in range(400):
        kind = chance.choice(["evil", "evil", "calm"])
        name = f"{kind}-{chance.randrange(12)}"
        for member in range(chance.choice([1, 1, 30])):
            queue.put(Bind(PodRef(name, "p", f"{name}-{number}-{member}"), "node-1", {}, 0.0, 0.0))
        await asyncio.sleep(chance.choice([0, 0.05, 1, 7]))
        holders = sum(count > 0 for count in without_stand_in.values())
        assert len(queue._idle) + holders >= reserved
        queue.put(bind(f"fresh{number}"))
        if holders < reserved:
            assert f"fresh{number}" not in queue._waiting
    assert loop.time() > 1_000 + HUNG_SECONDS
    for task in list(tasks):
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_namespaces_take_turns() -> None:
    queue = BindQueue(WORKERS)
    for number in range(3):
        queue.put(bind("a", number))
    queue.put(bind("b"))
    queue.put(DryRunBind(bind("c")))
    order = []
    for _ in range(5):
        work = await queue.take()
        order.append(namespace_of(work))
        queue.done(work, 0.0)
    assert order == ["a", "b", "c", "a", "a"]


async def test_a_healthy_namespace_has_nearly_all_workers_and_one_worker_serves_all() -> None:
    queue = BindQueue(WORKERS)
    workers = Workers(queue, 1)
    for number in range(20):
        queue.put(bind("a", number))
        workers.end("a")
        await workers.settle()
    workers.end("a")
    assert (await workers.settle())["a"] == 20
    workers.cancel()


async def test_a_worker_that_ended_is_given_nothing_and_what_is_cleared_is_never_taken() -> None:
    queue = BindQueue(WORKERS)
    ended, stays = asyncio.create_task(queue.take()), asyncio.create_task(queue.take())
    await asyncio.sleep(0)
    ended.cancel()
    await asyncio.sleep(0)
    queue.put(bind("a", 1))
    assert await stays == bind("a", 1)
    queue.put(bind("a", 2))
    queue.clear()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(queue.take(), 0.01)
    assert busy(queue)  # the first has not ended
    queue.done(bind("a", 1), 0.0)
    assert not busy(queue)


def member(gang: str, number: int, namespace: str = "a") -> Bind:
    pod = PodRef(namespace, f"{gang}-{number}", f"{namespace}-{gang}-{number}")
    return Bind(pod, "node-1", {GANG_ID: f"{namespace}/{gang}"}, 0.0, 0.0)


async def order(queue: BindQueue, count: int) -> list[str]:
    """Return the names of the pods of the next so many binds."""
    names = []
    for _ in range(count):
        work = await queue.take()
        names.append((work if isinstance(work, Bind) else work.bind).pod.name)
        queue.done(work, 0.0)
    return names


async def test_the_rest_of_a_begun_gang_goes_before_others_of_its_namespace() -> None:
    queue = BindQueue(WORKERS)
    for number in range(2):
        queue.put(bind("a", number))
    for number in range(3):
        queue.put(member("old", number))
    for number in range(4):
        queue.put(member("begun", number))
    queue.put(bind("b", 9))
    assert await order(queue, 1) == ["p0"]
    queue.begins(member("begun", 0))
    assert await order(queue, 2) == ["p9", "begun-0"], "of its own namespace only"
    queue.put(member("found", 0), first=True)
    queue.put(member("begun", 4))
    assert await order(queue, 5) == ["begun-1", "begun-2", "begun-3", "begun-4", "found-0"]
    assert await order(queue, 4) == ["p1", "old-0", "old-1", "old-2"]


async def test_what_is_recalled_is_never_taken_and_what_is_stuck_is_reported_once() -> None:
    queue = BindQueue(WORKERS)
    for number in range(3):
        queue.put(member("g", number), first=True)
    queue.put(member("other", 0))
    assert queue.take_stuck("a") == ["a-g-0", "a-g-1", "a-g-2"]
    assert queue.take_stuck("a") == queue.take_stuck("b") == []
    queue.put(member("g", 3))
    assert queue.take_stuck("a") == ["a-g-3"]
    assert queue.recall("a", "a/g", "a-g-1")
    assert not queue.recall("a", "a/g", "a-g-1")
    assert not queue.recall("c", "a/g", "a-g-1")
    assert await order(queue, 4) == ["g-0", "g-2", "g-3", "other-0"]
    queue.put(member("g", 5), first=True)
    assert queue.recall("a", "a/g", "a-g-5")
    assert not busy(queue)


@virtual_time
async def test_what_stands_back_waits_for_the_last_bind_but_not_for_those_that_hang_and_never_for_long() -> None:
    queue, loop = BindQueue(WORKERS), asyncio.get_running_loop()
    workers = Workers(queue)
    await queue.calm(8)
    queue.put(bind("a"))
    await workers.settle()
    waits = asyncio.create_task(queue.calm(8))
    await asyncio.sleep(1)
    assert not waits.done()
    workers.end("a")
    await workers.settle()
    assert waits.done()
    queue.put(bind("b"))
    await workers.settle()
    began = loop.time()
    await queue.calm(8)
    assert loop.time() - began == 8
    queue.hangs("b")
    await queue.calm(8)
    assert loop.time() - began == 8
    workers.cancel()


@pytest.mark.parametrize("ends", ["done", "hangs", "recall", "clear", "hurry"])
@virtual_time
async def test_what_stands_back_is_woken_at_once_however_the_last_bind_before_it_ends(ends: str) -> None:
    queue = BindQueue(WORKERS)
    queue.put(member("g", 0))
    if ends in ("done", "hangs"):
        await queue.take()
    waits = asyncio.create_task(queue.calm(8))
    await asyncio.sleep(1)
    assert not waits.done()
    match ends:
        case "done":
            queue.done(member("g", 0), 0.0)
        case "hangs":
            queue.hangs("a")
        case "recall":
            assert queue.recall("a", "a/g", "a-g-0")
        case "clear":
            queue.clear()
        case _:
            queue.hurry()
    await asyncio.sleep(0.1)
    assert waits.done()
