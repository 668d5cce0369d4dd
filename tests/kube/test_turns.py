"""Requests go on between two steps of the engine, however busy it is."""

import asyncio

from topo_scheduler.runtime.term import TURNS_BETWEEN_STEPS, let_io_run

TURNS_OF_A_REQUEST = 6
"""About what a request of aiohttp takes: a write, the answer's head and body, and their tasks."""


async def test_a_request_ends_between_two_steps_if_its_answer_is_there() -> None:
    async def request() -> None:
        for _ in range(TURNS_OF_A_REQUEST):
            await asyncio.sleep(0)

    task = asyncio.create_task(request())
    await let_io_run()
    assert task.done()
    assert TURNS_BETWEEN_STEPS > TURNS_OF_A_REQUEST
