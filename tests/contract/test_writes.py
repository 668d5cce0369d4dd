"""Creating, replacing and deleting: what each writer may say, and what happens when two disagree."""

from typing import Any

import pytest

from .client import Client, Json, labelled, pod

MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def lease(name: str, **spec: Any) -> Json:
    return {"metadata": {"name": name}, "spec": spec}


# Create


async def test_the_server_sets_the_identity_of_an_object(api: Client) -> None:
    body = pod("a")
    body["metadata"] |= {"uid": "mine", "creationTimestamp": "2000-01-01T00:00:00Z", "generation": 7}
    created = (await api.create("pods", body)).ok()
    metadata = created.metadata
    assert created.code == 201
    assert (created.body["kind"], created.body["apiVersion"]) == ("Pod", "v1")
    assert metadata["namespace"] == api.namespace
    assert len(metadata["uid"]) == 36
    assert metadata["creationTimestamp"] > "2020"
    assert int(metadata["resourceVersion"]) > 0
    again = (await api.get("pods", "a")).ok()
    assert again.body == created.body


async def test_a_status_that_is_sent_along_is_dropped(api: Client) -> None:
    created = (await api.create("pods", {**pod("a"), "status": {"phase": "Running"}})).ok()
    assert created.body["status"]["phase"] == "Pending"


async def test_a_node_brings_its_status(api: Client) -> None:
    name = f"node-{api.namespace}"
    node = {"metadata": {"name": name}, "status": {"capacity": {"cpu": "4", "nvidia.com/gpu": "8"}}}
    created = (await api.create("nodes", node)).ok()
    try:
        assert created.body["status"]["capacity"] == {"cpu": "4", "nvidia.com/gpu": "8"}
        assert created.body["status"]["allocatable"] == {"cpu": "4", "nvidia.com/gpu": "8"}
    finally:
        await api.delete("nodes", name)


async def test_generated_names(api: Client) -> None:
    names = {(await api.create("pods", pod())).ok().metadata["name"] for _ in range(20)}
    assert len(names) == 20
    assert all(name.startswith("pod-") and len(name) == len("pod-") + 5 for name in names)


async def test_a_name_is_taken(api: Client) -> None:
    (await api.create("pods", pod("a"))).ok()
    reply = await api.create("pods", pod("a"))
    assert (reply.code, reply.reason, reply.message) == (409, "AlreadyExists", 'pods "a" already exists')


@pytest.mark.parametrize(
    ("body", "code", "reason", "fragment"),
    [
        ({"metadata": {}, "spec": pod("a")["spec"]}, 422, "Invalid", "name or generateName is required"),
        (pod("Upper_Case"), 422, "Invalid", "a lowercase RFC 1123 subdomain must consist of"),
        ({**pod("a"), "kind": "Node"}, 400, "BadRequest", "Node"),
        ({"metadata": {"name": "a", "namespace": "other"}, "spec": {}}, 400, "BadRequest", "does not match"),
        ({"metadata": {"name": "a"}, "spec": {"containers": []}}, 422, "Invalid", "spec.containers: Required value"),
        (b"{", 400, "BadRequest", ""),
    ],
    ids=["no name", "bad name", "other kind", "other namespace", "no containers", "no JSON"],
)
async def test_what_cannot_be_created(api: Client, body: Any, code: int, reason: str, fragment: str) -> None:
    reply = await api.create("pods", body)
    assert (reply.code, reply.reason) == (code, reason)
    assert fragment in reply.message


@pytest.mark.parametrize(
    ("metadata", "code", "fragment"),
    [
        ({"generateName": "a."}, 422, 'metadata.generateName: Invalid value: "a."'),
        ({"name": "a", "labels": {"bad key": "v"}}, 422, "name part must consist of alphanumeric characters"),
        ({"name": "a", "labels": {"bad/": "v"}}, 422, "metadata.labels: Invalid value"),
        ({"name": "a", "labels": {"x": "bad value"}}, 422, "a valid label must be an empty string or consist of"),
        ({"name": "a", "labels": {"x": "v" * 64}}, 422, "metadata.labels: Invalid value"),
        ({"name": "a", "labels": {"x": 1}}, 400, "cannot be handled as a Pod"),
        ({"name": "a", "annotations": {"x": {"y": "z"}}}, 400, "cannot be handled as a Pod"),
        ({"name": "a", "annotations": {"bad key": "v"}}, 422, "metadata.annotations: Invalid value"),
    ],
)
async def test_what_metadata_may_not_be(api: Client, metadata: Json, code: int, fragment: str) -> None:
    reply = await api.create("pods", {**pod("a"), "metadata": metadata})
    assert reply.code == code, reply.text
    assert fragment in reply.message


async def test_labels_are_looked_at_in_every_write(api: Client) -> None:
    (await api.create("pods", pod("a"))).ok()
    for subresource in ("", "status"):
        reply = await api.patch("pods", "a", {"metadata": {"labels": {"x": "bad value"}}}, subresource)
        assert (reply.code, reply.reason) == (422, "Invalid")


async def test_a_version_may_not_be_sent_along(api: Client) -> None:
    body = pod("a")
    body["metadata"]["resourceVersion"] = "1"
    reply = await api.create("pods", body)
    assert reply.code == 500
    assert "resourceVersion should not be set on objects to be created" in reply.message


async def test_a_body_may_not_be_larger_than_three_mebibytes(api: Client) -> None:
    two = await api.create("configmaps", {"metadata": {"name": "a"}, "data": {"x": "y" * 900_000}})
    assert two.code == 201
    four = await api.create("configmaps", {"metadata": {"name": "b"}, "data": {"x": "y" * 4 * 2**20}})
    assert (four.code, four.reason) == (413, "RequestEntityTooLarge")
    assert four.message == "Request entity too large: limit is 3145728"


@pytest.mark.parametrize(
    "body",
    [
        {"metadata": {"name": "a"}, "spec": {"containers": "none"}},
        {"metadata": {"name": "a"}, "spec": []},
        {"metadata": "a", "spec": {}},
        {"metadata": {"name": "a", "labels": ["x"]}, "spec": pod("a")["spec"]},
        [],
    ],
)
async def test_a_body_of_another_shape(api: Client, body: Any) -> None:
    reply = await api.create("pods", body)
    assert (reply.code, reply.reason) == (400, "BadRequest")


async def test_a_namespace_must_be_there(api: Client) -> None:
    reply = await api.call("POST", api.path("pods", namespace="nowhere"), pod("a"))
    assert (reply.code, reply.reason, reply.message) == (404, "NotFound", 'namespaces "nowhere" not found')


async def test_nothing_is_kept_of_a_dry_run(api: Client) -> None:
    before = (await api.list("pods")).version
    reply = (await api.create("pods", pod("a"), dryRun="All")).ok()
    assert reply.metadata["uid"]
    assert "resourceVersion" not in reply.metadata
    assert (await api.get("pods", "a")).code == 404
    created = (await api.create("pods", pod("a"))).ok()
    tried = (await api.patch("pods", "a", {"metadata": {"labels": {"x": "y"}}}, dryRun="All")).ok()
    assert tried.metadata["labels"] == {"x": "y"}
    (await api.delete("pods", "a", dryRun="All")).ok()
    assert (await api.get("pods", "a")).body == created.body
    assert int(before) < int(created.version)
    wrong = await api.create("pods", pod("b"), dryRun="Some")
    assert (wrong.code, wrong.reason) == (422, "Invalid")


# Replace


async def test_a_stale_write_is_refused(api: Client) -> None:
    old = (await api.create("configmaps", {"metadata": {"name": "a"}, "data": {"n": "1"}})).ok().body
    (await api.put("configmaps", {**old, "data": {"n": "2"}})).ok()
    reply = await api.put("configmaps", {**old, "data": {"n": "3"}})
    expected = f'Operation cannot be fulfilled on configmaps "a": {MODIFIED}'
    assert (reply.code, reply.reason, reply.message) == (409, "Conflict", expected)
    stale = {"metadata": {"resourceVersion": old["metadata"]["resourceVersion"]}, "data": {"n": "4"}}
    patched = await api.patch("configmaps", "a", stale)
    assert (patched.code, patched.reason, patched.message) == (409, "Conflict", expected)
    assert (await api.get("configmaps", "a")).body["data"] == {"n": "2"}


async def test_a_write_without_a_version_overwrites(api: Client) -> None:
    (await api.create("configmaps", {"metadata": {"name": "a"}, "data": {"n": "1"}})).ok()
    put = (await api.put("configmaps", {"metadata": {"name": "a"}, "data": {"m": "2"}})).ok()
    assert put.body["data"] == {"m": "2"}


async def test_another_uid_is_another_object(api: Client) -> None:
    body = (await api.create("configmaps", {"metadata": {"name": "a"}})).ok().body
    body["metadata"]["uid"] = "00000000-0000-0000-0000-000000000000"
    reply = await api.put("configmaps", body)
    assert (reply.code, reply.reason) == (409, "Conflict")
    assert "Precondition failed: UID in precondition: 00000000-0000-0000-0000-000000000000" in reply.message


async def test_what_is_not_there_cannot_be_replaced(api: Client) -> None:
    assert (await api.put("configmaps", {"metadata": {"name": "a"}})).code == 404
    assert (await api.patch("configmaps", "a", {"data": {}})).code == 404


async def test_the_name_in_the_path_is_the_name(api: Client) -> None:
    (await api.create("configmaps", {"metadata": {"name": "a"}})).ok()
    reply = await api.call("PUT", api.path("configmaps", "a"), {"metadata": {"name": "b"}})
    assert (reply.code, reply.reason) == (400, "BadRequest")


async def test_leases_are_locks(api: Client) -> None:
    held = (await api.create("leases", lease("lock", holderIdentity="me", leaseDurationSeconds=15))).ok().body
    blind = await api.put("leases", lease("lock", holderIdentity="you"))
    assert (blind.code, blind.reason) == (422, "Invalid")
    assert "metadata.resourceVersion: Invalid value" in blind.message
    renewed = {**held, "spec": {**held["spec"], "renewTime": "2030-01-01T00:00:00.000000Z"}}
    assert (await api.put("leases", renewed)).ok().body["spec"]["renewTime"] == "2030-01-01T00:00:00.000000Z"
    late = await api.put("leases", {**held, "spec": {"holderIdentity": "you"}})
    assert (late.code, late.reason) == (409, "Conflict")
    assert late.message == f'Operation cannot be fulfilled on leases.coordination.k8s.io "lock": {MODIFIED}'


async def test_a_lease_can_be_created_by_putting_it(api: Client) -> None:
    assert (await api.put("leases", lease("lock", holderIdentity="me"))).code == 201


# Spec and status


async def test_spec_and_status_are_written_apart(api: Client) -> None:
    (await api.create("pods", pod("a"))).ok()
    through_spec = {"metadata": {"labels": {"x": "1"}}, "status": {"phase": "Running"}}
    reply = (await api.patch("pods", "a", through_spec)).ok()
    assert (reply.metadata["labels"], reply.body["status"]["phase"]) == ({"x": "1"}, "Pending")
    through_status = {"spec": {"schedulerName": "other"}, "status": {"phase": "Running"}}
    reply = (await api.patch("pods", "a", through_status, "status")).ok()
    assert reply.body["status"]["phase"] == "Running"
    assert reply.body["spec"]["schedulerName"] == "default-scheduler"
    assert (await api.call("GET", api.path("pods", "a", "status"))).ok().body == reply.body


async def test_the_status_of_a_pod_carries_labels_but_not_owners(api: Client) -> None:
    (await api.create("pods", pod("a"))).ok()
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "1"}
    change = {"metadata": {"labels": {"x": "1"}, "annotations": {"y": "2"}, "ownerReferences": [owner]}}
    metadata = (await api.patch("pods", "a", change, "status")).ok().metadata
    assert (metadata["labels"], metadata["annotations"]) == ({"x": "1"}, {"y": "2"})
    assert "ownerReferences" not in metadata


async def test_a_stale_status_is_refused(api: Client) -> None:
    old = (await api.create("pods", pod("a"))).ok().body
    (await api.patch("pods", "a", {"metadata": {"labels": {"x": "1"}}})).ok()
    reply = await api.put("pods", {**old, "status": {"phase": "Running"}}, "status")
    assert (reply.code, reply.reason) == (409, "Conflict")


async def test_a_spec_that_is_settled_cannot_be_changed(api: Client) -> None:
    (await api.create("pods", pod("a"))).ok()
    for change in ({"nodeName": "n"}, {"schedulerName": "other"}, {"nodeSelector": {"a": "b"}}, {"priority": 3}):
        reply = await api.patch("pods", "a", {"spec": change})
        assert (reply.code, reply.reason) == (422, "Invalid"), change
        assert "pod updates may not change fields other than" in reply.message, change


async def test_generation_counts_changes_of_the_spec(api: Client) -> None:
    budget = {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}}}
    assert (await api.create("poddisruptionbudgets", budget)).ok().metadata["generation"] == 1
    labels = {"metadata": {"labels": {"x": "y"}}}
    assert (await api.patch("poddisruptionbudgets", "b", labels)).ok().metadata["generation"] == 1
    spec = {"spec": {"minAvailable": 2}}
    assert (await api.patch("poddisruptionbudgets", "b", spec)).ok().metadata["generation"] == 2
    status = {"status": {"observedGeneration": 2}}
    assert (await api.patch("poddisruptionbudgets", "b", status, "status")).ok().metadata["generation"] == 2


# Delete


async def test_a_delete_says_what_it_deleted(api: Client) -> None:
    created = (await api.create("configmaps", {"metadata": {"name": "a"}})).ok()
    reply = (await api.delete("configmaps", "a")).ok()
    assert (reply.body["kind"], reply.body["status"]) == ("Status", "Success")
    assert reply.body["details"] == {"name": "a", "kind": "configmaps", "uid": created.metadata["uid"]}
    missing = await api.delete("configmaps", "a")
    assert (missing.code, missing.message) == (404, 'configmaps "a" not found')


async def test_finalizers_keep_an_object(api: Client) -> None:
    body = {"metadata": {"name": "a", "finalizers": ["example.com/wait"]}}
    (await api.create("configmaps", body)).ok()
    doomed = (await api.delete("configmaps", "a")).ok()
    assert doomed.body["kind"] == "ConfigMap"
    assert doomed.metadata["deletionTimestamp"]
    assert doomed.metadata["deletionGracePeriodSeconds"] == 0
    taken = await api.create("configmaps", body)
    assert (taken.code, taken.reason) == (409, "AlreadyExists")
    assert taken.message == 'object is being deleted: configmaps "a" already exists'
    kept = (await api.patch("configmaps", "a", {"metadata": {"labels": {"x": "y"}}})).ok()
    assert kept.metadata["deletionTimestamp"] == doomed.metadata["deletionTimestamp"]
    async with api.watch("configmaps", resourceVersion=kept.version) as watch:
        (await api.patch("configmaps", "a", {"metadata": {"finalizers": None}})).ok()
        await watch.expect(("DELETED", "a"))
    assert (await api.get("configmaps", "a")).code == 404


async def test_a_delete_may_mean_one_object_only(api: Client) -> None:
    created = (await api.create("configmaps", {"metadata": {"name": "a"}})).ok()
    (await api.patch("configmaps", "a", {"data": {"x": "y"}})).ok()
    other = await api.delete("configmaps", "a", {"preconditions": {"uid": "other"}})
    assert (other.code, other.reason) == (409, "Conflict")
    assert "the UID in the precondition (other) does not match the UID in record" in other.message
    stale = await api.delete("configmaps", "a", {"preconditions": {"resourceVersion": created.version}})
    assert (stale.code, stale.reason) == (409, "Conflict")
    uid = {"preconditions": {"uid": created.metadata["uid"]}}
    (await api.delete("configmaps", "a", uid)).ok()


async def test_many_are_deleted_by_a_selector(api: Client) -> None:
    for name, app in (("a", "web"), ("b", "web"), ("c", "db")):
        (await api.create("pods", labelled(pod(name), app=app))).ok()
    reply = (await api.call("DELETE", api.path("pods"), labelSelector="app=web")).ok()
    assert reply.body["kind"] == "PodList"
    assert reply.names == ["a", "b"]
    assert (await api.list("pods")).names == ["c"]


@pytest.mark.parametrize(
    ("policy", "finalizers"),
    [("Foreground", ["foregroundDeletion"]), ("Orphan", ["orphan"]), ("Background", None), (None, None)],
)
async def test_what_becomes_of_dependents_is_asked_by_finalizers(
    api: Client, policy: str | None, finalizers: list[str] | None
) -> None:
    (await api.create("configmaps", {"metadata": {"name": "a"}})).ok()
    (await api.delete("configmaps", "a", {"propagationPolicy": policy} if policy else None)).ok()
    left = await api.get("configmaps", "a")
    if finalizers is None:
        assert left.code == 404
    else:
        assert left.metadata["finalizers"] == finalizers
        (await api.patch("configmaps", "a", {"metadata": {"finalizers": None}})).ok()


# Namespaces and scales: paths that are not like the others


async def test_a_namespace_is_an_object_too(api: Client) -> None:
    name = api.namespace
    namespace = (await api.get("namespaces", name)).ok()
    assert namespace.body["status"] == {"phase": "Active"}
    assert namespace.metadata["labels"]["kubernetes.io/metadata.name"] == name
    assert "namespace" not in namespace.metadata
    patched = (await api.patch("namespaces", name, {"metadata": {"labels": {"x": "y"}}})).ok()
    assert patched.metadata["labels"]["x"] == "y"
    (await api.put("namespaces", patched.body)).ok()
    assert name in (await api.list("namespaces", labelSelector="x=y")).ok().names
    terminating = (await api.delete("namespaces", name)).ok()
    assert terminating.body["status"]["phase"] == "Terminating"
    refused = await api.create("pods", pod("a"))
    assert (refused.code, refused.reason) == (403, "Forbidden")
    assert f"unable to create new content in namespace {name} because it is being terminated" in refused.message
    (cause,) = refused.body["details"]["causes"]
    assert (cause["reason"], cause["field"]) == ("NamespaceTerminating", "metadata.namespace")


async def test_a_namespace_goes_with_its_finalizer(api: Client) -> None:
    name = f"{api.namespace}-more"
    (await api.create("namespaces", {"metadata": {"name": name}})).ok()
    terminating = (await api.delete("namespaces", name)).ok().body
    assert terminating["spec"] == {"finalizers": ["kubernetes"]}
    (await api.put("namespaces", {**terminating, "spec": {}}, "finalize")).ok()
    assert (await api.get("namespaces", name)).code == 404


async def test_a_workload_is_scaled_without_knowing_it(api: Client) -> None:
    template = {"metadata": {"labels": {"app": "a"}}, "spec": pod("a")["spec"]}
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "a"}}, "template": template}
    (await api.create("deployments", {"metadata": {"name": "a"}, "spec": spec})).ok()
    path = api.path("deployments", "a", "scale")
    scale = (await api.call("GET", path)).ok().body
    assert (scale["kind"], scale["apiVersion"], scale["spec"]) == ("Scale", "autoscaling/v1", {"replicas": 2})
    patched = (await api.patch("deployments", "a", {"spec": {"replicas": 3}}, "scale")).ok()
    assert patched.body["spec"] == {"replicas": 3}
    stale = await api.call("PUT", path, {**scale, "spec": {"replicas": 9}})
    assert (stale.code, stale.reason) == (409, "Conflict")
    (await api.call("PUT", path, {**patched.body, "spec": {"replicas": 4}})).ok()
    workload = (await api.get("deployments", "a")).ok()
    assert (workload.body["spec"]["replicas"], workload.metadata["generation"]) == (4, 3)
