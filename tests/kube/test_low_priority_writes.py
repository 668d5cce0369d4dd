"""Low-priority writes that hang, in many namespaces, hold up no other namespace."""

import asyncio

from tests.kube.virtual import virtual_time
from topo_scheduler.kube.connection.fair_slots import LENDABLE_SLOTS, reserved_of
from topo_scheduler.kube.connection.retrying import Slot
from topo_scheduler.kube.writing.fair_queue import FairQueue
from topo_scheduler.kube.writing.low_priority_writes import CONCURRENT_WRITES, WRITES_OF_NAMESPACE, LowPriorityWriter


@virtual_time
async def test_writes_that_hang_lend_their_slots_up_to_a_bound() -> None:
    queue: FairQueue[str, str] = FairQueue(WRITES_OF_NAMESPACE, reserved_of(CONCURRENT_WRITES))
    loop = asyncio.get_running_loop()
    done: dict[str, float] = {}
    running = peak = 0

    async def write(item: str, slot: Slot) -> None:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        async with slot():
            await asyncio.sleep(30 if item.startswith("hanging") else 0.1)
        running -= 1
        done[item] = loop.time()

    writer = LowPriorityWriter(queue=queue, do=write, busy=lambda: False, patience=1.0, clock=loop.time)
    task = asyncio.create_task(writer.run())
    began = loop.time()
    for number in range(WRITES_OF_NAMESPACE * 4):
        queue.put(f"hanging-{number}", f"evil-{number % 4}", began, f"hanging-{number}")
    writer.wake()
    await asyncio.sleep(0.5)
    queue.put("victim", "default", loop.time(), "victim")
    writer.wake()
    await asyncio.sleep(4)
    assert done["victim"] - began < 3
    for number in range(WRITES_OF_NAMESPACE * 4):
        queue.put(f"hanging-{number}-late", f"evil-late-{number % 4}", loop.time(), f"hanging-{number}-late")
    writer.wake()
    await asyncio.sleep(4)
    queue.put("victim-late", "default", loop.time(), "victim-late")
    writer.wake()
    began = loop.time()
    await asyncio.sleep(1)
    assert done["victim-late"] - began < 0.5, "the loans are used up, but for the reserve"
    for number in range(200):
        queue.put(f"hanging-more-{number}", f"more-{number}", loop.time(), f"hanging-more-{number}")
    writer.wake()
    assert await writer.flush(300)
    assert peak == CONCURRENT_WRITES + LENDABLE_SLOTS and len(done) == WRITES_OF_NAMESPACE * 8 + 2 + 200
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
