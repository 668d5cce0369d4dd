"""Writes about large objects of one namespace are paced; usual ones are not, nor are those of other namespaces."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from tests.kube.virtual import now, virtual_time
from tests.kube.world import World, eventually, running, world
from topo_scheduler.api.objects import Pod
from topo_scheduler.kube.connection.fair_slots import reserved_of
from topo_scheduler.kube.writing.conditions import ConditionWriter
from topo_scheduler.kube.writing.fair_queue import FairQueue
from topo_scheduler.kube.writing.low_priority_writes import (
    CONCURRENT_WRITES,
    PROMPT_SECONDS,
    SLOW_REST_FACTOR,
    WRITES_OF_NAMESPACE,
    LowPriorityWriter,
    WriteSlot,
)
from topo_scheduler.kube.writing.write_pace import (
    LONGEST_REST_SECONDS,
    REMEMBERED_SECONDS,
    REST_FACTOR,
    USUAL_ANSWER_BYTES,
    WritePace,
)
from topo_scheduler.simulation.apiserver import Delay

LARGE = 230_000
"""Bytes of a pod of 256 containers, as the API server answers."""
USUAL = 4_000

CREATED_EACH_SECOND = 25
EXCESS = (LARGE - USUAL_ANSWER_BYTES) / LARGE


class Writes:
    """What a writer wrote: when each item ended, and the most writes of a namespace in progress."""

    def __init__(self, seconds: dict[str, float], received: dict[str, int]) -> None:
        self.ended: dict[str, float] = {}
        self.most: dict[str, int] = {}
        self._seconds, self._received = seconds, received
        self._running: dict[str, int] = {}
        self.queue: FairQueue[str, str] = FairQueue(WRITES_OF_NAMESPACE, reserved_of(CONCURRENT_WRITES))
        self.writer: LowPriorityWriter[str, str] = LowPriorityWriter(
            queue=self.queue, do=self._do, busy=lambda: False, patience=1.0, clock=now
        )

    def put(self, namespace: str, number: int) -> None:
        key = f"{namespace}/{number}"
        self.queue.put(key, namespace, now(), key)
        self.writer.wake()

    async def _do(self, item: str, slot: WriteSlot) -> None:
        namespace = item.partition("/")[0]
        self._running[namespace] = self._running.get(namespace, 0) + 1
        self.most[namespace] = max(self.most.get(namespace, 0), self._running[namespace])
        async with slot():
            await asyncio.sleep(self._seconds[namespace])
        slot.received += self._received[namespace]
        self._running[namespace] -= 1
        self.ended[item] = now()


@asynccontextmanager
async def writing(seconds: dict[str, float], received: dict[str, int]) -> AsyncIterator[Writes]:
    writes = Writes(seconds, received)
    async with running(writes.writer.run()):
        yield writes


@pytest.mark.parametrize("seconds", [0.06, 0.4])
@virtual_time
async def test_large_writes_of_one_namespace_take_a_small_part_of_the_time(seconds: float) -> None:
    async with writing({"hostile": seconds, "victim": 0.005}, {"hostile": LARGE, "victim": USUAL}) as writes:
        began = now()
        for number in range(20 * CREATED_EACH_SECOND):
            writes.put("hostile", number)
            writes.put("victim", number)
            await asyncio.sleep(1 / CREATED_EACH_SECOND)
        hostile = sorted(ended for item, ended in writes.ended.items() if item.startswith("hostile"))
        later = [ended for ended in hostile if ended > began + 2 * seconds]
        assert len(hostile) * seconds / 20 < 0.2, "so many are in progress on average, instead of six"
        pauses = [after - before for before, after in pairwise(later)]
        assert 2 * seconds < min(pauses) and max(pauses) < 10 * seconds, "one at a time, but all the time"
        assert sum(item.startswith("victim") for item in writes.ended) >= 20 * CREATED_EACH_SECOND - 1


@pytest.mark.parametrize("seconds", [0.005, 0.3])
@virtual_time
async def test_usual_writes_are_not_slower(seconds: float) -> None:
    """500 refused pods of one namespace, at 5 ms a write, and on an API server that is slow for everything."""
    async with writing({"team": seconds}, {"team": USUAL_ANSWER_BYTES}) as writes:
        began = now()
        for number in range(500):
            writes.put("team", number)
        assert await writes.writer.flush(60)
        assert now() - began < 1.02 * seconds * (500 / WRITES_OF_NAMESPACE + 1)
        assert writes.most == {"team": WRITES_OF_NAMESPACE}


@virtual_time
async def test_one_large_object_among_usual_ones_delays_them_once() -> None:
    async with writing({"team": 0.005, "large": 0.06}, {"team": USUAL, "large": LARGE}) as writes:
        began = now()
        writes.queue.put("large/0", "team", now() - 1, "large/0")
        for number in range(500):
            writes.put("team", number)
        assert await writes.writer.flush(60)
        assert now() - began < 0.06 * (1 + REST_FACTOR) + 0.5


@pytest.mark.parametrize("received", [USUAL_ANSWER_BYTES + 10_000, 500_000_000])
def test_a_rest_is_bounded_and_forgotten(received: int) -> None:
    clock = [0.0]
    pace = WritePace(lambda: clock[0])
    rests = [pace.wrote("hostile", received, 5.0) for _ in range(3)]
    assert rests == sorted(rests) and 0 < rests[-1] <= LONGEST_REST_SECONDS
    assert not pace.may_write("hostile", holds=False) and pace.may_write("other", holds=True)
    clock[0] = rests[-1]
    assert pace.may_write("hostile", holds=False) and not pace.may_write("hostile", holds=True)
    assert pace.forgotten() == []
    clock[0] = REMEMBERED_SECONDS
    assert pace.forgotten() == ["hostile"] and pace.may_write("hostile", holds=True)


def test_a_usual_answer_ends_no_rest_but_what_follows_it() -> None:
    clock = [0.0]
    pace = WritePace(lambda: clock[0])
    rest = pace.wrote("team", LARGE, 1.0)
    assert pace.wrote("team", USUAL, 1.0) == 0
    assert not pace.may_write("team", holds=False)
    clock[0] = rest
    pace.wrote("team", USUAL, 1.0)
    assert pace.may_write("team", holds=True)


# ---------------------------------------------------------------- conditions


def large_pod(w: World, name: str, size: int = LARGE) -> Pod:
    return w.create_pod(name, annotations={"example.com/large": "x" * size})


@virtual_time
async def test_conditions_of_large_pods_are_paced() -> None:
    async with world() as w:
        w.server.faults.add(Delay(0.1), verb="patch")
        writes = ConditionWriter(w.client, clock=now, wall=now)
        began = now()
        async with running(writes.run()):
            for number in range(12):
                writes.set_unschedulable(large_pod(w, f"pod-{number}"), "no room")
            assert await writes.flush(60)
            assert writes.written == 12
            assert now() - began > 11 * REST_FACTOR * 0.1 * EXCESS
            await asyncio.sleep(REMEMBERED_SECONDS)
            w.server.store.create("namespaces", {"metadata": {"name": "other"}})
            writes.set_unschedulable(w.create_pod("pod", "other"), "no room")
            assert await writes.flush(60)
        assert not writes._waiting._pace._large, "nothing is kept of the namespace"


@virtual_time
async def test_a_pod_that_is_read_again_after_a_conflict_counts_with_both_answers() -> None:
    """The API server did the work of its first patch, which it refused as the version was old."""
    async with world() as w:
        w.server.faults.add(Delay(0.1), verb="patch")
        writes = ConditionWriter(w.client, clock=now, wall=now)
        async with running(writes.run()):
            changed, other = large_pod(w, "changed", USUAL_ANSWER_BYTES * 2 // 3), w.create_pod("other")
            w.annotate("changed", "example.com/changed", "yes")
            writes.set_unschedulable(changed, "no room")
            await eventually(lambda: writes.written == 1)
            began = now()
            writes.set_unschedulable(other, "no room")
            assert await writes.flush(60)
        assert now() - began > 0.1 + REST_FACTOR * 0.2 * 0.2


@pytest.mark.parametrize("seconds", [0.1, 0.4])
@virtual_time
async def test_usual_writes_leave_the_api_server_time_where_it_answers_slowly(seconds: float) -> None:
    async with writing({"team": seconds, "other": seconds}, {"team": USUAL, "other": USUAL}) as writes:
        for number in range(2_000):
            writes.put("team", number)
        await asyncio.sleep(20)
        share = WRITES_OF_NAMESPACE * seconds / (seconds + SLOW_REST_FACTOR * (seconds - PROMPT_SECONDS))
        assert 0.8 * share < len(writes.ended) * seconds / 20 < 1.1 * share, "so many are in progress on average"
        began = now()
        writes.put("other", 0)
        await asyncio.sleep(2 * seconds)
        assert writes.ended["other/0"] - began < 1.5 * seconds
        assert await writes.writer.flush(2_000 * seconds / WRITES_OF_NAMESPACE), "a flush waits for no rest"


@virtual_time
async def test_prompt_writes_need_no_rest() -> None:
    async with writing({"team": 0.02}, {"team": USUAL}) as writes:
        began = now()
        for number in range(600):
            writes.put("team", number)
        await asyncio.sleep(0.02 * 600 / WRITES_OF_NAMESPACE + 0.2)
        assert len(writes.ended) == 600
        assert max(writes.ended.values()) - began < 1.05 * 0.02 * 600 / WRITES_OF_NAMESPACE + 0.1
