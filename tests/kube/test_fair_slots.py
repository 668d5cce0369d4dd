"""Slots that are shared fairly among namespaces."""

import asyncio
import random
from collections import Counter

import pytest

from topo_scheduler.kube.connection.fair_slots import HANGING_SLOTS, FairSlots, reserved_of
from topo_scheduler.kube.connection.namespace_shares import HANGS_AFTER_SECONDS, HUNG_SECONDS

from .virtual import virtual_time


@virtual_time
async def test_no_namespace_holds_more_than_its_share_and_those_that_wait_take_turns() -> None:
    slots, order = FairSlots(4, 2), []

    async def use(namespace: str) -> None:
        async with slots.slot(namespace):
            order.append(namespace)
            await asyncio.sleep(1)

    tasks = [asyncio.create_task(use(name)) for name in ["a"] * 40 + ["b"] * 2 + ["c"]]
    await asyncio.sleep(1.5)
    assert order[:4] == ["a", "a", "b", "c"]
    assert sorted(order[4:7]) == ["a", "a", "b"]
    await asyncio.gather(*tasks)
    assert len(order) == 43


@virtual_time
async def test_no_slot_is_lost_whatever_is_cancelled() -> None:
    chance = random.Random(1)
    slots = FairSlots(3, 2)
    running = 0

    async def use(namespace: str) -> None:
        nonlocal running
        async with slots.slot(namespace):
            running += 1
            assert running <= 3
            try:
                await asyncio.sleep(chance.random())
            finally:
                running -= 1

    tasks = [asyncio.create_task(use(chance.choice("abc"))) for _ in range(300)]
    for task in chance.sample(tasks, 150):
        await asyncio.sleep(chance.random() / 10)
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (slots._free, slots._shares._held, len(slots)) == (3, {}, 0)


@virtual_time
async def test_requests_that_hang_lend_their_slots_up_to_a_bound() -> None:
    slots, peak, running = FairSlots(4, 2, lendable=6), 0, 0

    async def use(namespace: str, seconds: float) -> None:
        nonlocal peak, running
        async with slots.slot(namespace):
            running += 1
            peak = max(peak, running)
            try:
                await asyncio.sleep(seconds)
            finally:
                running -= 1

    hanging = [asyncio.create_task(use(name, 30)) for name in "aabbccdd"]
    await asyncio.sleep(0)
    async with asyncio.timeout(2):
        await use("victim", 0.1)
    hanging += [asyncio.create_task(use(name, 30)) for name in "eeff"]
    await asyncio.sleep(5)
    assert peak == running == 4 - 1 + 6, "all but the reserved slot, which the victim had"
    for task in hanging[::2]:
        task.cancel()
    await asyncio.gather(*hanging, return_exceptions=True)
    assert peak == 4 - 1 + 6
    assert (slots._free, slots._shares._held, len(slots)) == (4, {}, 0)
    assert not slots._loans._lent and not slots._loans._overdue


@virtual_time
async def test_requests_that_fail_after_they_lent_their_slots_let_their_namespace_go_on() -> None:
    """No other request asks for a slot: those that wait are not granted one by the request of another namespace."""
    slots, done = FairSlots(4, 2), 0

    async def use(seconds: float) -> None:
        nonlocal done
        async with slots.slot("a"):
            await asyncio.sleep(seconds)
            done += 1
            if seconds:
                raise OSError

    tasks = [asyncio.create_task(use(seconds)) for seconds in (5, 5, 0, 0, 0)]
    await asyncio.sleep(6)
    assert (done, slots._free, slots._shares._held, len(slots)) == (5, 4, {}, 0)
    await asyncio.gather(*tasks, return_exceptions=True)


async def request(slots: FairSlots, namespace: str, seconds: float) -> None:
    async with slots.slot(namespace):
        await asyncio.sleep(seconds)


def start(slots: FairSlots, namespace: str, seconds: float, count: int = 1) -> list[asyncio.Task[None]]:
    return [asyncio.create_task(request(slots, namespace, seconds)) for _ in range(count)]


async def took(slots: FairSlots, namespace: str) -> float:
    """Return how many seconds a request that takes 0.1 s waited for its slot."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    await request(slots, namespace, 0.1)
    return loop.time() - began - 0.1


@virtual_time
async def test_hanging_requests_of_many_namespaces_leave_the_reserve_to_one_that_holds_nothing() -> None:
    """Ten namespaces with enough requests for all slots and all loans: the next one still has a slot at once."""
    slots = FairSlots(16, 8)
    hanging = [task for number in range(3) for task in start(slots, f"evil{number}", 30, 16)]
    await asyncio.sleep(1.1)
    hanging += [task for number in range(3, 10) for task in start(slots, f"evil{number}", 30, 16)]
    for _ in range(25):
        await asyncio.sleep(1)
        assert await took(slots, "victim") < 0.01
    for task in hanging:
        task.cancel()
    await asyncio.gather(*hanging, return_exceptions=True)


@virtual_time
async def test_a_namespace_whose_requests_hang_holds_few_slots_for_some_minutes_but_is_never_shut_out() -> None:
    slots = FairSlots(16, 8)
    hanging = start(slots, "evil", 5, 8)
    await asyncio.sleep(HANGS_AFTER_SECONDS)
    assert await took(slots, "calm") < 0.01
    await asyncio.gather(*hanging)
    assert slots._shares.is_marked("evil") and not slots._shares.is_marked("calm")
    waiting = start(slots, "evil", 0.5, 8)
    await asyncio.sleep(0)
    assert slots._shares._held == {"evil": HANGING_SLOTS}
    await asyncio.gather(*waiting)
    others = [task for number in range(16) for task in start(slots, f"other{number}", 0.9, 400)]
    await asyncio.sleep(0)
    assert await took(slots, "evil") <= HUNG_SECONDS
    await asyncio.sleep(HUNG_SECONDS)
    waiting = start(slots, "evil", 0.5, 16)
    await asyncio.sleep(0)
    assert not slots._shares.is_marked("evil")
    for task in others + waiting:
        task.cancel()
    await asyncio.gather(*others, *waiting, return_exceptions=True)


@pytest.mark.parametrize("seconds", [0.9, 2.0, 8.0])
@virtual_time
async def test_no_namespace_is_marked_while_the_whole_api_server_is_slow_or_no_other_wants_a_slot(
    seconds: float,
) -> None:
    slots = FairSlots(16, 8)
    tasks = []
    for number in range(60):
        tasks += start(slots, f"n{number % 7}", seconds)
        await asyncio.sleep(0.2)
    await asyncio.gather(*tasks)
    await asyncio.gather(*start(slots, "alone", 20), *start(slots, "alone", 0.1))
    assert not slots._shares._hung


@virtual_time
async def test_requests_that_fail_are_no_answers() -> None:
    slots = FairSlots(16, 8)
    hanging = start(slots, "slow", 5)
    await asyncio.sleep(HANGS_AFTER_SECONDS)
    with pytest.raises(OSError):
        async with slots.slot("other"):
            raise OSError
    await asyncio.gather(*hanging)
    assert not slots._shares._hung


@pytest.mark.parametrize("seed", range(6))
@virtual_time
async def test_whatever_happened_a_namespace_without_a_slot_has_one_unless_as_many_others_as_are_reserved(
    seed: int,
) -> None:
    """Free slots and namespaces that hold a slot which is not lent are never fewer than the reserve."""
    chance = random.Random(seed)
    slots = FairSlots(12, 5, lendable=10)
    reserved = reserved_of(12)
    tasks: list[asyncio.Task[None]] = []
    for number in range(400):
        namespace = f"{chance.choice(['evil', 'evil', 'calm'])}{chance.randrange(12)}"
        seconds = chance.choice([0.5, 4, 30]) if namespace.startswith("evil") else chance.random()
        tasks += start(slots, namespace, seconds, chance.choice([1, 1, 8]))
        if chance.random() < 0.3:
            chance.choice(tasks).cancel()
        await asyncio.sleep(chance.choice([0, 0.1, 1, 5]))
        lent = Counter(request.namespace for request in slots._loans._lent)
        holders = len(slots._shares._held - lent)
        assert slots._free + holders >= reserved
        fresh = start(slots, f"fresh{number}", chance.random())
        await asyncio.sleep(0)
        if holders < reserved:
            assert f"fresh{number}" in slots._shares._held
        tasks += fresh
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (slots._free, slots._shares._held, len(slots)) == (12, {}, 0)
    assert len(slots._shares._hung) <= 12
