"""What a scheduler lives by: binding, eviction, graceful deletion, and what admission makes of a pod."""

import asyncio

import pytest

from .client import Client, Json, Reply, labelled, pod

PDB_GENERATION = 1


async def _phase(api: Client, name: str, phase: str, *, ready: bool = True) -> None:
    conditions = [{"type": "Ready", "status": str(ready)}]
    (await api.patch("pods", name, {"status": {"phase": phase, "conditions": conditions}}, "status")).ok()


# Binding


async def test_a_binding_is_one_write(api: Client) -> None:
    body = labelled(pod("a"), mine="1", both="pod")
    body["metadata"]["annotations"] = {"kept": "yes"}
    created = (await api.create("pods", body)).ok()
    async with api.watch("pods", resourceVersion=created.version) as watch:
        extra = {"annotations": {"gpus": "0,1"}, "labels": {"rank": "3", "both": "binding"}}
        reply = await api.bind("a", "node-1", {"uid": created.metadata["uid"], **extra})
        assert (reply.code, reply.body["kind"], reply.body["status"]) == (201, "Status", "Success")
        [bound] = await watch.expect(("MODIFIED", "a"))
    assert bound["spec"]["nodeName"] == "node-1"
    assert bound["metadata"]["annotations"] == {"kept": "yes", "gpus": "0,1"}
    merged = {"mine": "1", "both": "binding", "rank": "3"}
    assert bound["metadata"]["labels"] == ({"mine": "1", "both": "pod"} if api.target.oldest else merged)
    [scheduled] = bound["status"]["conditions"]
    assert (scheduled["type"], scheduled["status"]) == ("PodScheduled", "True")
    assert bound["metadata"].get("generation") == created.metadata.get("generation")
    assert (await api.get("pods", "a")).body["metadata"] == bound["metadata"]


async def test_the_node_need_not_be_there(api: Client) -> None:
    (await api.create("pods", pod("a"))).ok()
    (await api.bind("a", "nowhere")).ok()


async def test_a_second_binding_is_refused(api: Client) -> None:
    (await api.create("pods", pod("a"))).ok()
    (await api.bind("a", "node-1")).ok()
    for node in ("node-1", "node-2"):
        reply = await api.bind("a", node)
        assert (reply.code, reply.reason) == (409, "Conflict")
        said = 'Operation cannot be fulfilled on pods/binding "a": pod a is already assigned to node "node-1"'
        assert reply.message == said
    assert (await api.get("pods", "a")).body["spec"]["nodeName"] == "node-1"


async def test_a_binding_means_one_pod_only(api: Client) -> None:
    created = (await api.create("pods", pod("a"))).ok()
    other = await api.bind("a", "node-1", {"uid": "00000000-0000-0000-0000-000000000000"})
    assert (other.code, other.reason) == (409, "Conflict")
    assert "Precondition failed: UID in precondition: 00000000-0000-0000-0000-000000000000" in other.message
    (await api.patch("pods", "a", {"metadata": {"labels": {"x": "y"}}})).ok()
    stale = await api.bind("a", "node-1", {"resourceVersion": created.version})
    assert (stale.code, stale.reason) == (409, "Conflict")
    assert "nodeName" not in (await api.get("pods", "a")).body["spec"]


async def test_what_a_binding_must_say(api: Client) -> None:
    (await api.create("pods", pod("a"))).ok()
    missing = await api.bind("b", "node-1")
    assert (missing.code, missing.reason, missing.message) == (404, "NotFound", 'pods "b" not found')
    body: Json = {"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "node-1"}}
    wrong_name = await api.post("pods", "b", "binding", body)
    assert (wrong_name.code, wrong_name.reason) == (400, "BadRequest")
    assert wrong_name.message == "name in URL does not match name in Binding object"
    no_node = await api.post("pods", "a", "binding", {"metadata": {"name": "a"}, "target": {}})
    assert no_node.code == 500
    assert "target.name: Required value" in no_node.message
    no_target = await api.post("pods", "a", "binding", {**body, "target": {"kind": "Pod", "name": "x"}})
    assert no_target.code == 500
    assert 'Unsupported value: "Pod"' in no_target.message


async def test_a_binding_can_be_tried(api: Client) -> None:
    created = (await api.create("pods", pod("a"))).ok()
    assert (await api.bind("a", "node-1", dryRun="All")).code == 201
    assert (await api.get("pods", "a")).body == created.body
    (await api.bind("a", "node-1")).ok()
    assert (await api.bind("a", "node-1", dryRun="All")).code == 409


async def test_a_pod_that_goes_is_not_bound(api: Client) -> None:
    body = pod("a")
    body["metadata"]["finalizers"] = ["example.com/wait"]
    (await api.create("pods", body)).ok()
    (await api.delete("pods", "a")).ok()
    reply = await api.bind("a", "node-1")
    assert (reply.code, reply.reason) == (409, "Conflict")
    assert "pod a is being deleted, cannot be assigned to a host" in reply.message
    (await api.patch("pods", "a", {"metadata": {"finalizers": None}})).ok()
    assert (await api.get("pods", "a")).code == 404


async def test_a_gated_pod_is_not_bound(api: Client) -> None:
    created = (await api.create("pods", pod("a", schedulingGates=[{"name": "example.com/gate"}]))).ok()
    if api.target.oldest:
        assert "schedulingGates" not in created.body["spec"], "gates are not known yet"
        return
    [condition] = created.body["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("PodScheduled", "False", "SchedulingGated")
    reply = await api.bind("a", "node-1")
    assert (reply.code, reply.reason) == (409, "Conflict")
    assert "pod a has non-empty .spec.schedulingGates" in reply.message
    (await api.patch("pods", "a", {"spec": {"schedulingGates": None}})).ok()
    (await api.bind("a", "node-1")).ok()


async def test_the_older_path_of_bindings(api: Client) -> None:
    (await api.create("pods", pod("a"))).ok()
    binding = {"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "node-1"}}
    assert (await api.call("POST", api.path("bindings"), binding)).code == 201
    assert (await api.call("POST", api.path("bindings"), binding)).code == 409
    assert (await api.get("pods", "a")).body["spec"]["nodeName"] == "node-1"


async def test_a_nomination_ends_with_the_binding(api: Client) -> None:
    (await api.create("pods", pod("a"))).ok()
    (await api.patch("pods", "a", {"status": {"nominatedNodeName": "node-2"}}, "status")).ok()
    (await api.bind("a", "node-1")).ok()
    nominated = (await api.get("pods", "a")).body["status"].get("nominatedNodeName")
    assert nominated == ("node-2" if api.target.oldest else None)


async def test_of_many_binds_of_a_pod_one_wins(api: Client) -> None:
    (await api.create("pods", pod("a"))).ok()
    replies = await asyncio.gather(*(api.bind("a", f"node-{number}") for number in range(8)))
    assert sorted(reply.code for reply in replies) == [201] + [409] * 7


# Graceful deletion


async def test_a_bound_pod_stays_until_its_kubelet_agrees(api: Client) -> None:
    (await api.create("pods", pod("a"))).ok()
    (await api.bind("a", "node-1")).ok()
    doomed = (await api.delete("pods", "a")).ok()
    assert doomed.body["kind"] == "Pod"
    assert doomed.metadata["deletionGracePeriodSeconds"] == 30
    assert doomed.metadata["deletionTimestamp"] > doomed.metadata["creationTimestamp"]
    again = (await api.delete("pods", "a")).ok()
    assert again.metadata["resourceVersion"] == doomed.version
    shorter = (await api.delete("pods", "a", {"gracePeriodSeconds": 5})).ok()
    assert shorter.metadata["deletionGracePeriodSeconds"] == 5
    assert shorter.metadata["deletionTimestamp"] < doomed.metadata["deletionTimestamp"]
    longer = (await api.delete("pods", "a", {"gracePeriodSeconds": 60})).ok()
    assert longer.metadata["deletionGracePeriodSeconds"] == 5
    stale = await api.delete("pods", "a", {"gracePeriodSeconds": 0, "preconditions": {"uid": "other"}})
    assert stale.code == 409
    confirmation = {"gracePeriodSeconds": 0, "preconditions": {"uid": doomed.metadata["uid"]}}
    (await api.delete("pods", "a", confirmation)).ok()
    assert (await api.get("pods", "a")).code == 404


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_a_finished_pod_goes_at_once(api: Client, phase: str) -> None:
    (await api.create("pods", pod("a"))).ok()
    (await api.bind("a", "node-1")).ok()
    await _phase(api, "a", phase, ready=False)
    (await api.delete("pods", "a")).ok()
    assert (await api.get("pods", "a")).code == 404


async def test_a_pod_without_a_node_goes_at_once(api: Client) -> None:
    (await api.create("pods", pod("a"))).ok()
    (await api.delete("pods", "a")).ok()
    assert (await api.get("pods", "a")).code == 404


async def test_a_grace_of_its_own(api: Client) -> None:
    (await api.create("pods", pod("a", terminationGracePeriodSeconds=7))).ok()
    (await api.bind("a", "node-1")).ok()
    assert (await api.delete("pods", "a")).ok().metadata["deletionGracePeriodSeconds"] == 7


# Eviction


async def _evict(api: Client, name: str, options: Json | None = None, **query: str) -> Reply:
    body: Json = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    if options:
        body["deleteOptions"] = options
    return await api.post("pods", name, "eviction", body, **query)


async def _running(api: Client, name: str, **labels: str) -> None:
    (await api.create("pods", labelled(pod(name), **labels))).ok()
    (await api.bind(name, "node-1")).ok()
    await _phase(api, name, "Running")


async def _budget(api: Client, allowed: int, *, observed: int = 1, **spec: str) -> None:
    """A budget as its controller would have written it."""
    selector = {"matchLabels": {"app": "x"}}
    body = {"metadata": {"name": "budget"}, "spec": {"minAvailable": 1, "selector": selector, **spec}}
    (await api.create("poddisruptionbudgets", body)).ok()
    state = {
        "observedGeneration": observed,
        "disruptionsAllowed": allowed,
        "currentHealthy": 1 + allowed,
        "desiredHealthy": 1,
        "expectedPods": 1 + allowed,
    }
    (await api.patch("poddisruptionbudgets", "budget", {"status": state}, "status")).ok()


async def test_an_eviction_is_a_graceful_deletion(api: Client) -> None:
    await _running(api, "a")
    reply = await _evict(api, "a", {"gracePeriodSeconds": 3})
    assert (reply.code, reply.body["status"]) == (201, "Success")
    left = (await api.get("pods", "a")).ok()
    assert left.metadata["deletionGracePeriodSeconds"] == 3
    conditions = {condition["type"]: condition for condition in left.body["status"]["conditions"]}
    if api.target.oldest:
        assert "DisruptionTarget" not in conditions
    else:
        target = conditions["DisruptionTarget"]
        assert (target["status"], target["reason"]) == ("True", "EvictionByEvictionAPI")


async def test_a_budget_that_is_spent_refuses(api: Client) -> None:
    await _running(api, "a", app="x")
    await _running(api, "b", app="x")
    await _budget(api, 1)
    assert (await _evict(api, "a", dryRun="All")).code == 201
    assert "deletionTimestamp" not in (await api.get("pods", "a")).metadata
    assert (await _evict(api, "a")).code == 201
    state = (await api.get("poddisruptionbudgets", "budget")).body["status"]
    assert state["disruptionsAllowed"] == 0
    assert list(state["disruptedPods"]) == ["a"]
    reply = await _evict(api, "b")
    assert (reply.code, reply.reason) == (429, "TooManyRequests")
    assert reply.message == "Cannot evict pod as it would violate the pod's disruption budget."
    assert reply.body["details"]["causes"][0]["reason"] == "DisruptionBudget"
    assert "deletionTimestamp" not in (await api.get("pods", "b")).metadata


async def test_a_budget_that_was_not_looked_at_yet_asks_to_wait(api: Client) -> None:
    await _running(api, "a", app="x")
    await _budget(api, 1, observed=0)
    reply = await _evict(api, "a")
    assert (reply.code, reply.headers["Retry-After"]) == (429, "10")
    assert reply.body["details"]["retryAfterSeconds"] == 10


@pytest.mark.parametrize(("policy", "healthy", "code"), [
    ("IfHealthyBudget", 1, 201), ("IfHealthyBudget", 0, 429), ("AlwaysAllow", 0, 201),
])  # fmt: skip
async def test_a_pod_that_is_not_ready_may_be_spared(api: Client, policy: str, healthy: int, code: int) -> None:
    await _running(api, "a", app="x")
    await _phase(api, "a", "Running", ready=False)
    await _budget(api, 0, unhealthyPodEvictionPolicy=policy)
    (await api.patch("poddisruptionbudgets", "budget", {"status": {"currentHealthy": healthy}}, "status")).ok()
    knows_policies = not api.target.oldest  # before, every budget was an IfHealthyBudget
    assert (await _evict(api, "a")).code == (code if knows_policies or healthy else 429)


async def test_two_budgets_are_too_many(api: Client) -> None:
    await _running(api, "a", app="x")
    await _budget(api, 1)
    body = {"metadata": {"name": "other"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}}}
    (await api.create("poddisruptionbudgets", body)).ok()
    reply = await _evict(api, "a")
    assert reply.code == 500
    assert "more than one PodDisruptionBudget" in reply.message


async def test_budgets_are_not_for_pods_that_wait(api: Client) -> None:
    (await api.create("pods", labelled(pod("a"), app="x"))).ok()
    await _budget(api, 0)
    assert (await _evict(api, "a")).code == 201
    assert (await api.get("pods", "a")).code == 404


async def test_an_eviction_means_one_pod_only(api: Client) -> None:
    await _running(api, "a")
    reply = await _evict(api, "a", {"preconditions": {"uid": "other"}})
    assert (reply.code, reply.reason) == (409, "Conflict")
    assert (await _evict(api, "nobody")).code == 404


# Admission


async def test_what_a_pod_is_given(api: Client) -> None:
    limits = {"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": "1"}
    body = pod("a")
    body["spec"]["containers"][0]["resources"] = {"limits": limits}
    created = (await api.create("pods", body)).ok().body
    spec, status = created["spec"], created["status"]
    assert spec["schedulerName"] == "default-scheduler"
    assert spec["restartPolicy"] == "Always"
    assert spec["terminationGracePeriodSeconds"] == 30
    assert (spec["priority"], spec["preemptionPolicy"]) == (0, "PreemptLowerPriority")
    assert spec["containers"][0]["resources"]["requests"] == limits
    assert [(t["key"], t["operator"], t["effect"], t["tolerationSeconds"]) for t in spec["tolerations"]] == [
        ("node.kubernetes.io/not-ready", "Exists", "NoExecute", 300),
        ("node.kubernetes.io/unreachable", "Exists", "NoExecute", 300),
    ]
    assert (status["phase"], status["qosClass"]) == ("Pending", "Guaranteed")


async def test_a_toleration_of_everything_is_enough(api: Client) -> None:
    everything = [{"operator": "Exists"}]
    created = (await api.create("pods", pod("a", tolerations=everything))).ok()
    assert created.body["spec"]["tolerations"] == everything


@pytest.mark.parametrize(
    ("resources", "quality"),
    [
        ({}, "BestEffort"),
        ({"limits": {"nvidia.com/gpu": "1"}}, "BestEffort"),
        ({"requests": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}}, "Burstable"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1000m"}}, "Guaranteed"),
    ],
)
async def test_quality_of_service(api: Client, resources: Json, quality: str) -> None:
    body = pod("a")
    body["spec"]["containers"][0]["resources"] = resources
    assert (await api.create("pods", body)).ok().body["status"]["qosClass"] == quality


async def test_priorities_have_names(api: Client) -> None:
    name = f"high-{api.namespace}"
    high = {"metadata": {"name": name}, "value": 1000, "preemptionPolicy": "Never"}
    (await api.create("priorityclasses", high)).ok()
    try:
        spec = (await api.create("pods", pod("a", priorityClassName=name))).ok().body["spec"]
        assert (spec["priority"], spec["preemptionPolicy"]) == (1000, "Never")
        wrong = await api.create("pods", pod("b", priorityClassName=name, priority=7))
        assert (wrong.code, wrong.reason) == (403, "Forbidden")
        assert "the integer value of priority (7) must not be provided in pod spec" in wrong.message
    finally:
        await api.delete("priorityclasses", name)
    unknown = await api.create("pods", pod("c", priorityClassName="unknown"))
    assert (unknown.code, unknown.reason) == (403, "Forbidden")
    assert unknown.message == 'pods "c" is forbidden: no PriorityClass with name unknown was found'


async def test_the_system_has_priorities_of_its_own(api: Client) -> None:
    created = (await api.create("pods", pod("a", priorityClassName="system-node-critical"))).ok()
    assert created.body["spec"]["priority"] == 2_000_001_000


# Jobs


def job(name: str, **spec: object) -> Json:
    template = {"spec": {"restartPolicy": "Never", **pod()["spec"]}}
    return {"metadata": {"name": name}, "spec": {"template": template, **spec}}


async def test_what_a_job_is_given(api: Client) -> None:
    created = (await api.create("jobs", job("a"))).ok().body
    spec, uid = created["spec"], created["metadata"]["uid"]
    assert (spec["parallelism"], spec["completions"], spec["backoffLimit"]) == (1, 1, 6)
    assert spec["completionMode"] == "NonIndexed"
    assert spec["suspend"] is False
    labels = spec["template"]["metadata"]["labels"]
    assert (labels["controller-uid"], labels["job-name"]) == (uid, "a")
    [(key, value)] = spec["selector"]["matchLabels"].items()
    if api.target.oldest:
        assert key == "controller-uid"
    else:
        assert (labels["batch.kubernetes.io/controller-uid"], labels["batch.kubernetes.io/job-name"]) == (uid, "a")
        assert key == "batch.kubernetes.io/controller-uid"
    assert value == uid
    assert spec["template"]["spec"]["schedulerName"] == "default-scheduler"


async def test_a_job_with_a_pool_of_workers_counts_no_completions(api: Client) -> None:
    assert "completions" not in (await api.create("jobs", job("a", parallelism=4))).ok().body["spec"]


async def test_a_job_must_say_what_happens_at_the_end(api: Client) -> None:
    body = job("a")
    body["spec"]["template"]["spec"]["restartPolicy"] = "Always"
    reply = await api.create("jobs", body)
    assert (reply.code, reply.reason) == (422, "Invalid")
    assert "spec.template.spec.restartPolicy" in reply.message


async def test_the_template_of_a_job_is_settled(api: Client) -> None:
    (await api.create("jobs", job("a"))).ok()
    change = {"spec": {"template": {"metadata": {"labels": {"x": "y"}}}}}
    reply = await api.patch("jobs", "a", change)
    assert (reply.code, reply.reason) == (422, "Invalid")
    assert "spec.template" in reply.message
    assert "field is immutable" in reply.message
    assert (await api.patch("jobs", "a", {"spec": {"parallelism": 5}})).ok().body["spec"]["parallelism"] == 5


async def test_jobs_keep_their_pods_by_default(api: Client) -> None:
    (await api.create("jobs", job("a"))).ok()
    (await api.delete("jobs", "a")).ok()
    assert (await api.get("jobs", "a")).ok().metadata["finalizers"] == ["orphan"]
    (await api.patch("jobs", "a", {"metadata": {"finalizers": None}})).ok()
    (await api.create("jobs", job("b"))).ok()
    (await api.delete("jobs", "b", {"propagationPolicy": "Background"})).ok()
    assert (await api.get("jobs", "b")).code == 404
