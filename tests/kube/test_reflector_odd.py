"""A reflector before a server that replays, sends rubbish, or has objects that do not decode."""

import asyncio
import gc
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from topo_scheduler.api.objects import Node, Pod, Status
from topo_scheduler.kube.connection.errors import Undecodable
from topo_scheduler.kube.connection.resources import CSI_NODES, NODES, PODS
from topo_scheduler.kube.reading.decoding import LARGE_BYTES, SLICE_BYTES, SLICE_OBJECTS, Codec
from topo_scheduler.kube.reading.reflector import Reflector

from .stub import stubbed
from .virtual import now, virtual_time
from .world import View, eventually, running

Json = dict[str, Any]


def pod(name: str, version: str, uid: str = "", **more: Any) -> Json:
    metadata = {"name": name, "namespace": "default", "uid": uid or f"uid-{name}", "resourceVersion": version}
    return {"metadata": metadata, **more}


def event(kind: str, item: Any) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


class Script:
    """Lists that are served one after the other, and for each watch the pieces it sends before it falls silent."""

    def __init__(self, lists: list[Any], watches: list[list[bytes]]) -> None:
        self.lists = lists
        self.watches = watches
        self.asked_from: list[str] = []

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        if "watch" not in request.query:
            answer = self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]
            if isinstance(answer, str):
                return web.Response(text=answer, content_type="application/json")
            return web.json_response(answer)
        self.asked_from.append(request.query["resourceVersion"])
        response = web.StreamResponse()
        await response.prepare(request)
        for piece in self.watches.pop(0) if self.watches else []:
            await response.write(piece)
            await asyncio.sleep(0.01)
        await asyncio.sleep(3600)
        return response


def listing(version: str, *items: Any) -> Json:
    return {"kind": "PodList", "metadata": {"resourceVersion": version}, "items": list(items)}


async def follow(script: Script, view: View[Pod], until: Callable[[Reflector[Pod]], object]) -> Reflector[Pod]:
    async with stubbed(script) as client:
        reflector = Reflector(client, PODS, view, clock=now)
        async with running(reflector.run()):
            await eventually(lambda: until(reflector), within=300)
        return reflector


@virtual_time
async def test_what_is_replayed_does_not_come_back_to_life() -> None:
    view: View[Pod] = View()
    replay = [event("ADDED", pod("a", "11")), event("DELETED", pod("a", "12")), event("ADDED", pod("a", "11"))]
    script = Script([listing("10")], [[b"".join(replay), event("ADDED", pod("end", "20"))]])
    await follow(script, view, lambda _: "end" in view.versions)
    assert view.versions == {"end": "20"}


@virtual_time
async def test_an_old_incarnation_neither_replaces_nor_deletes_the_new_one() -> None:
    view: View[Pod] = View()
    old, new = pod("a", "5", uid="old"), pod("a", "10", uid="new")
    replay = [
        event("MODIFIED", old),
        event("DELETED", {**old, "metadata": {**old["metadata"], "resourceVersion": "6"}}),
    ]
    script = Script([listing("10", new)], [[*replay, event("ADDED", pod("end", "20"))]])
    await follow(script, view, lambda _: "end" in view.versions)
    assert view.versions == {"a": "10", "end": "20"}


@virtual_time
async def test_versions_that_are_no_numbers_are_only_compared_for_equality() -> None:
    view: View[Pod] = View()
    events = [
        event("MODIFIED", pod("a", "x-9")),
        event("MODIFIED", pod("a", "x-9")),
        event("MODIFIED", pod("a", "b-1")),
        event("DELETED", pod("a", "b-2", uid="another")),
        event("ADDED", pod("end", "c")),
    ]
    script = Script([listing("x-1", pod("a", "x-1"))], [events])
    reflector = await follow(script, view, lambda _: "end" in view.versions)
    assert view.versions == {"a": "b-1", "end": "c"}
    assert view.applications("a") == 3
    assert reflector.resource_version == "c"


@virtual_time
async def test_a_replacement_in_one_event_is_a_deletion_and_an_arrival() -> None:
    view: View[Pod] = View()
    script = Script([listing("10", pod("a", "10", uid="one"))], [[event("ADDED", pod("a", "11", uid="two"))]])
    await follow(script, view, lambda _: view.applications("a") == 2)
    assert view.calls == [("applied", ["a"]), ("deleted", ["a"]), ("applied", ["a"])]


@virtual_time
async def test_bookmarks_are_not_objects() -> None:
    view: View[Pod] = View()
    bookmark = event("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": "99", "creationTimestamp": None}})
    reflector = await follow(Script([listing("10")], [[bookmark]]), view, lambda r: r.resource_version == "99")
    assert not view.calls
    assert len(reflector) == 0


@virtual_time
async def test_what_came_before_rubbish_counts_and_the_watch_goes_on_from_there() -> None:
    view: View[Pod] = View()
    burst = event("ADDED", pod("a", "11")) + event("ADDED", pod("b", "12")) + b'{"type":"ADDED","obj\n'
    script = Script([listing("10")], [[burst], [event("ADDED", pod("c", "13"))]])
    reflector = await follow(script, view, lambda _: "c" in view.versions)
    assert script.asked_from == ["10", "12"]
    assert view.calls == [("applied", ["a", "b"]), ("applied", ["c"])]
    assert reflector.lists == 1


@pytest.mark.parametrize("rubbish", [b"<html>busy</html>\n", b'{"type":"SURPRISE","object":{}}\n', b"[]\n", b"{}\n"])
@virtual_time
async def test_rubbish_at_the_same_place_twice_is_jumped_over_by_a_list(rubbish: bytes) -> None:
    view: View[Pod] = View()
    script = Script([listing("10"), listing("20", pod("a", "20"))], [[rubbish], [rubbish], []])
    reflector = await follow(script, view, lambda _: "a" in view.versions)
    assert script.asked_from[:2] == ["10", "10"]
    assert reflector.lists == 2


@virtual_time
async def test_errors_inside_a_stream_are_errors() -> None:
    view: View[Pod] = View()
    busy = event("ERROR", {"kind": "Status", "code": 429, "reason": "TooManyRequests", "message": "busy"})
    script = Script([listing("10")], [[busy], [event("ADDED", pod("a", "11"))]])
    reflector = await follow(script, view, lambda _: "a" in view.versions)
    assert script.asked_from == ["10", "10"]
    assert reflector.lists == 1


@pytest.mark.parametrize(
    "answer", [{}, {"kind": "PodList", "items": []}, {"kind": "PodList", "metadata": {"resourceVersion": "9"}}, []]
)
@virtual_time
async def test_an_answer_that_is_no_list_deletes_nothing(answer: Any) -> None:
    view: View[Pod] = View()
    script = Script([listing("10", pod("a", "10")), answer, listing("30", pod("a", "10"))], [])
    async with stubbed(script) as client:
        reflector = Reflector(client, PODS, view, clock=now)
        async with running(reflector.run()):
            await reflector.synced.wait()
            await asyncio.wait_for(reflector.relist(), 60)
    assert view.calls == [("applied", ["a"])]


@virtual_time
async def test_a_list_without_items_is_a_list() -> None:
    view: View[Pod] = View()
    empty = {"kind": "PodList", "metadata": {"resourceVersion": "20"}, "items": None}
    script = Script([listing("10", pod("a", "10")), empty], [])
    async with stubbed(script) as client:
        reflector = Reflector(client, PODS, view, clock=now)
        async with running(reflector.run()):
            await reflector.synced.wait()
            await reflector.relist()
    assert not view.objects


@virtual_time
async def test_one_bad_object_spoils_nothing_and_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    view: View[Pod] = View()
    bad = pod("bad", "8", spec={"priority": "high"})
    page = listing("10", pod("a", "5"), bad, None, pod("b", "6"))
    script = Script([page], [])
    async with stubbed(script) as client:
        reflector = Reflector(client, PODS, view, clock=now)
        async with running(reflector.run()):
            await reflector.synced.wait()
            await reflector.relist()
    assert set(view.versions) == {"a", "b"}
    assert reflector.undecodable == 2
    messages = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(messages) == 2
    assert (
        "Pod default/bad is left out: it does not decode: Expected `int`, got `str` - at `$.spec.priority`" in messages
    )


@virtual_time
async def test_a_bad_object_is_followed_until_it_is_good_or_gone() -> None:
    view: View[Pod] = View()
    bad: Json = {"spec": {"priority": "high"}}
    events = [
        event("MODIFIED", pod("turns", "11", **bad)),
        event("ADDED", pod("heals", "12", **bad)),
        event("MODIFIED", pod("heals", "13")),
        event("ADDED", pod("ends", "14", **bad)),
        event("DELETED", pod("ends", "15", **bad)),
        event("DELETED", pod("goes", "16", **bad)),
        event("MODIFIED", pod("comes", "17", uid="new", **bad)),
        event("ADDED", pod("end", "20")),
    ]
    first = listing("10", pod("turns", "10"), pod("goes", "9"), pod("comes", "8", uid="old"))
    reflector = await follow(Script([first], [events]), view, lambda _: "end" in view.versions)
    assert view.versions == {"turns": "10", "heals": "13", "end": "20"}, "the last good state stays"
    assert reflector.undecodable == 2


def test_a_null_is_what_is_absent() -> None:
    """API servers write it for empty lists: of images without a name, and on nodes without CSI drivers."""
    images = [{"names": None, "sizeBytes": 5}, {"names": ["train"], "sizeBytes": 7}]
    node = {"metadata": {"name": "n", "resourceVersion": "1"}, "status": {"images": images}}
    codec = Codec(NODES)
    for decoded in (
        codec.event(event("MODIFIED", node))[1],
        codec.one(json.dumps(node).encode()),
        *next(codec.page(json.dumps(listing("1", node)).encode())[1]),
    ):
        assert isinstance(decoded, Node)
        assert [(image.names, image.size_bytes) for image in decoded.status.images] == [([], 5), (["train"], 7)]
    bare = {"metadata": {"name": "n", "resourceVersion": "1"}, "spec": {"drivers": None}}
    assert Codec(CSI_NODES).one(json.dumps(bare).encode()).spec.drivers == []


def test_what_is_nested_too_deeply_is_cut() -> None:
    """Some fields let any user write what they like: it must not end the reader, nor hide the objects beside it."""
    deep = "[" * 100_000 + "]" * 100_000  # Python 3.13 follows nearly 20,000
    item = f'{{"metadata":{{"name":"a","resourceVersion":"1"}},"spec":{{"x":{deep},"nodeName":"n"}}}}'
    beside = '{"metadata":{"name":"b","resourceVersion":"2"}}'
    codec = Codec(PODS)
    listed = f'{{"kind":"PodList","metadata":{{"resourceVersion":"3"}},"items":[{item},{beside}]}}'
    decoded = [
        codec.one(item.encode()),
        codec.event(f'{{"type":"ADDED","object":{item}}}'.encode())[1],
        *(entry for objects in codec.page(listed.encode())[1] for entry in objects),
    ]
    assert [entry.metadata.name for entry in decoded if not isinstance(entry, Status)] == ["a", "a", "a", "b"]
    assert [entry.spec.node_name for entry in decoded if isinstance(entry, Pod)] == ["n", "n", "n", ""]
    for cut_off in (item[:50_000], listed[:50_000]):
        with pytest.raises(Undecodable):
            codec.one(cut_off.encode())
        with pytest.raises(Undecodable):
            codec.page(cut_off.encode())


@virtual_time
async def test_an_object_that_is_nested_too_deeply_hides_no_others() -> None:
    fields = '{"f:a":' * 5_000 + "{}" + "}" * 5_000

    def deep(text: str) -> str:
        return text.replace('"uid-deep"', f'"uid-deep", "managedFields": [{{"fieldsV1": {fields}}}]')

    first = deep(json.dumps(listing("3", pod("a", "1"), pod("deep", "2"))))
    line = deep(event("MODIFIED", pod("deep", "4")).decode())
    view: View[Pod] = View()
    script = Script([first], [[line.encode(), event("ADDED", pod("b", "5"))]])
    reflector = await follow(script, view, lambda r: len(r) == 3)
    assert set(view.objects) == {("default", "a"), ("default", "deep"), ("default", "b")}
    assert not reflector.undecodable


@virtual_time
async def test_a_server_that_ignores_the_limit_is_read_in_slices() -> None:
    for filler, limit in (
        (LARGE_BYTES // 5000, SLICE_OBJECTS),
        (LARGE_BYTES // 1000, SLICE_BYTES // (LARGE_BYTES // 1000) + 1),
    ):
        items = [pod(f"pod-{number}", "1", spec={"filler": "x" * filler}) for number in range(1100)]
        view: View[Pod] = View()
        await follow(Script([listing("10", *items)], []), view, lambda r: r.synced.is_set())
        assert len(view.objects) == 1100
        assert max(len(names) for _, names in view.calls) <= limit
        assert len(view.calls) <= 1100 // limit + 10, "no slices of a few"


@pytest.mark.parametrize("count", [40, 400])
def test_a_page_is_cut_by_bytes_too(count: int) -> None:
    """Pods that take long to understand are large: they are handed over a few at a time, whatever the page has."""
    items = [pod(f"pod-{number}", "1", labels={"x": "y" * 60_000}) for number in range(count)]
    _, slices = Codec(PODS).page(json.dumps(listing("1", *items)).encode())
    sizes = [len(objects) for objects in slices]
    assert sum(sizes) == count
    assert max(sizes) <= SLICE_BYTES // 60_000 + 1


@virtual_time
async def test_a_long_list_is_no_long_turn_of_the_loop() -> None:
    """Decoding and handing over 8,000 pods takes a third of a second; no task should wait for that."""
    spec = {"containers": [{"name": "main", "env": [{"name": f"N{n}", "value": "x" * 20} for n in range(60)]}]}
    pages = [
        json.dumps(
            {
                "kind": "PodList",
                "metadata": {"resourceVersion": "10", "continue": str(page + 1) if page < 15 else ""},
                "items": [pod(f"pod-{page}-{number}", "1", spec=spec) for number in range(500)],
            }
        ).encode()
        for page in range(16)
    ]

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        if "watch" in request.query:
            await asyncio.sleep(3600)
        return web.Response(body=pages[int(request.query.get("continue", "0"))])

    turns: list[float] = []

    async def measure() -> None:
        while True:
            began = time.thread_time()
            await asyncio.sleep(0)
            turns.append(time.thread_time() - began)

    view: View[Pod] = View()
    async with stubbed(handler) as client:
        reflector = Reflector(client, PODS, view, clock=now)
        gc.collect()
        gc.disable()  # a full collection takes longer than a page, and is not ours to measure
        try:
            async with running(reflector.run(), measure()):
                await reflector.synced.wait()
        finally:
            gc.enable()
    assert len(view.objects) == 8_000
    assert max(turns) < sum(turns) / 4
