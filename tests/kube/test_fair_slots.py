"""Slots that are shared fairly among namespaces."""

import asyncio
import random

from topo_scheduler.kube.connection.fair_slots import FairSlots

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
    assert order[:4] == ["a", "a", "b", "b"]
    assert set(order[4:8]) == {"a", "c"}
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
    assert (slots._free, slots._held, len(slots)) == (3, {}, 0)


@virtual_time
async def test_requests_that_hang_lend_their_slots_up_to_a_bound() -> None:
    slots, most, running = FairSlots(4, 2, lendable=6), 0, 0

    async def use(namespace: str, seconds: float) -> None:
        nonlocal most, running
        async with slots.slot(namespace):
            running += 1
            most = max(most, running)
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
    assert most == running == 4 + 6
    for task in hanging[::2]:
        task.cancel()
    await asyncio.gather(*hanging, return_exceptions=True)
    assert most == 4 + 6
    assert (slots._free, slots._held, len(slots)) == (4, {}, 0)
    assert not slots._loans._lent and not slots._loans._overdue


@virtual_time
async def test_requests_that_fail_after_they_lent_their_slots_let_their_namespace_go_on() -> None:
    """Nobody else asks for a slot: those that wait are not granted one by the request of another namespace."""
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
    assert (done, slots._free, slots._held, len(slots)) == (5, 4, {}, 0)
    await asyncio.gather(*tasks, return_exceptions=True)
