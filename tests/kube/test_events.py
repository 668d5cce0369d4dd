"""Events say each thing once, behind the binds but not late, and never cost a placement."""

import asyncio
import json
import re
from dataclasses import replace
from typing import Any, Literal

import pytest

from topo_scheduler.kube.connection.errors import Undecodable
from topo_scheduler.kube.writing import events as module
from topo_scheduler.kube.writing.events import EventRecorder, ObjectReference
from topo_scheduler.simulation.apiserver import Disconnect, Refuse, RequestInfo
from topo_scheduler.simulation.apiserver.faults import Fault

from .virtual import now, virtual_time
from .world import World, eventually, running, world

POD = ObjectReference("v1", "Pod", "default", "pod-0", "uid-0")


def recorder(w: World, **options: Any) -> EventRecorder:
    return EventRecorder(w.client, "topo-scheduler", "topo-scheduler-0", **{"clock": now, "wall": now, **options})


def record(
    r: EventRecorder,
    message: str = "0/4 nodes are available",
    pod: ObjectReference = POD,
    reason: str = "FailedScheduling",
    kind: Literal["Normal", "Warning"] = "Warning",
    *,
    more: bool = False,
) -> None:
    r.record(pod, kind, reason, message, "Scheduling", follow_up=more)


def of_hostile(info: RequestInfo) -> bool:
    return info.namespace == "hostile"


async def posted(w: World) -> list[dict[str, Any]]:
    answer = await w.client.request("GET", "/apis/events.k8s.io/v1/events", timeout=5)
    items: list[dict[str, Any]] = json.loads(answer)["items"]
    return items


@virtual_time
async def test_an_event_is_what_kubectl_describe_shows() -> None:
    async with world() as w:
        r = recorder(w)
        async with running(r.run()):
            record(r)
            assert await r.flush(5)
        (event,) = await posted(w)
        assert event["metadata"]["name"].startswith("pod-0.")
        assert event["regarding"] == {
            "apiVersion": "v1", "kind": "Pod", "namespace": "default", "name": "pod-0", "uid": "uid-0"
        }  # fmt: skip
        assert (event["type"], event["reason"], event["action"]) == ("Warning", "FailedScheduling", "Scheduling")
        assert event["note"] == "0/4 nodes are available"
        assert event["reportingController"] == "topo-scheduler"
        assert event["eventTime"].endswith("Z")


@virtual_time
async def test_what_can_not_be_seen_is_shown_as_a_code() -> None:
    async with world() as w:
        r = recorder(w)
        async with running(r.run()):
            record(r, "group a\n\x1b[2J\u202e is waiting")
            assert await r.flush(5)
        (event,) = await posted(w)
        assert event["note"] == r"group a\n\x1b[2J\u202e is waiting"


@virtual_time
async def test_what_follows_at_once_replaces_what_was_to_be_said() -> None:
    async with world() as w:
        r = recorder(w)
        async with running(r.run()):
            record(r, "0/4 nodes are available.")
            record(r, "0/4 nodes are available.", pod=ObjectReference("v1", "Pod", "default", "pod-1", "uid-1"))
            record(r, "Held back", reason="GangRolledBack")
            await asyncio.sleep(module.SETTLE_SECONDS - 0.1)
            assert await posted(w) == []
            record(r, "0/4 nodes are available. 2 of 64 pods would fit now.")
            await asyncio.sleep(1.0)
            record(r, "0/5 nodes are available.")
            record(r, "0/4 nodes are available.")
            await asyncio.sleep(1.0)
        said = sorted((event["regarding"]["name"], event["note"]) for event in await posted(w))
        assert said == [
            ("pod-0", "0/4 nodes are available."),
            ("pod-0", "0/4 nodes are available. 2 of 64 pods would fit now."),
            ("pod-0", "Held back"),
            ("pod-1", "0/4 nodes are available."),
        ]
        assert r.posted == 4


@virtual_time
async def test_an_event_that_is_to_be_followed_is_held_until_it_is_but_for_two_seconds_at_most() -> None:
    followed, alone, plain = (ObjectReference("v1", "Pod", "default", name, name) for name in ("a", "b", "c"))
    async with world() as w:
        r = recorder(w)
        async with running(r.run()):
            for pod in (followed, alone):
                record(r, "0/4 nodes are available.", pod=pod, more=True)
            await asyncio.sleep(0.2)
            record(r, "0/4 nodes are available.", pod=plain)
            await asyncio.sleep(1.2)
            assert [event["regarding"]["name"] for event in await posted(w)] == ["c"], "it waits for none that is held"
            record(r, "0/4 nodes are available. 2 of 64 pods would fit now.", pod=followed)
            await asyncio.sleep(0.2)
            assert len(await posted(w)) == 2, "what follows is posted at once"
            await asyncio.sleep(module.HOLD_SECONDS - 1.5)
            assert len(await posted(w)) == 3, "it was held for long enough"
            record(r, "0/4 nodes are available. 2 of 64 pods would fit now.", pod=alone)
            assert await r.flush(5)
        said = sorted((event["regarding"]["name"], event["note"]) for event in await posted(w))
        assert said == [
            ("a", "0/4 nodes are available. 2 of 64 pods would fit now."),
            ("b", "0/4 nodes are available."),
            ("b", "0/4 nodes are available. 2 of 64 pods would fit now."),
            ("c", "0/4 nodes are available."),
        ]


@virtual_time
async def test_what_is_held_and_changes_all_the_time_is_posted_all_the_same() -> None:
    async with world() as w:
        r = recorder(w)
        async with running(r.run()):
            for number in range(80):
                record(r, f"{number}/4 nodes are available.", more=True)
                await asyncio.sleep(0.1)
            assert 2 <= len(await posted(w)) <= 5
            assert await r.flush(5)
        assert len(r) == 0 and not r._replaceable


@virtual_time
async def test_what_is_held_counts_for_the_capacity_and_is_flushed() -> None:
    async with world() as w:
        r = recorder(w, capacity=4)
        for number in range(6):
            record(r, pod=ObjectReference("v1", "Pod", "default", "x", f"uid-{number}"), more=number % 2 == 0)
        assert (len(r), r.dropped) == (4, 2)
        async with running(r.run()):
            assert await r.flush(0.3)
        assert len(await posted(w)) == 4


@virtual_time
async def test_of_a_full_queue_what_has_waited_longest_is_dropped_held_or_not() -> None:
    pods = [replace(POD, uid=f"uid-{number}", name=f"pod-{number}") for number in range(3)]
    async with world() as w:
        r = recorder(w, capacity=2)
        record(r, pod=pods[0], more=True)
        await asyncio.sleep(module.HOLD_SECONDS - module.SETTLE_SECONDS + 0.1)
        for pod in pods[1:]:
            record(r, pod=pod)
        async with running(r.run()):
            assert await r.flush(5)
        assert {event["regarding"]["name"] for event in await posted(w)} == {"pod-1", "pod-2"}


@virtual_time
async def test_what_waits_behind_binds_for_longer_than_a_moment_is_posted_all_the_same() -> None:
    async with world() as w:
        r = recorder(w, busy=lambda: True)
        async with running(r.run()):
            record(r, "0/4 nodes are available.")
            await asyncio.sleep(module.SETTLE_SECONDS + 0.1)
            record(r, "0/5 nodes are available.")
            assert await r.flush(5)
        assert len(await posted(w)) == 2


@virtual_time
async def test_a_repetition_that_is_to_be_published_is_replaced_by_nothing() -> None:
    async with world() as w:
        r = recorder(w)
        async with running(r.run()):
            record(r, "0/4 nodes are available.")
            await asyncio.sleep(module.SERIES_SECONDS + 1)
            record(r, "0/4 nodes are available.")
            record(r, "0/5 nodes are available.")
            assert await r.flush(5)
        counts = {event["note"]: (event.get("series") or {}).get("count") for event in await posted(w)}
        assert counts == {"0/4 nodes are available.": 2, "0/5 nodes are available.": None}


@virtual_time
async def test_messages_that_change_all_the_time_are_posted_all_the_same() -> None:
    async with world() as w:
        r = recorder(w)
        async with running(r.run()):
            for number in range(40):
                record(r, f"{number}/4 nodes are available.")
                await asyncio.sleep(0.1)
        assert 4 <= len(await posted(w)) <= 10


@virtual_time
async def test_the_same_event_is_published_once_and_a_new_one_again() -> None:
    async with world() as w:
        r = recorder(w)
        async with running(r.run()):
            for _ in range(10):
                record(r)
                await asyncio.sleep(1)
            record(r, "0/5 nodes are available")
            record(r, pod=ObjectReference("v1", "Pod", "default", "pod-1", "uid-1"))
            record(r, reason="Scheduled", kind="Normal")
            assert await r.flush(5)
        assert len(await posted(w)) == 4
        assert w.asked("patch", "events") == 0


@virtual_time
async def test_a_repetition_is_published_as_a_series_every_five_minutes() -> None:
    async with world() as w:
        r = recorder(w)
        async with running(r.run()):
            for _ in range(64):
                record(r)
                await asyncio.sleep(10)
            assert await r.flush(5)
        (event,) = await posted(w)
        assert event["series"]["count"] == 63
        assert w.asked("patch", "events") == 2
        assert w.asked("create", "events") == 1


@virtual_time
async def test_an_event_that_expired_on_the_server_is_posted_again() -> None:
    async with world() as w:
        r = recorder(w)
        async with running(r.run()):
            record(r)
            await r.flush(5)
            (event,) = await posted(w)
            w.server.store.delete("events.events.k8s.io", event["metadata"]["name"], "default")
            await asyncio.sleep(301)
            record(r)
            await r.flush(5)
        (again,) = await posted(w)
        assert again["metadata"]["name"] != event["metadata"]["name"]
        assert (r.posted, r.failed) == (2, 0)
        async with running(r.run()):
            await asyncio.sleep(301)
            record(r)
            await r.flush(5)
        assert (await posted(w))[0]["series"]["count"] == 2, "counted from the new one"


@virtual_time
async def test_events_stand_back_behind_binds_but_not_for_long() -> None:
    async with world() as w:
        binding = True
        r = recorder(w, busy=lambda: binding)
        async with running(r.run()):
            record(r)
            await asyncio.sleep(7)
            assert not await posted(w)
            await asyncio.sleep(2)
            assert len(await posted(w)) == 1, "patience has an end"
            record(r, "something new")
            binding = False
            await asyncio.sleep(module.SETTLE_SECONDS + 0.2)
            assert len(await posted(w)) == 2, "nothing to stand back behind"


@virtual_time
async def test_flushing_does_not_stand_back_and_says_whether_it_was_done() -> None:
    async with world() as w:
        r = recorder(w, busy=lambda: True)
        async with running(r.run()):
            assert await r.flush(0.1), "nothing to do"
            record(r)
            assert await r.flush(1)
            await w.server.go_away()
            record(r, "while away")
            assert not await r.flush(2)


@virtual_time
async def test_a_thousand_at_once_all_exist_within_thirty_seconds() -> None:
    async with world() as w:
        r = recorder(w, busy=lambda: True)
        async with running(r.run()):
            for number in range(1_000):
                record(r, pod=ObjectReference("v1", "Pod", "default", f"pod-{number}", f"uid-{number}"))
            await eventually(lambda: r.posted == 1_000, within=30)
        assert len({event["regarding"]["uid"] for event in await posted(w)}) == 1_000


@virtual_time
async def test_without_the_right_to_write_events_one_line_counts_those_that_are_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    text = 'events.events.k8s.io is forbidden: User "topo" cannot create resource "events" in API group "events.k8s.io"'
    async with world() as w:
        rule = w.server.faults.add(Refuse(403, message=text), verb="create", resource="events")
        r = recorder(w)
        async with running(r.run()):
            for number in range(40):
                record(r, f"message {number}", reason="BindFailed")
                await asyncio.sleep(5)
            assert await r.flush(120)
            assert (r.posted, r.failed) == (0, 40)
            w.server.faults.remove(rule)
            record(r, "message", reason="BindFailed")
            assert await r.flush(60)
    lines = [line for line in caplog.messages if "lost" in line]
    assert len(lines) <= 6, lines
    assert lines[0].startswith("1 event is lost since the last such line: ") and "cannot create resource" in lines[0]
    assert lines[-1].startswith("events are written again; ")
    assert sum(int(re.findall(r"\d+", line)[0]) for line in lines) == 40


@pytest.mark.parametrize(
    "fault", [Refuse(429, retry_after=1), Refuse(500), Disconnect(), Disconnect(applied=True)], ids=repr
)
@virtual_time
async def test_what_passes_costs_no_event_and_doubles_none(fault: Fault) -> None:
    async with world() as w:
        w.server.faults.add(fault, verb="create", resource="events", times=6)
        r = recorder(w)
        async with running(r.run()):
            for number in range(20):
                record(r, f"message {number}", reason="BindFailed")
            assert await r.flush(60)
        assert sorted(event["note"] for event in await posted(w)) == sorted(f"message {number}" for number in range(20))
        assert (r.posted, r.failed) == (20, 0)


@virtual_time
async def test_what_is_refused_is_counted_and_said_and_may_be_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    async with world() as w:
        w.server.faults.add(Refuse(403, message="admission webhook denied the request"), verb="create", times=1)
        r = recorder(w)
        async with running(r.run()):
            record(r)
            assert await r.flush(5)
            assert (r.posted, r.failed) == (0, 1)
            assert "event FailedScheduling about Pod default/pod-0 is lost: " in caplog.text
            record(r)
            assert await r.flush(5)
        assert len(await posted(w)) == 1


@virtual_time
async def test_no_warning_is_logged_of_events_in_a_namespace_that_is_being_deleted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with world() as w:
        w.server.store.create("namespaces", {"metadata": {"name": "doomed"}})
        await w.client.request("DELETE", "/api/v1/namespaces/doomed", body=b"{}", timeout=5)
        r = recorder(w)
        async with running(r.run()):
            record(r, pod=replace(POD, namespace="doomed"))
            assert await r.flush(5)
        assert (r.posted, r.failed) == (0, 1)
        assert not [line for line in caplog.records if line.levelname == "WARNING"]


@pytest.mark.parametrize("times", [4, None], ids=["for a while", "for good"])
@virtual_time
async def test_a_refusal_by_rbac_is_not_believed_at_once(times: int | None) -> None:
    # A server that has just started refuses every client until it has read its roles.
    async with world() as w:
        message = 'events is forbidden: User "topo" cannot create resource "events"'
        w.server.faults.add(Refuse(403, message=message), verb="create", times=times)
        r = recorder(w)
        async with running(r.run()):
            record(r)
            assert await r.flush(60)
        assert (r.posted, r.failed) == ((1, 0) if times else (0, 1))


@virtual_time
async def test_a_refusal_by_rbac_after_an_outage_is_not_believed_at_once() -> None:
    # The server that returns after half a minute has not read its roles either.
    async with world() as w:
        outage = w.server.faults.add(Refuse(503), verb="create")
        r = recorder(w)
        async with running(r.run()):
            record(r)
            await asyncio.sleep(30)
            w.server.faults.remove(outage)
            message = 'events is forbidden: User "topo" cannot create resource "events"'
            refusals = w.server.faults.add(Refuse(403, message=message), verb="create", times=2)
            assert await r.flush(60)
        assert (r.posted, r.failed, refusals.struck) == (1, 0, 2)


@virtual_time
async def test_a_full_queue_drops_the_oldest_and_counts(caplog: pytest.LogCaptureFixture) -> None:
    async with world() as w:
        r = recorder(w, capacity=10)
        for number in range(25):
            record(r, f"message {number}", reason="BindFailed")
        assert (len(r), r.dropped) == (10, 15)
        assert sum("events dropped so far" in line.getMessage() for line in caplog.records) == 4, "1, 2, 4, 8"
        async with running(r.run()):
            assert await r.flush(5)
        assert {event["note"] for event in await posted(w)} == {f"message {number}" for number in range(15, 25)}


@virtual_time
async def test_what_was_dropped_can_be_said_again() -> None:
    async with world() as w:
        r = recorder(w, capacity=1)
        for message in ("a", "b", "a"):
            record(r, message)
        async with running(r.run()):
            assert await r.flush(5)
        assert [event["note"] for event in await posted(w)] == ["a"]


@virtual_time
async def test_what_waits_for_long_waits_once() -> None:
    async with world() as w:
        r = recorder(w)
        record(r)
        await asyncio.sleep(400)
        record(r)
        assert len(r) == 1
        assert r._queue.count("default") == 1


@virtual_time
async def test_memory_of_what_was_said_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED_MESSAGES", 5)
    async with world() as w:
        r = recorder(w)
        for number in range(50):
            record(r, f"message {number}", reason="BindFailed")
        assert len(r._known) == 5


@virtual_time
async def test_what_was_said_again_lately_is_remembered_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED_MESSAGES", 2)
    async with world() as w:
        r = recorder(w)
        async with running(r.run()):
            for message in ("often", "once", "often", "new", "often"):
                record(r, message, reason="BindFailed")
                assert await r.flush(5)
        assert sorted(event["note"] for event in await posted(w)) == ["new", "often", "once"]


@virtual_time
async def test_an_event_that_is_lost_does_not_make_one_forgotten_that_was_posted_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "REMEMBERED_MESSAGES", 1)
    post, lost = EventRecorder._post, iter([True])

    async def lose_the_first(self: EventRecorder, series: Any, occurrence: Any, slot: Any) -> None:
        if next(lost, False):
            await asyncio.sleep(1)
            raise Undecodable("an answer that says nothing")
        await post(self, series, occurrence, slot)

    monkeypatch.setattr(EventRecorder, "_post", lose_the_first)
    async with world() as w:
        r = recorder(w)
        async with running(r.run()):
            record(r, "a", reason="BindFailed")
            await asyncio.sleep(module.SETTLE_SECONDS + 0.1)
            record(r, "b", reason="BindFailed")
            record(r, "a", reason="BindFailed")
            await asyncio.sleep(2)
            record(r, "a", reason="BindFailed")
            assert await r.flush(5)
        assert r.failed == 1
        assert sorted(event["note"] for event in await posted(w)) == ["a", "b"]


@virtual_time
async def test_what_is_about_to_be_said_gives_way_also_once_an_earlier_message_was_posted() -> None:
    async with world() as w:
        r = recorder(w, busy=lambda: True)
        async with running(r.run()):
            record(r, "0/4 nodes are available.")
            await asyncio.sleep(module.PATIENCE_SECONDS - 0.1)
            record(r, "0/5 nodes are available.")
            await eventually(lambda: r.posted == 1, within=0.3)
            record(r, "0/5 nodes are available. 2 of 64 pods would fit now.")
            assert await r.flush(5)
        notes = sorted(event["note"] for event in await posted(w))
        assert notes == ["0/4 nodes are available.", "0/5 nodes are available. 2 of 64 pods would fit now."]


@virtual_time
async def test_texts_fit_the_limits_of_the_api_in_bytes() -> None:
    async with world() as w:
        r = recorder(w)
        async with running(r.run()):
            record(r, "ü" * 2_000, pod=ObjectReference("v1", "Pod", "default", "p" * 253, "uid"))
            assert await r.flush(5)
        (event,) = await posted(w)
        assert len(event["note"].encode()) <= 1024
        assert event["note"].endswith("ü…")
        assert len(event["metadata"]["name"]) <= 253


@virtual_time
async def test_events_about_what_has_no_namespace_go_to_the_default_one() -> None:
    async with world() as w:
        r = recorder(w)
        async with running(r.run()):
            record(r, pod=ObjectReference("v1", "Node", "", "node-1", "uid"))
            assert await r.flush(5)
        assert (await posted(w))[0]["metadata"]["namespace"] == "default"


@virtual_time
async def test_events_of_one_namespace_do_not_push_out_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUEUED_EVENTS_OF_NAMESPACE", 5)
    async with world() as w:
        r = recorder(w)
        for number in range(20):
            record(r, pod=ObjectReference("v1", "Pod", "hostile", f"pod-{number}", f"hostile-{number}"))
        record(r)
        assert (len(r), r.dropped) == (6, 15)
        w.server.store.create("namespaces", {"metadata": {"name": "hostile"}})
        async with running(r.run()):
            assert await r.flush(5)
        assert len(await posted(w)) == 6
        assert r._queue.count("default") == r._queue.count("hostile") == 0
        record(r, "anew", pod=ObjectReference("v1", "Pod", "hostile", "pod-19", "hostile-19"))
        assert len(r) == 1


@virtual_time
async def test_one_that_was_just_taken_is_posted_though_another_follows_at_the_same_moment() -> None:
    async with world() as w:
        r = recorder(w)
        record(r, "first")
        _, taken = r._queue.take()
        record(r, "second")
        assert taken.occurrence is not None and len(r) == 1


@virtual_time
async def test_events_of_namespaces_take_turns() -> None:
    async with world() as w:
        w.server.store.create("namespaces", {"metadata": {"name": "hostile"}})
        r = recorder(w)
        for number in range(500):
            record(r, pod=ObjectReference("v1", "Pod", "hostile", f"pod-{number}", f"hostile-{number}"))
        record(r)
        async with running(r.run()):
            assert await r.flush(60)
        order = sorted(await posted(w), key=lambda event: int(event["metadata"]["resourceVersion"]))
        place = next(at for at, event in enumerate(order) if event["metadata"]["namespace"] == "default")
        assert place < 32


@virtual_time
async def test_events_that_the_server_delays_hold_up_no_others() -> None:
    async with world() as w:
        w.server.store.create("namespaces", {"metadata": {"name": "hostile"}})
        w.server.faults.add(Refuse(429, retry_after=5), verb="create", resource="events", where=of_hostile)
        r = recorder(w)
        async with running(r.run()):
            for number in range(500):
                record(r, pod=ObjectReference("v1", "Pod", "hostile", f"pod-{number}", f"hostile-{number}"))
            await asyncio.sleep(2)
            record(r)
            await eventually(lambda: r.posted == 1, within=3)


@virtual_time
async def test_a_full_queue_drops_those_of_the_namespace_that_has_most() -> None:
    async with world() as w:
        r = recorder(w, capacity=10)
        record(r)
        for number in range(20):
            record(r, pod=ObjectReference("v1", "Pod", "hostile", f"pod-{number}", f"hostile-{number}"))
        assert (len(r), r.dropped) == (10, 11)
        async with running(r.run()):
            await r.flush(60)
        assert [event["metadata"]["namespace"] for event in await posted(w)] == ["default"]
