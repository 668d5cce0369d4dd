"""What a pod's extended resources ask of DeviceClasses: request by request as kube-scheduler 1.36 writes them."""

import msgspec
import pytest

from topo_scheduler.api.devices import DeviceClass, ResourceClaim
from topo_scheduler.api.objects import Pod
from topo_scheduler.state.devices.extended_resources import (
    classes_by_resource,
    extended_claim_name,
    extended_claim_owner,
    extended_requests,
    may_be_backed,
    requested_resources,
)

Json = dict[str, object]
CLASSES = {"a.com/x": "x", "b.com/y": "y"}


def container(name: str, *, sidecar: bool = False, **requests: object) -> Json:
    asked = {key.replace("_", ".com/"): value for key, value in requests.items()}
    more: Json = {"restartPolicy": "Always"} if sidecar else {}
    return {"name": name, "resources": {"requests": asked}, **more}


def pod(*containers: Json, init: tuple[Json, ...] = ()) -> Pod:
    return msgspec.convert({"spec": {"containers": containers, "initContainers": init}}, Pod)


def asked(pod: Pod) -> list[tuple[str, str, int]]:
    return [(item.name, item.device_class, item.count) for item in extended_requests(pod, CLASSES).requests]


def mapped(pod: Pod) -> set[tuple[str, str]]:
    return {(item.container, item.request) for item in extended_requests(pod, CLASSES).mappings}


def test_each_container_has_a_request_for_each_resource() -> None:
    two = pod(container("c", cpu="1", a_x="1", b_y=2), container("d", b_y="3"))
    assert asked(two) == [
        ("container-0-request-0", "x", 1),
        ("container-0-request-1", "y", 2),
        ("container-1-request-0", "y", 3),
    ]
    assert mapped(two) == {
        ("c", "container-0-request-0"),
        ("c", "container-0-request-1"),
        ("d", "container-1-request-0"),
    }


def test_an_init_container_gets_devices_of_later_containers() -> None:
    item = pod(container("main", a_x=2), init=(container("init", a_x=3),))
    assert asked(item) == [("container-0-request-0", "x", 1), ("container-1-request-0", "x", 2)]
    assert mapped(item) == {
        ("main", "container-1-request-0"),
        ("init", "container-1-request-0"),
        ("init", "container-0-request-0"),
    }


def test_an_init_container_gets_no_devices_of_earlier_sidecars() -> None:
    item = pod(container("main", a_x=1), init=(container("side", sidecar=True, a_x=1), container("init", a_x=2)))
    assert asked(item) == [
        ("container-0-request-0", "x", 1),
        ("container-1-request-0", "x", 1),
        ("container-2-request-0", "x", 1),
    ]
    assert ("init", "container-0-request-0") not in mapped(item)


def test_init_containers_share_the_largest_request_of_them() -> None:
    item = pod(
        container("main"), init=(container("first", a_x=1), container("second", a_x=4), container("third", a_x=2))
    )
    assert asked(item) == [("container-1-request-0", "x", 4)]
    assert mapped(item) == {(name, "container-1-request-0") for name in ("first", "second", "third")}


def test_nothing_is_asked_for_none_or_a_part_of_a_device() -> None:
    assert asked(pod(container("c", a_x=0), container("d", a_x="500m"), container("e", c_z=1))) == []


@pytest.mark.parametrize("name", ["nvidia.com/gpu", "deviceclass.resource.kubernetes.io/gpu"])
def test_names_that_devices_may_back(name: str) -> None:
    assert may_be_backed(name)
    item = msgspec.convert(
        {"spec": {"containers": [{"name": "c", "resources": {"requests": {name: 1, "cpu": 1}}}]}}, Pod
    )
    assert requested_resources(item) == [name]


@pytest.mark.parametrize("name", ["cpu", "hugepages-2Mi", "kubernetes.io/batch-cpu", "requests.nvidia.com/gpu"])
def test_names_that_devices_never_back(name: str) -> None:
    assert not may_be_backed(name)


def test_of_equally_old_classes_the_first_by_name_backs_a_resource() -> None:
    def one(name: str, created: str) -> DeviceClass:
        metadata = {"name": name, "creationTimestamp": created}
        return msgspec.convert({"metadata": metadata, "spec": {"extendedResourceName": "a.com/x"}}, DeviceClass)

    old, new = "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"
    assert classes_by_resource([one("b", new), one("a", new), one("c", old)]) == {"a.com/x": "a"}


def test_the_name_of_a_claim_follows_from_its_pod_and_is_valid() -> None:
    long = extended_claim_name("p" * 253, "uid")
    assert len(long) <= 253
    assert extended_claim_name("p", "uid") != extended_claim_name("p", "other")
    assert extended_claim_name("p", "uid").startswith("p-extended-resources-")


def test_only_an_annotated_claim_of_a_pod_is_for_extended_resources() -> None:
    def claim(kind: str, annotated: str) -> ResourceClaim:
        owner = {"kind": kind, "name": "p", "uid": "u", "controller": True}
        annotations = {"resource.kubernetes.io/extended-resource-claim": annotated}
        return msgspec.convert({"metadata": {"ownerReferences": [owner], "annotations": annotations}}, ResourceClaim)

    assert extended_claim_owner(claim("Pod", "true")) == "u"
    assert extended_claim_owner(claim("Pod", "false")) == ""
    assert extended_claim_owner(claim("Job", "true")) == ""


def many(init: int, main: int, wanted: int) -> Pod:
    return pod(
        *(container(f"main-{number}", a_x=1) for number in range(main)),
        init=tuple(container(f"init-{number}", a_x=wanted) for number in range(init)),
    )


def test_up_to_the_caps_everything_is_asked_for() -> None:
    assert len(extended_requests(many(0, 32, 0), {"a.com/x": "x"}).requests) == 32
    read = extended_requests(many(15, 16, 16), {"a.com/x": "x"})
    assert (len(read.requests), len(read.mappings), read.excess) == (16, 256, "")


@pytest.mark.parametrize(
    ("item", "why"),
    [
        (many(0, 33, 0), "more than 32 requests"),
        (many(1, 32, 33), "more than 32 requests"),
        (many(16, 16, 16), "in more than 256 ways"),
        (many(224, 32, 32), "in more than 256 ways"),
        (many(254, 1, 1), ""),
        (many(255, 1, 1), ""),
        (many(255, 1, 2), "in more than 256 ways"),
    ],
)
def test_beyond_the_caps_nothing_is_kept_but_the_reason(item: Pod, why: str) -> None:
    read = extended_requests(item, {"a.com/x": "x"})
    assert why in read.excess
    assert bool(why) == bool(read.excess)
    assert bool(read.excess) != bool(read.requests or read.mappings)
    assert read.specification().excess == read.excess
    assert set(read.resources) == {"a.com/x"}
