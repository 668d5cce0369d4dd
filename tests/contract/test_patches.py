"""The four kinds of patches, and which kinds of objects take them."""

import pytest

from .client import APPLY_PATCH, JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, Client, Json, labelled, pod


def _condition(kind: str, status: str, **more: str) -> Json:
    return {"type": kind, "status": status, **more}


async def _conditions(api: Client, name: str) -> dict[str, str]:
    status = (await api.get("pods", name)).ok().body["status"]
    return {condition["type"]: condition["status"] for condition in status["conditions"]}


async def test_merge_removes_by_null_and_replaces_lists(api: Client) -> None:
    (await api.create("configmaps", {"metadata": {"name": "a"}, "data": {"x": "1", "y": "2"}})).ok()
    reply = (await api.patch("configmaps", "a", {"data": {"x": None, "z": "3"}})).ok()
    assert reply.body["data"] == {"y": "2", "z": "3"}
    (await api.create("pods", pod("p"))).ok()
    for kind in ("A", "B"):
        (await api.patch("pods", "p", {"status": {"conditions": [_condition(kind, "True")]}}, "status")).ok()
    assert await _conditions(api, "p") == {"B": "True"}


async def test_strategic_merge_knows_conditions_by_their_type(api: Client) -> None:
    (await api.create("pods", pod("p"))).ok()
    for kind, status in (("A", "True"), ("B", "True"), ("A", "False")):
        change = {"status": {"conditions": [_condition(kind, status)]}}
        (await api.patch("pods", "p", change, "status", content_type=STRATEGIC_PATCH)).ok()
    assert await _conditions(api, "p") == {"A": "False", "B": "True"}
    change = {"status": {"conditions": [{"type": "B", "$patch": "delete"}]}}
    (await api.patch("pods", "p", change, "status", content_type=STRATEGIC_PATCH)).ok()
    assert await _conditions(api, "p") == {"A": "False"}


async def test_strategic_merge_knows_containers_by_their_name(api: Client) -> None:
    body = pod("p")
    body["spec"]["containers"].append({"name": "side", "image": "side:1"})
    (await api.create("pods", body)).ok()
    change = {"spec": {"containers": [{"name": "side", "image": "side:2"}]}}
    reply = (await api.patch("pods", "p", change, content_type=STRATEGIC_PATCH)).ok()
    assert {c["name"]: c["image"] for c in reply.body["spec"]["containers"]} == {"main": "busybox:1", "side": "side:2"}


async def test_taints_are_replaced_as_a_whole_even_so(api: Client) -> None:
    name = f"node-{api.namespace}"
    (await api.create("nodes", {"metadata": {"name": name}})).ok()
    try:
        for key in ("a", "b"):
            taints = [{"key": key, "effect": "NoSchedule"}]
            reply = await api.patch("nodes", name, {"spec": {"taints": taints}}, content_type=STRATEGIC_PATCH)
        assert reply.ok().body["spec"]["taints"] == [{"key": "b", "effect": "NoSchedule"}]
    finally:
        await api.delete("nodes", name)


async def test_strategic_merge_adds_to_finalizers_and_takes_them_away(api: Client) -> None:
    (await api.create("configmaps", {"metadata": {"name": "a", "finalizers": ["x.io/a"]}})).ok()
    add = {"metadata": {"finalizers": ["x.io/b"]}}
    reply = (await api.patch("configmaps", "a", add, content_type=STRATEGIC_PATCH)).ok()
    assert sorted(reply.metadata["finalizers"]) == ["x.io/a", "x.io/b"]
    remove = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["x.io/a", "x.io/b"]}}
    reply = (await api.patch("configmaps", "a", remove, content_type=STRATEGIC_PATCH)).ok()
    assert not reply.metadata.get("finalizers")


async def test_strategic_merge_replaces_a_map_on_request(api: Client) -> None:
    (await api.create("configmaps", {"metadata": {"name": "a"}, "data": {"x": "1"}})).ok()
    change = {"data": {"$patch": "replace", "y": "2"}}
    reply = (await api.patch("configmaps", "a", change, content_type=STRATEGIC_PATCH)).ok()
    assert reply.body["data"] == {"y": "2"}


async def test_json_patch(api: Client) -> None:
    (await api.create("pods", labelled(pod("p"), **{"a/b": "1"}))).ok()
    change = [
        {"op": "test", "path": "/metadata/labels/a~1b", "value": "1"},
        {"op": "add", "path": "/metadata/labels/x", "value": "2"},
        {"op": "remove", "path": "/metadata/labels/a~1b"},
    ]
    reply = (await api.patch("pods", "p", change, content_type=JSON_PATCH)).ok()
    assert reply.metadata["labels"] == {"x": "2"}
    failed = await api.patch("pods", "p", change, content_type=JSON_PATCH)
    assert (failed.code, failed.reason) == (422, "Invalid")
    assert (await api.get("pods", "p")).body == reply.body
    missing = [{"op": "remove", "path": "/metadata/labels/nothing"}]
    assert (await api.patch("pods", "p", missing, content_type=JSON_PATCH)).code == 422
    nonsense = [{"op": "dance", "path": "/metadata"}]
    assert (await api.patch("pods", "p", nonsense, content_type=JSON_PATCH)).code in (400, 422)


async def test_a_patch_of_an_unknown_kind(api: Client) -> None:
    (await api.create("pods", pod("p"))).ok()
    reply = await api.patch("pods", "p", {}, content_type="application/json")
    assert (reply.code, reply.reason) == (415, "UnsupportedMediaType")


async def test_a_patch_does_not_rename(api: Client) -> None:
    (await api.create("configmaps", {"metadata": {"name": "a"}})).ok()
    reply = await api.patch("configmaps", "a", {"metadata": {"name": "b"}})
    assert (reply.code, reply.reason) == (400, "BadRequest")


async def test_apply_creates_and_merges(api: Client) -> None:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"x": "1"}}
    path = api.path("configmaps", "a")

    async def apply(**data: str) -> int:
        applied = {**body, "data": data}
        reply = await api.call("PATCH", path, applied, content_type=APPLY_PATCH, fieldManager="me", force="true")
        return reply.ok().code

    assert await apply(x="1") == 201
    assert await apply(x="2") == 200
    (await api.patch("configmaps", "a", {"data": {"theirs": "3"}}, content_type=MERGE_PATCH)).ok()
    assert await apply(x="4") == 200
    assert (await api.get("configmaps", "a")).body["data"] == {"x": "4", "theirs": "3"}


async def test_apply_may_be_written_in_yaml(api: Client) -> None:
    body = b"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndata:\n  x: '1'\n"
    reply = await api.call("PATCH", api.path("configmaps", "a"), body, content_type=APPLY_PATCH, fieldManager="me")
    assert reply.ok().body["data"] == {"x": "1"}


async def test_apply_needs_a_manager(api: Client) -> None:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
    reply = await api.call("PATCH", api.path("configmaps", "a"), body, content_type=APPLY_PATCH)
    assert (reply.code, reply.reason) == (422, "Invalid")
    assert "fieldManager: Required value" in reply.message


@pytest.mark.parametrize("content_type", [MERGE_PATCH, STRATEGIC_PATCH])
async def test_a_patch_of_the_status_leaves_the_rest(api: Client, content_type: str) -> None:
    created = (await api.create("pods", pod("p"))).ok()
    change = {"spec": {"nodeName": "n"}, "status": {"phase": "Running", "podIP": "10.0.0.1"}}
    reply = (await api.patch("pods", "p", change, "status", content_type=content_type)).ok()
    assert reply.body["spec"] == created.body["spec"]
    assert (reply.body["status"]["phase"], reply.body["status"]["podIP"]) == ("Running", "10.0.0.1")
