"""Pods that admission refuses to bind, on either server: no other pod waits for them, and no gang is bound by half."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from topo_scheduler.simulation.apiserver import Refuse

from . import objects
from .api import ApiError, Json
from .cluster import Cluster, nodes_of
from .replica import Replica

NAME = "topology-scheduler-tests-bad"
POLICY: Json = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingAdmissionPolicy",
    "metadata": {"name": NAME},
    "spec": {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/binding"]}
            ]
        },
        "validations": [{"expression": "!object.metadata.name.startsWith('bad')", "message": "not today"}],
    },
}
IN_FORCE: Json = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingAdmissionPolicyBinding",
    "metadata": {"name": NAME},
    "spec": {"policyName": NAME, "validationActions": ["Deny"]},
}


@asynccontextmanager
async def refusing(cluster: Cluster) -> AsyncIterator[None]:
    """While this lasts, admission refuses to bind pods whose names begin with ``bad``."""
    if cluster.embedded:
        fault = Refuse(422, message="not today")
        faults = cluster.server.faults
        rule = faults.add(fault, verb="create", resource="pods/binding", where=lambda info: info.name.startswith("bad"))
        try:
            yield
        finally:
            faults.remove(rule)
        return
    await cluster.api.create("validatingadmissionpolicies", POLICY)
    await cluster.api.create("validatingadmissionpolicybindings", IN_FORCE)
    try:
        await until_refused(cluster)
        yield
    finally:
        await cluster.api.delete("validatingadmissionpolicybindings", NAME)
        await cluster.api.delete("validatingadmissionpolicies", NAME)


async def until_refused(cluster: Cluster) -> None:
    """The API server takes a moment to notice a policy."""
    await cluster.apply(objects.pod("bad-probe", scheduler="nobody"))
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "bad-probe", "namespace": "default"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "none"},
    }

    async def refused() -> bool:
        try:
            where = "/api/v1/namespaces/default/pods/bad-probe/binding"
            await cluster.api.request("POST", where, binding, {"dryRun": "All"})
        except ApiError as error:
            return "not today" in str(error)
        return False

    await cluster.wait_until(refused, 30, "the policy in force")
    await cluster.api.delete("pods", "bad-probe", grace=0)


def refusals(replica: Replica) -> int:
    """How many requests of the daemon were refused by admission so far."""
    return sum(count for (_, code), count in replica.client.traffic.requests.items() if code == 422)


async def test_a_class_that_is_always_refused_delays_no_other_pod_and_costs_little(
    cluster: Cluster, daemon: Replica
) -> None:
    await cluster.add_fabric({"s1": [4, 4]})
    async with refusing(cluster):
        await asyncio.gather(*(cluster.apply(objects.pod(f"bad-{n}", cpu="2")) for n in range(150)))
        await asyncio.gather(*(cluster.apply(objects.pod(f"fine-{n}", 1)) for n in range(20)))
        await cluster.wait_bound("fine", 20)
        (pod,) = await cluster.pods_of("bad-7")
        await cluster.wait_note(pod, "In backoff: the API server rejected the Binding of a pod like this one:")
        await cluster.wait_note(pod, "not today")
        await asyncio.sleep(4)
        assert nodes_of(await cluster.pods_of("bad")) == [""] * 150
        assert 0 < refusals(daemon) < 75, "not each of them every second or two"
        assert await daemon.metric("topology_scheduler_admission_backoff_classes") == 1
        late = objects.pod("late", cpu="1")
        await cluster.apply(late)
        await cluster.wait_bound("late", 1, 5)
    await cluster.wait_bound("bad", 150, 30)


async def test_a_gang_of_a_refused_class_is_never_bound_by_half_and_soon_when_it_is_welcome(
    cluster: Cluster, daemon: Replica
) -> None:
    await cluster.add_fabric({"s1": [4, 4]})
    async with refusing(cluster):
        await cluster.apply(objects.gang("bad", 4))
        pods = await cluster.wait_pods("bad", 4)
        await cluster.wait_note(pods[0], "not today")

        async def unbound() -> bool:
            return nodes_of(await cluster.pods_of("bad")) == [""] * 4

        await cluster.holds_for(5, unbound, "no member is bound")
        assert 0 < refusals(daemon) <= 12
    await cluster.wait_bound("bad", 4, 20)
    assert not any([await cluster.events(pod, "GangRolledBack") for pod in pods])
