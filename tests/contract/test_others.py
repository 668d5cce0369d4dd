"""Everything a scheduler meets besides pods: custom resources, events, discovery, and permissions."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from topo_scheduler.simulation.apiserver.kinds import BUILT_IN

from .client import MERGE_PATCH, STRATEGIC_PATCH, Client, Json, Reply, pod

GROUP = "contract.example.com"


async def _eventually(look: Callable[[], Awaitable[Reply]], code: int = 200, seconds: float = 20) -> Reply:
    """Ask until the answer has that code: a real server needs a moment to serve a new kind, or to know a new role."""
    async with asyncio.timeout(seconds):
        while (reply := await look()).code != code:  # noqa: ASYNC110 - what is waited for is in another process
            await asyncio.sleep(0.05)
        return reply


def _definition(plural: str, kind: str, *, status: bool) -> Json:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    if status:
        version["subresources"] = {"status": {}}
    column = {"name": "Size", "type": "integer", "jsonPath": ".spec.size"}
    return {
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"},
            "versions": [{**version, "additionalPrinterColumns": [column]}],
        },
    }


@pytest.fixture(params=[("widgets", "Widget", True), ("gadgets", "Gadget", False)], ids=["status", "no status"])
async def custom(api: Client, request: pytest.FixtureRequest) -> AsyncIterator[tuple[str, str, bool]]:
    """A custom resource that is served: its plural, its kind, and whether its status is a subresource."""
    plural, kind, status = request.param
    definition = _definition(plural, kind, status=status)
    name = definition["metadata"]["name"]
    await _eventually(lambda: api.get("customresourcedefinitions", name), 404)
    (await api.create("customresourcedefinitions", definition)).ok()
    try:
        await _eventually(lambda: api.list(plural))
        yield plural, kind, status
    finally:
        await api.delete("customresourcedefinitions", name)
        await _eventually(lambda: api.get("customresourcedefinitions", name), 404)


def _object(kind: str, name: str, **spec: object) -> Json:
    return {"apiVersion": f"{GROUP}/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


async def test_a_custom_resource_lives_like_any_other(api: Client, custom: tuple[str, str, bool]) -> None:
    plural, kind, status = custom
    established = (await api.get("customresourcedefinitions", f"{plural}.{GROUP}")).ok().body["status"]
    assert {c["type"]: c["status"] for c in established["conditions"]}["Established"] == "True"
    start = (await api.list(plural)).ok()
    assert (start.body["kind"], start.items) == (f"{kind}List", [])
    async with api.watch(plural, resourceVersion=start.version) as watch:
        created = (await api.create(plural, {**_object(kind, "a", size=1), "status": {"seen": 1}})).ok()
        assert created.metadata["generation"] == 1
        assert ("status" in created.body) == (not status)
        changed = (await api.patch(plural, "a", {"spec": {"size": 2}})).ok()
        assert changed.metadata["generation"] == 2
        labelled = (await api.patch(plural, "a", {"metadata": {"labels": {"x": "y"}}})).ok()
        assert labelled.metadata["generation"] == 2
        (await api.delete(plural, "a")).ok()
        await watch.expect(("ADDED", "a"), ("MODIFIED", "a"), ("MODIFIED", "a"), ("DELETED", "a"))


async def test_lists_of_custom_resources_repeat_the_type(api: Client, custom: tuple[str, str, bool]) -> None:
    plural, kind, _ = custom
    (await api.create(plural, _object(kind, "a"))).ok()
    [item] = (await api.list(plural)).items
    assert (item["kind"], item["apiVersion"]) == (kind, f"{GROUP}/v1")


async def test_the_status_of_a_custom_resource(api: Client, custom: tuple[str, str, bool]) -> None:
    plural, kind, status = custom
    (await api.create(plural, _object(kind, "a", size=1))).ok()
    change = {"spec": {"size": 9}, "metadata": {"labels": {"x": "y"}}, "status": {"seen": 1}}
    reply = await api.patch(plural, "a", change, "status")
    if not status:
        assert reply.code == 404
        assert (await api.patch(plural, "a", change)).ok().body["status"] == {"seen": 1}
        return
    assert (reply.body["spec"], reply.body["status"]) == ({"size": 1}, {"seen": 1})
    assert "labels" not in reply.metadata, "labels are not part of the status of a custom resource"
    ignored = (await api.patch(plural, "a", {"status": {"seen": 2}})).ok()
    assert ignored.body["status"] == {"seen": 1}


async def test_custom_resources_know_no_strategic_merge(api: Client, custom: tuple[str, str, bool]) -> None:
    plural, kind, _ = custom
    (await api.create(plural, _object(kind, "a"))).ok()
    reply = await api.patch(plural, "a", {}, content_type=STRATEGIC_PATCH)
    assert (reply.code, reply.reason) == (415, "UnsupportedMediaType")
    assert (await api.patch(plural, "a", {}, content_type=MERGE_PATCH)).code == 200


async def test_custom_resources_are_never_overwritten_blindly(api: Client, custom: tuple[str, str, bool]) -> None:
    plural, kind, _ = custom
    (await api.create(plural, _object(kind, "a"))).ok()
    reply = await api.put(plural, _object(kind, "a", size=2))
    assert (reply.code, reply.reason) == (422, "Invalid")
    assert "metadata.resourceVersion: Invalid value" in reply.message


async def test_a_version_from_before_a_kind_is_too_old(api: Client, custom: tuple[str, str, bool]) -> None:
    plural, kind, _ = custom
    (await api.create(plural, _object(kind, "a"))).ok()
    async with api.watch(plural, resourceVersion="1", timeoutSeconds="5") as watch:
        event = await watch.next()
        assert event["type"] == "ERROR"
        assert (event["object"]["code"], event["object"]["reason"]) == (410, "Expired")
        assert "too old resource version: 1" in event["object"]["message"]
        assert await watch.rest(5) == []


async def test_a_definition_is_named_after_what_it_defines(api: Client) -> None:
    body = _definition("widgets", "Widget", status=True)
    body["metadata"]["name"] = "other"
    reply = await api.create("customresourcedefinitions", body)
    assert (reply.code, reply.reason) == (422, "Invalid")


# Events


async def test_events_are_one_thing_in_two_forms(api: Client) -> None:
    target = (await api.create("pods", pod("a"))).ok().metadata
    body = {
        "metadata": {"generateName": "a-"},
        "regarding": {"kind": "Pod", "name": "a", "namespace": api.namespace, "uid": target["uid"]},
        "reason": "FailedScheduling",
        "note": "0/3 nodes are available",
        "type": "Warning",
        "action": "Scheduling",
        "eventTime": "2030-01-01T00:00:00.000000Z",
        "reportingController": "topo-scheduler",
        "reportingInstance": "topo-scheduler-0",
    }
    created = (await api.create("events.events.k8s.io", body)).ok()
    assert (created.body["apiVersion"], created.body["note"]) == ("events.k8s.io/v1", "0/3 nodes are available")
    old = (await api.get("events", created.metadata["name"])).ok().body
    assert old["apiVersion"] == "v1"
    assert (old["message"], old["involvedObject"]["name"]) == ("0/3 nodes are available", "a")
    assert old["reportingComponent"] == "topo-scheduler"
    assert (await api.list("events", fieldSelector=f"involvedObject.uid={target['uid']}")).ok().names == [
        created.metadata["name"]
    ]
    assert len((await api.list("events.events.k8s.io", fieldSelector="regarding.name=a")).ok().items) == 1
    assert (await api.list("events", fieldSelector="reason=Other")).ok().items == []
    (await api.create("events.events.k8s.io", body)).ok()
    assert len((await api.list("events")).items) == 2


async def test_an_event_is_counted_in_a_series(api: Client) -> None:
    body = {
        "metadata": {"name": "a.1"},
        "regarding": {"kind": "Pod", "name": "a", "namespace": api.namespace},
        "reason": "R",
        "action": "A",
        "type": "Normal",
        "note": "once",
        "eventTime": "2030-01-01T00:00:00.000000Z",
        "reportingController": "topo-scheduler",
        "reportingInstance": "0",
    }
    (await api.create("events.events.k8s.io", body)).ok()
    series = {"count": 2, "lastObservedTime": "2030-01-01T00:01:00.000000Z"}
    reply = await api.patch("events.events.k8s.io", "a.1", {"series": series}, content_type=STRATEGIC_PATCH)
    assert reply.ok().body["series"] == series
    assert (await api.get("events", "a.1")).ok().body["series"]["count"] == 2


# Discovery


async def test_what_is_served_is_served_by_a_real_server_too(api: Client) -> None:
    """On a real server this proves the table of kinds; on the embedded one, that the table is what is shown."""
    for kind in BUILT_IN:
        path = f"/apis/{kind.api_version}" if kind.group else f"/api/{kind.api_version}"
        reply = await api.call("GET", path)
        if api.target.oldest and (kind.group == "resource.k8s.io" or kind.kind == "PodGroup"):
            assert reply.code == 404
            continue
        resources = {resource["name"]: resource for resource in reply.ok().body["resources"]}
        resource = resources[kind.plural]
        assert resource["kind"] == kind.kind
        assert resource["namespaced"] == kind.namespaced
        assert set(kind.short) <= set(resource.get("shortNames", ()))
        assert set(kind.categories) <= set(resource.get("categories", ()))
        assert {"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"} >= set(
            resource["verbs"]
        )
        for name in kind.subresources:
            assert f"{kind.plural}/{name}" in resources
        if not (api.target.oldest and kind.plural == "networkpolicies"):  # they had a status for a while
            assert (f"{kind.plural}/status" in resources) == kind.has_status


async def test_groups(api: Client) -> None:
    groups = {group["name"]: group for group in (await api.call("GET", "/apis")).ok().body["groups"]}
    for name in {kind.group for kind in BUILT_IN} - {"", "resource.k8s.io"}:
        assert groups[name]["preferredVersion"]["groupVersion"].startswith(f"{name}/v")
    assert (await api.call("GET", "/api")).ok().body["versions"] == ["v1"]
    assert "gitVersion" in (await api.call("GET", "/version")).ok().body


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz"])
async def test_health(api: Client, path: str) -> None:
    reply = await api.call("GET", path, accept="*/*")
    assert (reply.code, reply.text) == (200, "ok")


# Permissions


async def _token(api: Client, account: str) -> str:
    (await api.create("serviceaccounts", {"metadata": {"name": account}})).ok()
    request: Json = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    reply = await api.post("serviceaccounts", account, "token", request)
    assert reply.code == 201, reply.text
    return str(reply.body["status"]["token"])


async def test_an_account_may_do_what_its_roles_say(api: Client) -> None:
    token = await _token(api, "robot")
    who = f"system:serviceaccount:{api.namespace}:robot"
    pods, secret = api.path("pods"), api.path("secrets", "one")
    refused = await api.call("GET", pods, token=token)
    assert (refused.code, refused.reason) == (403, "Forbidden")
    assert refused.message == (
        f'pods is forbidden: User "{who}" cannot list resource "pods" '
        f'in API group "" in the namespace "{api.namespace}"'
    )
    rules = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch", "get"]},
        {"apiGroups": [""], "resources": ["pods/binding"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["one"], "verbs": ["get", "list"]},
    ]
    (await api.create("roles", {"metadata": {"name": "robot"}, "rules": rules})).ok()
    subject = {"kind": "ServiceAccount", "name": "robot", "namespace": api.namespace}
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "robot"}
    (await api.create("rolebindings", {"metadata": {"name": "robot"}, "roleRef": ref, "subjects": [subject]})).ok()
    await _eventually(lambda: api.call("GET", pods, token=token))

    async def code(method: str, path: str, body: Json | None = None, **query: str) -> int:
        return (await api.call(method, path, body, token=token, **query)).code

    (await api.create("pods", pod("a"))).ok()
    assert await code("POST", pods, pod("b")) == 403
    binding = {"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "n"}}
    assert await code("POST", f"{pods}/a/binding", binding) == 201
    assert await code("POST", f"{pods}/a/eviction", {"metadata": {"name": "a"}}) == 403
    assert await code("GET", f"{pods}/a/status") == 403
    assert await code("GET", secret) == 404
    assert await code("GET", api.path("secrets", "two")) == 403
    assert await code("GET", api.path("secrets")) == 403
    assert await code("GET", api.path("secrets"), fieldSelector="metadata.name=one") == 200
    assert await code("GET", "/api/v1/pods") == 403
    assert await code("GET", "/version") == 200
    assert await code("GET", "/apis") == 200


async def test_a_token_must_mean_something(api: Client) -> None:
    reply = await api.call("GET", api.path("pods"), token="nonsense")
    assert (reply.code, reply.reason) == (401, "Unauthorized")


async def test_an_account_may_ask_what_it_may_do(api: Client) -> None:
    token = await _token(api, "robot")
    about = {"verb": "list", "resource": "pods", "namespace": api.namespace}
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": about},
    }
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    mine = await api.call("POST", path, body, token=token)
    assert (mine.code, mine.body["status"]["allowed"]) == (201, False)
    assert (await api.call("POST", path, body)).body["status"]["allowed"] is True
