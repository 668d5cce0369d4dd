"""kube-scheduler as a judge: for random pods it makes the same claims for extended resources, request by request."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from typing import Final

import msgspec
import pytest

from tests.controlplane import ControlPlane
from topo_scheduler.api.devices import DeviceClass
from topo_scheduler.api.objects import Pod
from topo_scheduler.state.devices.extended_resources import (
    class_of_resource,
    classes_by_resource,
    extended_requests,
    requested_resources,
)

from . import objects
from .api import Api, Json
from .device_objects import CLASS, slice_of

pytestmark = [pytest.mark.only("real"), pytest.mark.real]

PODS: Final = 60
RESOURCES: Final = ("cpu", objects.NVIDIA, "a.example.com/x", "deviceclass.resource.kubernetes.io/gpu")


@pytest.fixture(scope="module")
def shared() -> Iterator[ControlPlane]:
    """A control plane with kube-scheduler."""
    with ControlPlane(with_scheduler=True) as plane:
        yield plane


@pytest.fixture
async def api(shared: ControlPlane) -> AsyncIterator[Api]:
    """Requests as the administrator."""
    async with Api(shared.kubeconfig) as api:
        yield api


def container(random_: random.Random, name: str, *, init: bool) -> Json:
    """A container with some of the resources, a sidecar if it is an init container now and then."""
    chosen = random_.sample(RESOURCES, random_.randint(1, 3))
    requests = {resource: str(random_.randint(1, 2)) for resource in chosen}
    limits = {name: value for name, value in requests.items() if name != "cpu"}
    resources = {"requests": requests, "limits": limits}
    more: Json = {"restartPolicy": "Always"} if init and random_.random() < 0.4 else {}
    return {"name": name, "image": "busybox:1.36", "resources": resources, **more}


def random_pod(number: int) -> Json:
    random_ = random.Random(number)
    item = objects.pod(f"p{number}", scheduler="default-scheduler")
    item["spec"]["nodeSelector"] = {"kubernetes.io/hostname": f"n{number}"}  # kube-scheduler gives up on full nodes
    item["spec"]["initContainers"] = [
        container(random_, f"i{index}", init=True) for index in range(random_.randint(0, 3))
    ]
    item["spec"]["containers"] = [container(random_, f"c{index}", init=False) for index in range(random_.randint(1, 3))]
    return item


def device_class(name: str, resource: str) -> Json:
    return {**CLASS, "metadata": {"name": name}, "spec": {**CLASS["spec"], "extendedResourceName": resource}}


async def test_kube_scheduler_asks_for_the_same_devices(api: Api) -> None:
    nodes = [objects.node(f"n{number}", gpus=0) for number in range(PODS)]
    for item in nodes:
        status = item.pop("status")
        status["allocatable"] = status["capacity"] = {"cpu": "1000", "memory": "4Ti", "pods": "500"}
        await api.create("nodes", item)
        await api.patch("nodes", item["metadata"]["name"], {"status": status}, subresource="status")
        await api.patch("nodes", item["metadata"]["name"], {"spec": {"taints": None}})
    made = [
        await api.create("deviceclasses", item)
        for item in (
            device_class("older", objects.NVIDIA),
            device_class("gpu", "a.example.com/x"),
        )
    ]
    await asyncio.sleep(1.1)  # times of creation are whole seconds
    made.append(await api.create("deviceclasses", device_class("newer", objects.NVIDIA)))
    for item in nodes:
        await api.create("resourceslices", slice_of(item["metadata"]["name"], 32))
    pods = [random_pod(number) for number in range(PODS)]
    for item in pods:
        await api.create("pods", item)

    async def claims() -> dict[str, Json]:
        listed = await api.list("resourceclaims", "default")
        return {item["metadata"]["ownerReferences"][0]["name"]: item for item in listed}

    classes = [msgspec.convert(item, DeviceClass) for item in made]
    by_name, named = {item.metadata.name: item for item in classes}, classes_by_resource(classes)
    expected = {}
    for item in pods:
        read = msgspec.convert(item, Pod)
        backed = {
            name: by_class
            for name in requested_resources(read)
            if (by_class := class_of_resource(name, named, by_name))
        }
        expected[read.metadata.name] = extended_requests(read, backed)
    wanted = {name for name, asked in expected.items() if asked.requests}
    assert len(wanted) > PODS // 2, "most of these pods ask for devices"
    for _ in range(120):
        bound = [item for item in await api.list("pods", "default") if item["spec"].get("nodeName")]
        if len(bound) == PODS:
            break
        await asyncio.sleep(0.5)
    names = {item["metadata"]["name"] for item in bound}
    assert len(names) == PODS, "kube-scheduler places each of them"
    theirs = await claims()
    assert set(theirs) == wanted
    for item in bound:
        name = item["metadata"]["name"]
        if name not in wanted:
            continue
        asked = expected[name]
        spec = theirs[name]["spec"]
        assert spec == msgspec.to_builtins(asked.specification()), name
        mappings = [
            {"containerName": entry.container, "resourceName": entry.resource, "requestName": entry.request}
            for entry in asked.mappings
        ]
        assert item["status"]["extendedResourceClaimStatus"]["requestMappings"] == mappings, name
