"""Pods that recovery reads for a Migration, which names them as its author likes."""

import asyncio
from functools import partial
from typing import Any

import pytest

from tests.kube.virtual import virtual_time
from tests.kube.world import World, world
from topo_scheduler.kube.connection.errors import TooLarge
from topo_scheduler.kube.connection.fair_slots import FairSlots
from topo_scheduler.kube.connection.resources import MAX_POD_BYTES
from topo_scheduler.kube.reading.pods import read_pod
from topo_scheduler.recovery.controller.controller_reader import CONCURRENT_READS, ControllerReader
from topo_scheduler.scheduling.instructions import PodRef
from topo_scheduler.simulation.apiserver import Delay, Refuse
from topo_scheduler.simulation.apiserver.requests import RequestInfo

OWNER = {"apiVersion": "batch/v1", "kind": "Job", "name": "job", "uid": "uid-job", "controller": True}


class Reads:
    """The requests for pods: how many there were, and how many at once."""

    def __init__(self, w: World, seconds: float = 1.0) -> None:
        self.count = 0
        self.in_progress: list[float] = []
        self._seconds = seconds
        w.server.faults.add(Delay(seconds), where=self._note)

    def _note(self, info: RequestInfo) -> bool:
        if info.resource != "pods":
            return False
        self.count += 1
        self.in_progress.append(asyncio.get_running_loop().time())
        return True

    def peak_at_once(self) -> int:
        return max(sum(began <= at < began + self._seconds for began in self.in_progress) for at in self.in_progress)


@virtual_time
async def test_a_pod_is_read_again_while_a_load_balancer_answers_404() -> None:
    async with world() as w:
        uid = w.create_pod("pod", ownerReferences=[OWNER]).metadata.uid
        reader = ControllerReader(w.client)
        rule = w.server.faults.add(Refuse(404))
        reading = asyncio.create_task(reader.read(PodRef("default", "pod", uid)))
        await asyncio.sleep(2)
        w.server.faults.remove(rule)
        identity = await reading
        assert identity is not None and identity.uid == uid
        assert identity.controller is not None and identity.controller.uid == "uid-job"
        w.remove_pod("pod")
        assert await reader.read(PodRef("default", "pod", uid)) is None


@virtual_time
async def test_one_request_serves_all_uids_that_a_migration_names_with_one_name() -> None:
    async with world() as w:
        uid = w.create_pod("pod", ownerReferences=[OWNER]).metadata.uid
        reader, reads = ControllerReader(w.client), Reads(w)
        uids = [uid, *(f"made-up-{number}" for number in range(63))]
        answers = await asyncio.gather(*(reader.read(PodRef("default", "pod", uid)) for uid in uids))
        assert reads.count == 1
        assert [None if answer is None else answer.uid for answer in answers] == [uid] + 63 * [None]
        assert not reader._asking


@virtual_time
async def test_few_pods_are_read_at_once_for_their_owners_and_those_of_another_namespace_meanwhile() -> None:
    async with world() as w:
        w.server.store.create("namespaces", {"metadata": {"name": "other"}}, "")
        reader, reads = ControllerReader(w.client), Reads(w)
        tasks = [asyncio.create_task(reader.read(PodRef("default", f"pod-{n}", f"uid-{n}"))) for n in range(64)]
        await asyncio.sleep(0)
        await reader.read(PodRef("other", "pod", "uid"))
        assert not any(task.done() for task in tasks[4:])
        await asyncio.gather(*tasks)
        assert reads.count == 65 and reads.peak_at_once() == CONCURRENT_READS


@virtual_time
async def test_only_the_metadata_of_a_pod_is_read_for_its_owners() -> None:
    async with world() as w:
        container = {"name": "main", "image": "train", "env": [{"name": "E", "value": "<" * 100_000}]}
        pod = {"metadata": {"name": "pod", "ownerReferences": [OWNER]}, "spec": {"containers": [container]}}
        w.server.store.create("pods", pod, "default")
        uid = w.pod("pod").metadata.uid
        before = w.client.traffic.bytes_received
        identity = await ControllerReader(w.client).read(PodRef("default", "pod", uid))
        assert identity is not None and identity.controller is not None
        assert w.client.traffic.bytes_received - before < 10_000


@virtual_time
async def test_a_pod_beyond_the_cap_in_bytes_is_not_read(monkeypatch: Any) -> None:
    monkeypatch.setattr("topo_scheduler.kube.reading.pods.MAX_POD_BYTES", 1_000)
    async with world() as w:
        uid = w.create_pod("pod", labels={f"label-{number}": "x" * 60 for number in range(20)}).metadata.uid
        slots = FairSlots(4, None)
        with pytest.raises(TooLarge, match="it has more than 1,000 bytes as JSON; create it with fewer"):
            await read_pod(w.client, "default", "pod", uid, partial(slots.slot, "default"))
    assert MAX_POD_BYTES == 4 * 1024 * 1024
