"""The condition is written on pods that lack a node, newest message only, and never on one that has a node."""

import asyncio
import logging
from typing import Any

import pytest

from tests.helpers import make_pod
from topo_scheduler.api.objects import PodCondition
from topo_scheduler.kube.connection.fence import Fence
from topo_scheduler.kube.writing.binder import Binder, BindRequest, BindStatus
from topo_scheduler.kube.writing.conditions import ConditionWriter
from topo_scheduler.simulation.apiserver import Delay, Disconnect, Refuse
from topo_scheduler.simulation.apiserver.faults import Fault

from .virtual import now, virtual_time
from .world import World, running, world


def writer(w: World, **options: Any) -> ConditionWriter:
    return ConditionWriter(w.client, **{"clock": now, "wall": now, **options})


def scheduled(w: World, name: str = "pod") -> PodCondition | None:
    return next((condition for condition in w.pod(name).status.conditions if condition.type == "PodScheduled"), None)


def says(w: World, name: str = "pod") -> str:
    condition = scheduled(w, name)
    return condition.message if condition else ""


@virtual_time
async def test_it_is_the_condition_autoscalers_look_for() -> None:
    async with world() as w:
        pod = w.create_pod("pod")
        writes = writer(w)
        async with running(writes.run()):
            writes.set_unschedulable(pod, "no leaf has room")
            assert await writes.flush(5)
        condition = scheduled(w)
        assert condition is not None
        assert (condition.status, condition.reason) == ("False", "Unschedulable")
        assert condition.message == "no leaf has room"


@virtual_time
async def test_its_transition_is_when_the_pod_was_first_seen_pending_and_stays() -> None:
    async with world() as w:
        pod, gated = w.create_pod("pod"), w.create_pod("gated")
        gated.status.conditions = [PodCondition("PodScheduled", "False", "SchedulingGated")]
        writes = writer(w)
        async with running(writes.run()):
            writes.set_unschedulable(pod, "no room", 1_700_000_000.7)
            writes.set_unschedulable(gated, "no room", 1_700_000_060.0)
            await writes.flush(5)
            writes.set_unschedulable(w.pod("pod"), "still none", 1_700_000_500.0)
            await writes.flush(5)
        condition, was_gated = scheduled(w), scheduled(w, "gated")
        assert condition is not None
        assert was_gated is not None
        assert (condition.message, condition.last_transition_time) == ("still none", "2023-11-14T22:13:20Z")
        assert was_gated.last_transition_time == "2023-11-14T22:14:20Z", "gates gave it a condition without a time"


@virtual_time
async def test_the_newest_message_is_written_and_the_same_is_not_written_again() -> None:
    async with world() as w:
        pod = w.create_pod("pod")
        writes = writer(w)
        async with running(writes.run()):
            for number in range(5):
                writes.set_unschedulable(pod, f"message {number}")
            await writes.flush(5)
            assert (says(w), writes.written) == ("message 4", 1)
            writes.set_unschedulable(pod, "message 4")
            writes.set_unschedulable(w.pod("pod"), "message 4")
            await writes.flush(5)
            assert writes.written == 1
            writes.set_unschedulable(w.pod("pod"), "message 5")
            await writes.flush(5)
            assert (says(w), writes.written) == ("message 5", 2)


@virtual_time
async def test_invisible_characters_in_a_message_are_escaped() -> None:
    async with world() as w:
        pod, writes = w.create_pod("pod"), writer(w)
        async with running(writes.run()):
            writes.set_unschedulable(pod, "group a\n\x1b[2J\u202e is waiting")
            assert await writes.flush(5)
            writes.set_unschedulable(w.pod("pod"), "group a\n\x1b[2J\u202e is waiting")
            assert await writes.flush(5)
        assert says(w) == r"group a\n\x1b[2J\u202e is waiting"
        assert writes.written == 1, "the escaped text is the one that was written"


@virtual_time
async def test_what_the_pod_said_before_we_started_is_not_written_again() -> None:
    async with world() as w:
        pod = w.create_pod("pod")
        first, second = writer(w), writer(w)
        async with running(first.run(), second.run()):
            first.set_unschedulable(pod, "no room")
            await first.flush(5)
            second.set_unschedulable(w.pod("pod"), "no room")
            await second.flush(5)
        assert second.written == 0


@virtual_time
async def test_a_condition_that_another_client_changed_is_written_again() -> None:
    async with world() as w:
        pod = w.create_pod("pod")
        writes, other = writer(w), writer(w)
        async with running(writes.run(), other.run()):
            writes.set_unschedulable(pod, "ours")
            await writes.flush(5)
            other.set_unschedulable(w.pod("pod"), "theirs")
            await other.flush(5)
            writes.set_unschedulable(w.pod("pod"), "ours")
            await writes.flush(5)
        assert says(w) == "ours"


@virtual_time
async def test_a_message_that_comes_while_another_is_written_is_written_after_it() -> None:
    async with world() as w:
        pod = w.create_pod("pod")
        w.server.faults.add(Delay(1.0), verb="patch", times=1)
        writes = writer(w)
        async with running(writes.run()):
            writes.set_unschedulable(pod, "first")
            await asyncio.sleep(0.5)
            writes.set_unschedulable(pod, "second")
            assert await writes.flush(5)
        assert says(w) == "second"


@virtual_time
async def test_a_pod_that_got_its_node_meanwhile_is_not_marked() -> None:
    async with world() as w:
        pod = w.create_pod("pod")
        w.server.faults.add(Delay(1.0), verb="patch", times=1)
        writes = writer(w)
        async with running(writes.run()):
            writes.set_unschedulable(pod, "no room")
            await asyncio.sleep(0.5)
            bound = await Binder(w.client, clock=now).bind(BindRequest("default", "pod", pod.metadata.uid, "node-1"))
            assert bound.outcome is BindStatus.BOUND
            assert await writes.flush(5)
        condition = scheduled(w)
        assert condition is None or condition.status == "True"
        assert (writes.written, len(writes)) == (0, 0)


@virtual_time
async def test_a_pod_that_only_changed_is_marked_all_the_same() -> None:
    async with world() as w:
        pod = w.create_pod("pod")
        w.annotate("pod", "a", "b")
        writes = writer(w)
        async with running(writes.run()):
            writes.set_unschedulable(pod, "no room")
            assert await writes.flush(5)
        assert (says(w), writes.failed) == ("no room", 0)


@pytest.mark.parametrize("replaced", [False, True])
@virtual_time
async def test_a_pod_that_is_gone_is_forgotten(replaced: bool) -> None:
    async with world() as w:
        pod = w.create_pod("pod")
        w.remove_pod("pod")
        if replaced:
            w.create_pod("pod")
        writes = writer(w)
        async with running(writes.run()):
            writes.set_unschedulable(pod, "no room")
            assert await writes.flush(5)
        assert (writes.written, writes.failed, len(writes)) == (0, 0, 0)
        if replaced:
            assert scheduled(w) is None


@pytest.mark.parametrize("verb", ["patch", None])
@virtual_time
async def test_a_404_for_a_pod_that_exists_is_a_failure_that_is_logged(
    verb: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    async with world() as w:
        pod = w.create_pod("pod")
        w.server.faults.add(Refuse(404, message="no such tenant"), verb=verb)
        writes = writer(w)
        async with running(writes.run()):
            writes.set_unschedulable(pod, "no room")
            assert await writes.flush(5)
        assert (writes.written, writes.failed) == (0, 1)
        assert "no such tenant" in caplog.text
        assert w.asked("patch", "pods/status") == 1


@virtual_time
async def test_what_is_forgotten_is_neither_written_nor_remembered() -> None:
    async with world() as w:
        waiting, doing = w.create_pod("waiting"), w.create_pod("doing")
        w.server.faults.add(Delay(1.0), verb="patch")
        writes = writer(w, concurrency=1)
        async with running(writes.run()):
            writes.set_unschedulable(doing, "no room")
            writes.set_unschedulable(waiting, "no room")
            await asyncio.sleep(0.5)
            writes.forget(doing.metadata.uid)
            writes.forget(waiting.metadata.uid)
            assert await writes.flush(5)
        assert scheduled(w, "waiting") is None
        assert len(writes) == 0


@pytest.mark.parametrize("fault", [Refuse(429), Refuse(500), Disconnect(), Disconnect(applied=True)], ids=repr)
@virtual_time
async def test_what_passes_is_sat_out(fault: Fault) -> None:
    async with world() as w:
        pod = w.create_pod("pod")
        w.server.faults.add(fault, verb="patch", times=3)
        writes = writer(w)
        async with running(writes.run()):
            writes.set_unschedulable(pod, "no room")
            assert await writes.flush(30)
        assert (says(w), writes.failed) == ("no room", 0)


@virtual_time
async def test_what_is_refused_is_counted_and_tried_at_the_next_attempt(caplog: pytest.LogCaptureFixture) -> None:
    async with world() as w:
        pod = w.create_pod("pod")
        w.server.faults.add(Refuse(403), verb="patch", times=1)
        writes = writer(w)
        async with running(writes.run()):
            writes.set_unschedulable(pod, "no room")
            await writes.flush(5)
            assert writes.failed == 1
            assert "pod default/pod is not marked as unschedulable" in caplog.text
            writes.set_unschedulable(pod, "no room")
            await writes.flush(5)
        assert says(w) == "no room"


@virtual_time
async def test_conditions_stand_back_behind_binds_but_not_for_long() -> None:
    async with world() as w:
        pod = w.create_pod("pod")
        writes = writer(w, busy=lambda: True)
        async with running(writes.run()):
            writes.set_unschedulable(pod, "no room")
            await asyncio.sleep(3)
            assert writes.written == 0
            await asyncio.sleep(2)
            assert writes.written == 1


@virtual_time
async def test_conditions_that_the_server_does_not_answer_hold_up_none_of_other_namespaces() -> None:
    async with world() as w:
        w.server.store.create("namespaces", {"metadata": {"name": "hostile"}})
        w.server.faults.add(Delay(9.0), verb="patch", where=lambda info: info.namespace == "hostile")
        writes = writer(w)
        async with running(writes.run()):
            for number in range(60):
                writes.set_unschedulable(make_pod(f"pod-{number}", namespace="hostile"), "no room")
            await asyncio.sleep(1)
            writes.set_unschedulable(w.create_pod("pod"), "no room")
            await asyncio.sleep(1)
        assert says(w) == "no room"


@virtual_time
async def test_conditions_that_are_not_sent_at_the_end_of_a_lease_are_no_warnings(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    async with world() as w:
        pod = w.create_pod("pod")
        writes = ConditionWriter(w.client.fenced(Fence(lambda: 0.0)), clock=now, wall=now)
        async with running(writes.run()):
            writes.set_unschedulable(pod, "no room")
            await writes.flush(5)
    said = [record for record in caplog.records if "is not marked" in record.message]
    assert [record.levelno for record in said] == [logging.DEBUG]
