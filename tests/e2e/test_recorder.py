"""The recorder notes an overbooked node, also after its watch broke, and nothing that did not happen."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import cast

import aiohttp

from . import objects
from .api import Api, Json
from .recorder import Recorder


class Lists:
    """An API whose watches of pods break at once, so that each further state of the pods comes by a list."""

    def __init__(self, *states: Sequence[Json]) -> None:
        self.left = list(states)
        self.events: list[tuple[str, Json]] = []
        self.all_listed = asyncio.Event()

    async def request(self, method: str, where: str) -> Json:
        assert method == "GET"
        if where.endswith("nodes"):
            return {"items": [objects.node("node-1")], "metadata": {"resourceVersion": "1"}}
        state = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        if len(self.left) == 1:
            self.all_listed.set()
        return {"items": state, "metadata": {"resourceVersion": "1"}}

    async def watch(self, plural: str, version: str) -> AsyncIterator[tuple[str, Json]]:
        assert version
        if plural == "nodes":
            await asyncio.Event().wait()
        for event in self.events:
            yield event
        raise aiohttp.ClientPayloadError


def _pod(name: str, node: str, phase: str) -> Json:
    pod = objects.pod(name, 8)
    return {
        "metadata": {**pod["metadata"], "uid": f"uid-{name}", "namespace": "default"},
        "spec": {**pod["spec"], **({"nodeName": node} if node else {})},
        "status": {"phase": phase},
    }


async def _problems(*states: Sequence[Json]) -> list[str]:
    api = Lists(*states)
    recorder = Recorder(cast("Api", api))
    await recorder.start()
    await asyncio.wait_for(api.all_listed.wait(), 10)
    await asyncio.sleep(0.2)  # the last list is taken, and taken again
    await recorder.stop()
    return recorder.problems


async def test_a_pod_that_took_the_place_of_an_ended_one_while_the_watch_was_broken() -> None:
    """The list names the new pod first; the ended one holds nothing any more."""
    before = [_pod("gang-1", "", "Pending"), _pod("gang-7", "node-1", "Running")]
    after = [_pod("gang-1", "node-1", "Running"), _pod("gang-7", "node-1", "Succeeded")]
    assert not await _problems(before, after)


async def test_a_node_that_was_overbooked_while_the_watch_was_broken() -> None:
    before = [_pod("gang-1", "", "Pending"), _pod("gang-7", "node-1", "Running")]
    after = [_pod("gang-1", "node-1", "Running"), _pod("gang-7", "node-1", "Running")]
    assert await _problems(before, after) == [
        "node node-1 was overbooked when default/gang-1 was bound: default/gang-1, default/gang-7"
    ]
