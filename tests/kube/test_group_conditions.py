"""The condition PodGroupScheduled: newest message only, never taken back, and never in the way."""

from typing import Any

from tests.crds import native_pod_group
from topo_scheduler.kube.writing.group_conditions import GroupConditionWriter, GroupMark
from topo_scheduler.simulation.apiserver import Delay, Refuse

from .virtual import now, virtual_time
from .world import World, eventually, running, world

KIND = "podgroups.scheduling.k8s.io"


def writer(w: World, **options: Any) -> GroupConditionWriter:
    return GroupConditionWriter(w.client, **{"clock": now, "wall": now, **options})


def group(w: World, name: str = "g") -> GroupMark:
    made = w.server.store.create(KIND, native_pod_group(name, 4), "default")
    return GroupMark("default", name, made["metadata"]["uid"], "v1alpha2", False, "Unschedulable", "no room")


def placed(mark: GroupMark) -> GroupMark:
    return GroupMark(mark.namespace, mark.name, mark.uid, mark.version, True, "Scheduled", "4 pods are bound")


def again(mark: GroupMark, message: str) -> GroupMark:
    return GroupMark(mark.namespace, mark.name, mark.uid, mark.version, mark.scheduled, mark.reason, message)


def condition(w: World, name: str = "g") -> dict[str, Any]:
    conditions = (w.server.store.get(KIND, name, "default").obj.get("status") or {}).get("conditions") or []
    return next((entry for entry in conditions if entry["type"] == "PodGroupScheduled"), {})


@virtual_time
async def test_it_is_the_condition_that_kube_scheduler_writes() -> None:
    async with world() as w:
        mark, writes = group(w), writer(w)
        async with running(writes.run()):
            writes.set(mark)
            assert await writes.flush(5)
            first = condition(w)
            assert (first["status"], first["reason"], first["message"]) == ("False", "Unschedulable", "no room")
            assert first["observedGeneration"] == 1
            writes.set(again(mark, "less room"))
            assert await writes.flush(5)
            second = condition(w)
            assert second["message"] == "less room"
            assert second["lastTransitionTime"] == first["lastTransitionTime"], "still False"
            writes.set(placed(mark))
            assert await writes.flush(5)
        assert (condition(w)["status"], condition(w)["reason"]) == ("True", "Scheduled")
        assert writes.written == 3


@virtual_time
async def test_what_it_says_is_not_written_again_and_placed_is_not_taken_back() -> None:
    async with world() as w:
        mark, writes = group(w), writer(w)
        async with running(writes.run()):
            for number in range(5):
                writes.set(again(mark, f"message {number}"))
            writes.set(again(mark, "message 4"))
            await writes.flush(5)
            writes.set(again(mark, "message 4"))
            await writes.flush(5)
            assert writes.written == 1
            writes.set(placed(mark))
            writes.set(mark)
            await writes.flush(5)
            writes.set(mark)
            await writes.flush(5)
        assert condition(w)["status"] == "True"
        assert writes.written == 2


@virtual_time
async def test_invisible_characters_in_a_message_are_escaped() -> None:
    async with world() as w:
        mark, writes = group(w), writer(w)
        async with running(writes.run()):
            writes.set(again(mark, "node a\n\x1b[2J\u202e has no room"))
            assert await writes.flush(5)
            writes.set(again(mark, "node a\n\x1b[2J\u202e has no room"))
            assert await writes.flush(5)
        assert condition(w)["message"] == r"node a\n\x1b[2J\u202e has no room"
        assert writes.written == 1, "the escaped text is the one that was written"


@virtual_time
async def test_others_conditions_stay() -> None:
    async with world() as w:
        mark, writes = group(w), writer(w)
        other = {"type": "DisruptionTarget", "status": "False", "reason": "R", "message": ""}
        w.server.store.modify(
            KIND, "g", "default", lambda obj: {**obj, "status": {"conditions": [other]}}, subresource="status"
        )
        async with running(writes.run()):
            writes.set(placed(mark))
            await writes.flush(5)
        conditions = w.server.store.get(KIND, "g", "default").obj["status"]["conditions"]
        assert {entry["type"] for entry in conditions} == {"DisruptionTarget", "PodGroupScheduled"}


@virtual_time
async def test_a_group_that_is_gone_or_another_is_let_alone() -> None:
    async with world() as w:
        mark, writes = group(w), writer(w)
        w.server.store.delete(KIND, "g", "default")
        other = group(w)
        async with running(writes.run()):
            writes.set(placed(mark))
            await writes.flush(5)
            assert condition(w) == {}
            w.server.store.delete(KIND, "g", "default")
            writes.set(placed(other))
            await writes.flush(5)
        assert (writes.written, writes.failed) == (0, 0)


@virtual_time
async def test_it_is_tried_again_and_after_a_conflict_looked_at_again() -> None:
    async with world() as w:
        mark, writes = group(w), writer(w)
        w.server.faults.add(Refuse(409), verb="patch", times=2)
        w.server.faults.add(Refuse(500), verb="get", resource="podgroups", times=2)
        async with running(writes.run()):
            writes.set(placed(mark))
            assert await writes.flush(60)
            assert condition(w)["status"] == "True"
            refused = group(w, "refused")
            w.server.faults.add(Refuse(403), verb="patch")
            writes.set(placed(refused))
            assert await writes.flush(60)
            assert writes.failed == 1, "told in the log, and the next attempt to place it writes it again"


@virtual_time
async def test_it_stands_back_behind_binds() -> None:
    async with world() as w:
        busy = True
        mark, writes = group(w), writer(w, busy=lambda: busy)
        w.server.faults.add(Delay(0.1))
        async with running(writes.run()):
            began = now()
            writes.set(placed(mark))
            await eventually(lambda: condition(w), within=10)
            assert 4 <= now() - began < 6, "but not for ever"
