"""Which devices match a request, and why the others can't be had: by node, with the selectors that reject."""

from typing import Any

import msgspec
import pytest

from tests.scheduling.device_driver import DRIVER, DeviceDriver, Json, asking, driver, slice_of
from tests.scheduling.partitioned_nodes import PLACES, partitioned, profile, split_node
from topo_scheduler.api.devices import DeviceAttribute, DeviceClass
from topo_scheduler.scheduling.devices.request_survey import MatchingDevices, SurveyedRequest, survey_requests

TAINTS = [{"key": "xid", "effect": "NoSchedule"}]


def surveyed(d: DeviceDriver, name: str, spec: Json) -> list[SurveyedRequest]:
    """Return what is found about the claim of a pod that has no node."""
    pod = d.pod(name, spec)
    d.run(pod)
    assert not pod.spec.node_name
    entry = d.engine.workloads.of_pod(pod.metadata.uid)
    devices = d.engine.world.around.devices
    assert entry is not None and devices is not None
    return survey_requests(devices, entry[1].cls.claims, entry[1].claims, sorted(d.engine.world.nodes.row_of.items()))


def counts(node: MatchingDevices) -> dict[str, int]:
    return {cause: number for cause, number in node.counts.items() if number}


def test_devices_that_match_by_what_becomes_of_them() -> None:
    d = driver({"s1/l1": 3})
    d.run(d.pod("first", asking(5)))
    d.slices(slice_of("s1-l1-2", 2, taints=TAINTS))
    (request,) = surveyed(d, "p", asking(9))
    assert (request.claim, request.request, request.class_name, request.count) == (
        ("default", "p-claim"),
        "gpus",
        "gpu",
        9,
    )
    assert {node.node: counts(node) for node in request.nodes} == {
        "s1-l1-1": {"free": 3, "inUse": 5},
        "s1-l1-2": {"tainted": 2},
        "s1-l1-3": {"free": 8},
    }
    assert request.nodes[0].node == "s1-l1-3", "most free first"
    assert not request.rejections


def test_selectors_that_reject_are_named_with_their_devices() -> None:
    d = driver({"s1/l1": 2})
    other = slice_of("s1-l1-1", 3)
    other.metadata.name, other.spec.driver = "nics", "nic.example.com"
    d.slices(other)
    selectors = [
        {"cel": {"expression": f"device.attributes['{DRIVER}'].numa == 0"}},
        {"cel": {"expression": f"device.attributes['{DRIVER}'].absent == 1"}},
    ]
    (request,) = surveyed(d, "p", asking(1, selectors=selectors))
    assert not request.nodes
    assert [(rejection.of_class, rejection.devices) for rejection in request.rejections] == [
        (True, 3),
        (False, 8),
        (False, 8),
    ]
    assert "numa == 0" in request.rejections[1].expression and not request.rejections[1].failure
    assert "absent" in request.rejections[2].failure


def test_partitions_in_use_block_others() -> None:
    d = split_node()
    d.slices(*partitioned("n1", 1))
    d.run(d.pod("first", profile("1g")))
    (request,) = surveyed(d, "p", profile("7g"))
    assert [counts(node) for node in request.nodes] == [{"blocked": 1}]
    assert PLACES["7g"][1] == 8


def test_devices_that_are_too_small_and_those_without_the_requested_capacity() -> None:
    d = driver({"s1/l1": 1})
    d.slices(slice_of("s1-l1-1", 2, capacity={"memory": {"value": "40Gi"}}))
    (request,) = surveyed(d, "p", asking(1, capacity={"requests": {"memory": "80Gi"}}))
    assert [counts(node) for node in request.nodes] == [{"tooSmall": 2}]


def test_free_devices_that_do_not_agree_in_an_attribute() -> None:
    d = driver({"s1/l1": 1})
    spec = asking(5)
    spec["devices"]["constraints"] = [{"requests": ["gpus"], "matchAttribute": f"{DRIVER}/numa"}]
    (request,) = surveyed(d, "p", spec)
    (node,) = request.nodes
    assert (node.counts["free"], node.together) == (8, 4)
    assert request.match_attributes == (f"{DRIVER}/numa",)


def test_free_devices_without_the_attribute_agree_with_none() -> None:
    d = driver({"s1/l1": 1})
    spec = asking(2)
    spec["devices"]["constraints"] = [{"requests": ["gpus"], "matchAttribute": f"{DRIVER}/absent"}]
    (request,) = surveyed(d, "p", spec)
    assert [(node.counts["free"], node.together) for node in request.nodes] == [(8, 0)]


def constrained(count: int, **constraints: str) -> Json:
    spec = asking(count)
    spec["devices"]["constraints"] = [
        {"requests": ["gpus"], kind: f"{DRIVER}/{attribute}"} for kind, attribute in constraints.items()
    ]
    return spec


def test_free_devices_that_do_not_differ_in_an_attribute() -> None:
    d = driver({"s1/l1": 1})
    (request,) = surveyed(d, "p", constrained(3, distinctAttribute="numa"))
    assert [(node.counts["free"], node.together) for node in request.nodes] == [(8, 2)]
    assert (request.match_attributes, request.distinct_attributes) == ((), (f"{DRIVER}/numa",))


def test_free_devices_that_agree_in_one_attribute_and_differ_in_another() -> None:
    d = driver({"s1/l1": 1})
    published = slice_of("s1-l1-1")
    for number, device in enumerate(published.spec.devices):
        device.attributes["nic"] = DeviceAttribute(int_=number // 2)
    d.slices(published)
    (request,) = surveyed(d, "p", constrained(3, matchAttribute="numa", distinctAttribute="nic"))
    assert [(node.counts["free"], node.together) for node in request.nodes] == [(8, 2)]


@pytest.mark.parametrize(
    ("kind", "verb", "count"), [("matchAttribute", "agree", 5), ("distinctAttribute", "differ", 3)]
)
def test_a_constraint_without_room_is_the_reason_on_the_pod(kind: str, verb: str, count: int) -> None:
    d = driver({"s1/l1": 2})
    first, too_many = (
        d.pod("first", constrained(count - 1, **{kind: "numa"})),
        d.pod("p", constrained(count, **{kind: "numa"})),
    )
    d.run(first, too_many)
    assert first.spec.node_name
    reason = f"request gpus: too few devices that match {verb} in {DRIVER}/numa"
    assert f"2 cannot allocate all claims: {reason}. " in d.told(too_many)[0]


def test_a_constraint_with_room_once_devices_are_free_is_no_reason() -> None:
    d = driver({"s1/l1": 1})
    d.run(d.pod("first", asking(5)))
    pod = d.pod("p", constrained(4, matchAttribute="numa"))
    d.run(pod)
    assert d.told(pod)[0] == "0/1 nodes are available: 1 cannot allocate all claims."


def test_each_alternative_is_a_request_of_its_own() -> None:
    d = driver({"s1/l1": 1})
    alternatives: list[dict[str, Any]] = [
        {"name": name, "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count}
        for name, count in (("many", 10), ("fewer", 9))
    ]
    spec = {"devices": {"requests": [{"name": "gpus", "firstAvailable": alternatives}]}}
    assert [(request.request, request.count) for request in surveyed(d, "p", spec)] == [
        ("gpus/many", 10),
        ("gpus/fewer", 9),
    ]


def test_a_pool_that_gives_nothing_is_a_problem_of_its_node() -> None:
    d = driver({"s1/l1": 1})
    newer = slice_of("s1-l1-1", generation=2)
    newer.spec.pool.resource_slice_count = 2
    d.slices(newer)
    (request,) = surveyed(d, "p", asking(1))
    assert [(node.matching, node.problem) for node in request.nodes] == [
        (0, f"a pool of driver {DRIVER} is being updated")
    ]


def test_admin_access_sees_devices_in_use_as_free() -> None:
    d = driver({"s1/l1": 1})
    d.run(d.pod("first", asking(8)))
    d.classes(msgspec.convert({"metadata": {"name": "admin"}}, DeviceClass))
    (request,) = surveyed(d, "p", asking(9, adminAccess=True))
    assert [counts(node) for node in request.nodes] == [{"free": 8}]


def test_devices_with_a_field_that_is_not_supported_are_a_problem_of_the_node() -> None:
    d = driver({"s1/l1": 1})
    d.slices(slice_of("s1-l1-1", 2, attributes={"links": {"strings": ["a", "b"]}}))
    (request,) = surveyed(d, "p", asking(1))
    (node,) = request.nodes
    assert not counts(node)
    field = "attributes[links], a list (feature gate DRAListTypeAttributes)"
    assert node.problem == f"devices that match have {field}, which is not supported"
