"""Lists: order, pages that are consistent with each other, versions and selectors."""

import pytest

from .client import PARTIAL_LIST, TABLE, Client, labelled, pod


async def _pods(api: Client, *names: str) -> None:
    for name in names:
        (await api.create("pods", pod(name))).ok()


async def test_a_list_is_in_the_order_of_names_and_says_its_version(api: Client) -> None:
    await _pods(api, "b", "c", "a")
    reply = (await api.list("pods")).ok()
    assert reply.names == ["a", "b", "c"]
    assert (reply.body["kind"], reply.body["apiVersion"]) == ("PodList", "v1")
    assert int(reply.version) >= max(int(item["metadata"]["resourceVersion"]) for item in reply.items)
    assert all("kind" not in item and "apiVersion" not in item for item in reply.items)


async def test_pages_are_of_one_moment(api: Client) -> None:
    await _pods(api, "a", "b", "c", "d", "e")
    first = (await api.list("pods", limit="2")).ok()
    assert first.names == ["a", "b"]
    assert first.metadata["remainingItemCount"] == 3
    await _pods(api, "bb")
    (await api.delete("pods", "c")).ok()
    (await api.patch("pods", "d", {"metadata": {"labels": {"changed": "yes"}}})).ok()
    second = (await api.list("pods", limit="2", **{"continue": first.metadata["continue"]})).ok()
    assert second.names == ["c", "d"]
    assert "labels" not in second.items[1]["metadata"]
    assert second.version == first.version
    last = (await api.list("pods", limit="2", **{"continue": second.metadata["continue"]})).ok()
    assert last.names == ["e"]
    assert "continue" not in last.metadata
    assert (await api.list("pods")).names == ["a", "b", "bb", "d", "e"]


async def test_pages_of_a_selection_do_not_count_what_remains(api: Client) -> None:
    for name in ("a", "b", "c", "d"):
        (await api.create("pods", labelled(pod(name), odd=str(name in "ac")))).ok()
    first = (await api.list("pods", limit="1", labelSelector="odd=True")).ok()
    assert first.names == ["a"]
    assert "remainingItemCount" not in first.metadata
    query = {"limit": "5", "labelSelector": "odd=True", "continue": first.metadata["continue"]}
    assert (await api.list("pods", **query)).names == ["c"]


async def test_a_broken_continue_token_is_a_bad_request(api: Client) -> None:
    reply = await api.list("pods", limit="1", **{"continue": "nonsense"})
    assert (reply.code, reply.reason) == (400, "BadRequest")


async def test_a_version_of_the_past_lists_the_past(api: Client) -> None:
    await _pods(api, "a")
    before = await api.list("pods")
    await _pods(api, "b")
    exact = {"resourceVersion": before.version, "resourceVersionMatch": "Exact"}
    assert (await api.list("pods", **exact)).names == ["a"]
    assert (await api.list("pods", limit="10", resourceVersion=before.version)).names == ["a"]
    newer = {"resourceVersion": before.version, "resourceVersionMatch": "NotOlderThan"}
    assert "a" in (await api.list("pods", **newer)).names


async def test_any_version_will_do_for_zero(api: Client) -> None:
    await _pods(api, "a", "b")
    reply = (await api.list("pods", resourceVersion="0")).ok()
    assert set(reply.names) <= {"a", "b"}
    assert int(reply.version) > 0


async def test_a_version_of_the_future_times_out(api: Client) -> None:
    now = int((await api.list("pods")).version)
    reply = await api.list("pods", resourceVersion=str(now + 100_000), resourceVersionMatch="NotOlderThan")
    assert (reply.code, reply.reason) == (504, "Timeout")
    assert "Too large resource version" in reply.message
    assert reply.body["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"


async def test_numbers_must_be_numbers(api: Client) -> None:
    limit = await api.list("pods", limit="many")
    assert (limit.code, limit.message) == (400, 'strconv.ParseInt: parsing "many": invalid syntax')
    version = await api.list("pods", resourceVersion="nonsense")
    assert version.code == (500 if api.target.oldest else 400)
    assert 'resourceVersion: Invalid value: "nonsense"' in version.message


@pytest.mark.parametrize(
    "query",
    [
        {"resourceVersionMatch": "Exact"},
        {"resourceVersionMatch": "NotOlderThan"},
    ],
)
async def test_a_match_needs_a_version(api: Client, query: dict[str, str]) -> None:
    reply = await api.list("pods", **query)
    assert (reply.code, reply.reason) == (422, "Invalid")


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("app=web", ["a", "b"]),
        ("app==web,tier!=back", ["a"]),
        ("tier!=back", ["a", "c"]),
        ("tier", ["a", "b"]),
        ("!tier", ["c"]),
        ("app in (web, db),tier notin (front)", ["b", "c"]),
        ("app in (db)", ["c"]),
        ("app=", []),
    ],
)
async def test_label_selectors(api: Client, selector: str, names: list[str]) -> None:
    (await api.create("pods", labelled(pod("a"), app="web", tier="front"))).ok()
    (await api.create("pods", labelled(pod("b"), app="web", tier="back"))).ok()
    (await api.create("pods", labelled(pod("c"), app="db"))).ok()
    assert (await api.list("pods", labelSelector=selector)).ok().names == names


@pytest.mark.parametrize("selector", ["app in web", "=x", "a b", "app in (a", "bad/key/x=y"])
async def test_a_label_selector_that_cannot_be_read_is_a_bad_request(api: Client, selector: str) -> None:
    reply = await api.list("pods", labelSelector=selector)
    assert (reply.code, reply.reason) == (400, "BadRequest")


async def test_field_selectors_of_pods(api: Client) -> None:
    (await api.create("pods", pod("a", schedulerName="topo"))).ok()
    (await api.create("pods", pod("b", schedulerName="topo"))).ok()
    (await api.create("pods", pod("c"))).ok()
    (await api.bind("b", "node-1")).ok()

    async def names(selector: str) -> list[str]:
        return (await api.list("pods", fieldSelector=selector)).ok().names

    assert await names("spec.schedulerName=topo") == ["a", "b"]
    assert await names("spec.schedulerName!=topo") == ["c"]
    assert await names("spec.nodeName=") == ["a", "c"]
    assert await names("spec.nodeName=node-1") == ["b"]
    assert await names("spec.nodeName=,spec.schedulerName=topo") == ["a"]
    assert await names("status.phase=Pending,metadata.name!=a") == ["b", "c"]
    assert await names("metadata.name=c") == ["c"]
    assert await names(f"metadata.namespace={api.namespace}") == ["a", "b", "c"]


async def test_a_field_that_cannot_be_selected_by_is_a_bad_request(api: Client) -> None:
    reply = await api.list("pods", fieldSelector="spec.priority=0")
    assert (reply.code, reply.reason) == (400, "BadRequest")
    assert "field label not supported: spec.priority" in reply.message


async def test_nodes_are_selected_by_whether_they_take_pods(api: Client, request: pytest.FixtureRequest) -> None:
    label = api.namespace
    try:
        for name, spec in (("open", {}), ("closed", {"unschedulable": True})):
            node = {"metadata": {"name": f"{name}-{label}", "labels": {"test": label}}, "spec": spec}
            (await api.create("nodes", node)).ok()
        reply = await api.list("nodes", labelSelector=f"test={label}", fieldSelector="spec.unschedulable=false")
        assert reply.ok().names == [f"open-{label}"]
    finally:
        await api.call("DELETE", api.path("nodes"), labelSelector=f"test={label}")


async def test_metadata_alone(api: Client) -> None:
    (await api.create("pods", labelled(pod("a"), app="web"))).ok()
    reply = (await api.list("pods", accept=PARTIAL_LIST)).ok()
    assert (reply.body["kind"], reply.body["apiVersion"]) == ("PartialObjectMetadataList", "meta.k8s.io/v1")
    [item] = reply.items
    assert item["metadata"]["labels"] == {"app": "web"}
    assert set(item) == {"kind", "apiVersion", "metadata"}
    assert item["kind"] == "PartialObjectMetadata"


async def test_a_table_for_people(api: Client) -> None:
    (await api.create("pods", pod("a"))).ok()
    reply = (await api.list("pods", accept=TABLE)).ok()
    assert reply.body["kind"] == "Table"
    columns = [column["name"] for column in reply.body["columnDefinitions"]]
    assert columns[:5] == ["Name", "Ready", "Status", "Restarts", "Age"]
    assert "Node" in columns
    [row] = reply.body["rows"]
    assert [str(cell) for cell in row["cells"][:4]] == ["a", "0/1", "Pending", "0"]
    assert row["object"]["kind"] == "PartialObjectMetadata"


async def test_what_is_not_there(api: Client) -> None:
    reply = await api.get("pods", "missing")
    assert (reply.code, reply.reason, reply.message) == (404, "NotFound", 'pods "missing" not found')
    assert reply.body["details"] == {"name": "missing", "kind": "pods"}
    assert (await api.call("GET", "/apis/nothing.example.com/v1/things")).code == 404
    assert (await api.call("GET", "/api/v1/nothings")).code == 404
    assert (await api.call("GET", api.path("pods", "x", "nothing"))).code == 404
