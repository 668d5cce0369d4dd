"""Watches: what a watcher receives, from where on, and how a stream ends."""

import asyncio
import time

import pytest

from .client import PARTIAL, Client, labelled, pod

PHASES = ("Pending", "Running", "Succeeded")


async def _version(api: Client, resource: str = "pods") -> str:
    return (await api.list(resource)).ok().version


async def test_the_events_of_an_object_from_creation_to_deletion(api: Client) -> None:
    async with api.watch("pods", resourceVersion=await _version(api)) as watch:
        (await api.create("pods", pod("a"))).ok()
        (await api.patch("pods", "a", {"metadata": {"labels": {"x": "y"}}})).ok()
        (await api.delete("pods", "a", {"gracePeriodSeconds": 0})).ok()
        added, modified, doomed, deleted = await watch.expect(
            ("ADDED", "a"), ("MODIFIED", "a"), ("MODIFIED", "a"), ("DELETED", "a")
        )
    versions = [int(obj["metadata"]["resourceVersion"]) for obj in (added, modified, doomed, deleted)]
    assert versions == sorted(set(versions))
    assert modified["metadata"]["labels"] == {"x": "y"}
    assert "deletionTimestamp" in doomed["metadata"]
    assert (deleted["kind"], deleted["apiVersion"]) == ("Pod", "v1")


async def test_what_happened_since_a_version(api: Client) -> None:
    start = await _version(api)
    (await api.create("pods", pod("a"))).ok()
    (await api.create("pods", pod("b"))).ok()
    async with api.watch("pods", resourceVersion=start) as watch:
        first, _ = await watch.expect(("ADDED", "a"), ("ADDED", "b"))
    async with api.watch("pods", resourceVersion=first["metadata"]["resourceVersion"]) as watch:
        await watch.expect(("ADDED", "b"))


@pytest.mark.parametrize("query", [{}, {"resourceVersion": "0"}])
async def test_without_a_version_what_is_there_comes_first(api: Client, query: dict[str, str]) -> None:
    (await api.create("pods", pod("a"))).ok()
    (await api.create("pods", pod("b"))).ok()
    async with api.watch("pods", **query) as watch:
        events = [await watch.next(), await watch.next()]
        assert sorted((e["type"], e["object"]["metadata"]["name"]) for e in events) == [("ADDED", "a"), ("ADDED", "b")]
        (await api.create("pods", pod("c"))).ok()
        await watch.expect(("ADDED", "c"))


async def test_a_write_that_changes_nothing_sends_no_watch_event(api: Client) -> None:
    created = (await api.create("pods", labelled(pod("a"), x="y"))).ok()
    async with api.watch("pods", resourceVersion=created.version) as watch:
        same = (await api.patch("pods", "a", {"metadata": {"labels": {"x": "y"}}})).ok()
        assert same.version == created.version
        put = (await api.put("pods", same.body)).ok()
        assert put.version == created.version
        (await api.create("pods", pod("b"))).ok()
        await watch.expect(("ADDED", "b"))


async def test_labels_decide_which_objects_are_selected(api: Client) -> None:
    async with api.watch("pods", resourceVersion=await _version(api), labelSelector="app=web") as watch:
        (await api.create("pods", labelled(pod("a"), app="db"))).ok()
        (await api.patch("pods", "a", {"metadata": {"labels": {"app": "web"}}})).ok()
        (await api.patch("pods", "a", {"metadata": {"labels": {"more": "x"}}})).ok()
        left = (await api.patch("pods", "a", {"metadata": {"labels": {"app": "db"}}})).ok()
        (await api.delete("pods", "a")).ok()
        (await api.create("pods", labelled(pod("b"), app="web"))).ok()
        *_, deleted, _ = await watch.expect(("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a"), ("ADDED", "b"))
    assert deleted["metadata"]["labels"] == {"app": "web", "more": "x"}, "the last state that was selected"
    assert deleted["metadata"]["resourceVersion"] == left.version, "at the version in which it left"


async def test_a_pod_that_is_bound_leaves_those_without_a_node(api: Client) -> None:
    start = await _version(api)
    async with (
        api.watch("pods", resourceVersion=start, fieldSelector="spec.nodeName=") as pending,
        api.watch("pods", resourceVersion=start, fieldSelector="spec.nodeName=node-1") as bound,
    ):
        (await api.create("pods", pod("a"))).ok()
        (await api.bind("a", "node-1")).ok()
        await pending.expect(("ADDED", "a"), ("DELETED", "a"))
        [obj] = await bound.expect(("ADDED", "a"))
        assert obj["spec"]["nodeName"] == "node-1"


async def test_a_phase_is_left_and_entered(api: Client) -> None:
    async with api.watch("pods", resourceVersion=await _version(api), fieldSelector="status.phase=Running") as watch:
        (await api.create("pods", pod("a"))).ok()
        for phase in PHASES:
            (await api.patch("pods", "a", {"status": {"phase": phase}}, "status")).ok()
        await watch.expect(("ADDED", "a"), ("DELETED", "a"))


async def test_one_name(api: Client) -> None:
    async with api.watch("pods", resourceVersion=await _version(api), fieldSelector="metadata.name=b") as watch:
        for name in ("a", "b", "c"):
            (await api.create("pods", pod(name))).ok()
        (await api.delete("pods", "b")).ok()
        await watch.expect(("ADDED", "b"), ("MODIFIED", "b"), ("DELETED", "b"))


async def test_a_watch_of_a_namespace_gets_no_events_of_others(api: Client) -> None:
    start = await _version(api, "configmaps")
    other = api.path("configmaps", namespace="default")
    name = f"other-{api.namespace}"
    async with (
        api.watch("configmaps", resourceVersion=start) as here,
        api.watch("configmaps", namespace="", resourceVersion=start) as everywhere,
    ):
        (await api.call("POST", other, {"metadata": {"name": name}})).ok()
        (await api.create("configmaps", {"metadata": {"name": "mine"}})).ok()
        (await api.call("DELETE", f"{other}/{name}")).ok()
        await here.expect(("ADDED", "mine"))
        seen = [(await everywhere.next())["object"]["metadata"]["name"] for _ in range(3)]
        assert [n for n in seen if n in (name, "mine")] == [name, "mine", name]


async def test_the_stream_ends_in_time_and_with_a_bookmark(api: Client) -> None:
    started = time.monotonic()
    version = await _version(api)
    query = {"resourceVersion": version, "allowWatchBookmarks": "true", "timeoutSeconds": "5"}
    async with api.watch("pods", **query) as watch:
        (await api.create("pods", pod("a"))).ok()
        [added] = await watch.expect(("ADDED", "a"))
        rest = await watch.rest(12)
    assert 3 < time.monotonic() - started < 9
    assert {event["type"] for event in rest} == {"BOOKMARK"}
    bookmark = rest[-1]["object"]
    assert bookmark["kind"] == "Pod"
    assert set(bookmark["metadata"]) - {"creationTimestamp"} == {"resourceVersion"}
    assert int(bookmark["metadata"]["resourceVersion"]) >= int(added["metadata"]["resourceVersion"])


async def test_without_asking_there_is_no_bookmark(api: Client) -> None:
    async with api.watch("pods", resourceVersion=await _version(api), timeoutSeconds="2") as watch:
        assert await watch.rest(8) == []


async def test_the_end_of_the_initial_events_is_marked(api: Client) -> None:
    (await api.create("pods", pod("a"))).ok()
    (await api.create("pods", pod("b"))).ok()
    query = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    if api.target.oldest:
        refused = await api.list("pods", watch="true", timeoutSeconds="3", **query)
        assert (refused.code, refused.reason) == (422, "Invalid")
        assert "resourceVersionMatch is forbidden for watch" in refused.message
        return
    async with api.watch("pods", timeoutSeconds="3", **query) as watch:
        await watch.expect(("ADDED", "a"), ("ADDED", "b"))
        event = await watch.next()
        assert event["type"] == "BOOKMARK"
        assert event["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        (await api.create("pods", pod("c"))).ok()
        await watch.expect(("ADDED", "c"))


async def test_initial_events_need_a_match(api: Client) -> None:
    if api.target.oldest:  # the parameter is not known yet, and passed over
        async with api.watch("pods", timeoutSeconds="1", sendInitialEvents="true") as watch:
            assert await watch.rest(5) == []
        return
    reply = await api.list("pods", watch="true", timeoutSeconds="1", sendInitialEvents="true")
    assert (reply.code, reply.reason) == (422, "Invalid")


async def test_metadata_alone(api: Client) -> None:
    async with api.watch("pods", accept=PARTIAL, resourceVersion=await _version(api)) as watch:
        (await api.create("pods", labelled(pod("a"), x="y"))).ok()
        [obj] = await watch.expect(("ADDED", "a"))
        assert set(obj) == {"kind", "apiVersion", "metadata"}
        assert obj["kind"] == "PartialObjectMetadata"
        assert obj["metadata"]["labels"] == {"x": "y"}


async def test_a_version_that_makes_no_sense(api: Client) -> None:
    reply = await api.list("pods", watch="true", resourceVersion="nonsense")
    assert reply.code == 500
    assert 'Invalid value: "nonsense"' in reply.message


async def test_many_watchers_get_the_same_events(api: Client) -> None:
    start = await _version(api)

    async def watcher() -> list[str]:
        async with api.watch("pods", resourceVersion=start) as watch:
            return [(await watch.next())["object"]["metadata"]["resourceVersion"] for _ in range(20)]

    tasks = [asyncio.create_task(watcher()) for _ in range(5)]
    for number in range(20):
        (await api.create("pods", pod(f"p-{number}"))).ok()
    histories = await asyncio.gather(*tasks)
    assert all(versions == histories[0] for versions in histories)
    assert len(set(histories[0])) == 20
