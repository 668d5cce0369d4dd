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
