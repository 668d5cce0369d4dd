"""A pod waits for a MIG slot though enough is free: another one moves by a Migration, with the manifests' rights.

The slices have counters as NVIDIA's driver publishes them for dynamic MIG.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.devices.driver_slices import DRIVER, pool_of
from topo_scheduler.api.config import Configuration, TopologySchedulerConfig

from . import objects
from .api import Json
from .cluster import Cluster
from .conftest import StartReplica
from .device_objects import GROUP, by_template, claims_of, template
from .recovery import recovery_configuration

WHOLE = "7g.80gb"
GPUS = ("gpu-0", "gpu-1")


def moving(*, on: bool = True) -> Configuration:
    """A configuration that moves pods for pods that have waited a second for a MIG slot."""
    base = recovery_configuration(defragmentation={"migSlots": on}, reservation_timeout=20.0)
    repair = base.topology.spec.repair.model_copy(update={"after": 1.0})
    spec = base.topology.spec.model_copy(update={"repair": repair})
    return replace(base, topology=TopologySchedulerConfig(spec=spec))


def device_class(profile: str, resource: str = "") -> Json:
    expression = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].?profile.orValue('') == '{profile}'"
    spec: Json = {"selectors": [{"cel": {"expression": expression}}]}
    if resource:
        spec["extendedResourceName"] = resource
    return {"apiVersion": GROUP, "kind": "DeviceClass", "metadata": {"name": f"mig-{profile}"}, "spec": spec}


def asking(profile: str) -> Json:
    return {"devices": {"requests": [{"name": "mig", "exactly": {"deviceClassName": f"mig-{profile}"}}]}}


PROFILES = ("1g.10gb", "2g.20gb", "4g.40gb", WHOLE)
By = Callable[[str], Json]


def by_claim(profile: str) -> Json:
    return by_template(f"one-{profile}")


def by_resource(profile: str) -> Json:
    resources = {"requests": {"cpu": "1"}, "limits": {f"nvidia.com/mig-{profile}": "1"}}
    return {"containers": [{"name": "main", "image": "busybox:1.36", "resources": resources}]}


async def devices(cluster: Cluster) -> dict[str, str]:
    """The device of each claim, by the pod for which it is reserved."""
    return {
        user["name"]: item["status"]["allocation"]["devices"]["results"][0]["device"]
        for item in await claims_of(cluster)
        for user in (item.get("status") or {}).get("reservedFor", [])
    }


async def scattered(cluster: Cluster, by: By) -> dict[str, str]:
    """One node with two GPUs that have a small instance each; return the devices of these."""
    await cluster.add_fabric({"s1": [1]}, gpus=0)
    classes = [device_class(profile, f"nvidia.com/mig-{profile}") for profile in PROFILES]
    await cluster.apply(*classes, *(template(f"one-{profile}", asking(profile)) for profile in PROFILES))
    await cluster.apply(*pool_of("s1-l1-1", "dynamicMIG", len(GPUS)))
    await cluster.apply(objects.replicated("StatefulSet", "first", 1, 0, **by("1g.10gb")))
    await cluster.wait_bound("first", 1)
    for number, profile in enumerate(("4g.40gb", "2g.20gb")):
        await cluster.apply(objects.pod(f"fills-{number}", **by(profile)))
        await cluster.wait_bound(f"fills-{number}", 1)
    await cluster.apply(objects.replicated("StatefulSet", "second", 1, 0, **by("1g.10gb")))
    await cluster.wait_bound("second", 1)
    for number in range(2):
        await cluster.api.delete("pods", f"fills-{number}")

    async def freed() -> dict[str, str]:
        held = await devices(cluster)
        return held if len(held) == 2 else {}

    by_pod = await cluster.wait_until(freed, 30, "devices of deleted pods are free")
    assert {device[:5] for device in by_pod.values()} == set(GPUS), "each GPU has one instance"
    return by_pod


@pytest.mark.parametrize(("by", "annotated"), [(by_claim, False), (by_resource, False), (by_resource, True)])
async def test_a_pod_moves_for_one_that_waits_for_a_slot(
    cluster: Cluster, migrations: None, start_replica: StartReplica, by: By, annotated: bool
) -> None:
    replica = await start_replica(moving())
    before = await scattered(cluster, by)
    annotations = {"mig-profile": WHOLE} if annotated else {}
    await cluster.apply(objects.pod("waits", annotations=annotations, **by(WHOLE)))
    await cluster.wait_bound("waits", 1, timeout=60)

    async def over() -> list[Json]:
        listed = await cluster.api.list("migrations", None)
        done = len(listed) == 2 and all((migration.get("status") or {}).get("phase") == "Done" for migration in listed)
        return listed if done else []

    by_reason = {
        migration["spec"]["reason"]: migration
        for migration in await cluster.wait_until(over, 60, "both Migrations are done")
    }
    waiting, moved = by_reason["PendingPod"], by_reason["Defragmentation"]
    assert moved["spec"]["makesRoomFor"] == f"default/{waiting['metadata']['name']}"
    assert "would free" in waiting["spec"]["cause"]
    (move,) = waiting["status"]["moves"]
    after = await devices(cluster)
    assert after["waits"] == move["devices"][0]["device"]
    small = {after["first-0"], after["second-0"]}
    assert len(small) == 2 and {device[:5] for device in small} == set(GPUS) - {after["waits"][:5]}
    assert len(small & set(before.values())) == 1, "only one of them moved"
    for cause in ("PendingPod", "Defragmentation"):
        assert await replica.metric("topology_recovery_duration_seconds_count", cause=cause, outcome="Done") == 1


async def test_it_is_off_by_default(cluster: Cluster, migrations: None, start_replica: StartReplica) -> None:
    await start_replica(moving(on=False))
    before = await scattered(cluster, by_claim)
    await cluster.apply(objects.pod("waits", **by_claim(WHOLE)))
    await asyncio.sleep(15)
    (waits,) = await cluster.pods_of("waits")
    assert not waits["spec"].get("nodeName")
    assert not await cluster.api.list("migrations", None) and await devices(cluster) == before
