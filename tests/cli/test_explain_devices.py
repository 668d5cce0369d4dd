"""``explain`` names the devices that pods have, and says request by request why a pod gets none."""

import json
from typing import Any

import pytest

from tests.cli.conftest import Served, run
from tests.cli.served_devices import CLAIMS, publish, refuse, with_status
from tests.state.device_objects import DRIVER, Json, claim, gpu, slice_of
from topo_scheduler.simulation.demo import until

TEMPLATES = "resourceclaimtemplates.resource.k8s.io"


def asking(count: int, *expressions: str) -> Json:
    selectors = [{"cel": {"expression": expression}} for expression in expressions]
    exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count, "selectors": selectors}
    return {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}


def create_pod(served: Served, name: str, spec: Json, **pod: Any) -> None:
    """Create a pod whose claim is made from a template."""
    store = served.server.store

    def write() -> None:
        if store.find("deviceclasses.resource.k8s.io", "gpu") is None:
            selectors = [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]
            body = {"metadata": {"name": "gpu"}, "spec": {"selectors": selectors}}
            store.create("deviceclasses.resource.k8s.io", body)
        store.create(TEMPLATES, {"metadata": {"name": name}, "spec": {"spec": spec}}, "default")

    served.call(write)
    entry = {"name": "devices", "resourceClaimTemplateName": name}
    served.create_pod(name, gpus=0, resourceClaims=[entry], **pod)
    made = served.wait(lambda: until(store, lambda: claim_of(served, name) is not None, 10))
    assert made


def claim_of(served: Served, pod: str) -> str | None:
    status = served.server.store.get("pods", pod, "default").get("status") or {}
    return next((entry["resourceClaimName"] for entry in status.get("resourceClaimStatuses", ())), None)


def allocate(served: Served, pod: str, node: str, *devices: str) -> None:
    """Allocate devices to the claim of a pod and bind it, as a scheduler does."""
    store = served.server.store
    name = claim_of(served, pod)
    assert name is not None
    status = claim(name, node, *devices, pods=[pod])["status"]
    status["reservedFor"][0]["uid"] = store.get("pods", pod, "default")["metadata"]["uid"]
    served.call(
        lambda: store.modify(CLAIMS, name, "default", lambda item: with_status(item, status), subresource="status")
    )


def explained(served: Served, name: str) -> Json:
    answer = run("explain", name, "--kubeconfig", served.kubeconfig, "-o", "json")
    assert answer.exit_code == 0, answer.output
    report: Json = json.loads(answer.output)
    return report


def text(served: Served, name: str) -> str:
    answer = run("explain", name, "--kubeconfig", served.kubeconfig)
    assert answer.exit_code == 0, answer.output
    return answer.output


def test_a_bound_pod_names_its_devices(served: Served) -> None:
    publish(served, slice_of("node-1", map(gpu, range(8))))
    create_pod(served, "p", asking(3))
    allocate(served, "p", "node-1", "gpu-0", "gpu-1", "gpu-2")
    served.bind("p", "node-1", address="spine-1.leaf-1.node-1", rank="0")
    name = claim_of(served, "p")
    assert explained(served, "p")["devices"] == [
        {"claim": name, "request": "gpus", "driver": DRIVER, "pool": "node-1", "device": f"gpu-{number}"}
        for number in range(3)
    ]
    assert f"  devices    gpu-[0-2] of driver {DRIVER} (request gpus of claim {name})\n" in text(served, "p")


def test_each_member_of_a_gang_names_its_devices(served: Served) -> None:
    publish(served, slice_of("node-1", map(gpu, range(8))))
    for number in range(2):
        create_pod(served, f"g-{number}", asking(1))
        allocate(served, f"g-{number}", "node-1", f"gpu-{number}")
        served.bind(f"g-{number}", "node-1", address="a", rank=str(number), gang_id="default/g")
    members = explained(served, "g-0")["gang"]["members"]
    assert [[device["device"] for device in member["devices"]] for member in members] == [["gpu-0"], ["gpu-1"]]
    assert "  rank 1  g-1  a  gpu-1\n" in text(served, "g-0")


def test_a_pending_pod_says_which_devices_of_which_nodes_match_and_why_they_are_too_few(served: Served) -> None:
    tainted = gpu(3, taints=[{"key": "xid", "effect": "NoSchedule"}])
    publish(
        served,
        slice_of("node-1", [*map(gpu, range(3)), tainted]),
        slice_of("node-4", map(gpu, range(2))),
        slice_of("node-3", [gpu(0), gpu(0)]),
        claim("c", "node-1", "gpu-0"),
    )
    create_pod(served, "p", asking(4, f"device.attributes['{DRIVER}'].numa == 0"))
    report = explained(served, "p")
    (request,) = report["deviceRequests"]
    assert (request["request"], request["deviceClass"], request["count"]) == ("gpus", "gpu", 4)
    assert [(node["node"], node["matching"], node["free"]) for node in request["nodes"]] == [
        ("node-1", 4, 2),
        ("node-4", 2, 2),
        ("node-3", 0, 0),
    ]
    assert (request["nodes"][0]["inUse"], request["nodes"][0]["tainted"]) == (1, 1)
    assert any("device gpu-0 exists in" in problem for problem in report["deviceProblems"])
    shown = text(served, "p")
    assert f"Request gpus of claim {claim_of(served, 'p')} asks for 4 devices of class gpu:" in shown
    assert "  node-1           4 match: 2 free, 1 in use, 1 with a taint\n" in shown
    assert f"  node-3           a pool of driver {DRIVER} is invalid: device gpu-0 exists twice\n" in shown
    assert f"Warning: ResourceSlice node-3-{DRIVER}: spec.devices[1].name" in shown


def test_a_selector_that_rejects_all_devices_is_named(served: Served) -> None:
    publish(served, slice_of("node-1", map(gpu, range(4))))
    create_pod(served, "p", asking(1, f"device.attributes['{DRIVER}'].numa == 7"))
    shown = text(served, "p")
    assert "  no device of any node matches\n" in shown
    assert f"  a selector of the request rejects 4 devices: device.attributes['{DRIVER}'].numa == 7\n" in shown
    (request,) = explained(served, "p")["deviceRequests"]
    assert request["rejections"] == [
        {
            "from": "request",
            "expression": f"device.attributes['{DRIVER}'].numa == 7",
            "devices": 4,
            "failure": "",
        }
    ]


def test_the_reason_of_a_pod_whose_devices_others_have_does_not_say_that_no_pod_could_end(served: Served) -> None:
    publish(served, slice_of("node-1", map(gpu, range(2))))
    create_pod(served, "holder", asking(2))
    allocate(served, "holder", "node-1", "gpu-0", "gpu-1")
    served.bind("holder", "node-1", address="a", rank="0")
    create_pod(served, "p", asking(1))
    assert "Remedies never end pods for their devices; `topo-scheduler topology -o wide` names" in text(served, "p")


def test_a_template_that_does_not_exist_is_named(served: Served) -> None:
    entry = {"name": "devices", "resourceClaimTemplateName": "absent"}
    served.create_pod("p", gpus=0, resourceClaims=[entry])
    assert "Refused: waiting for Kubernetes to create a ResourceClaim from template absent; check" in text(served, "p")


def test_pods_without_claims_ask_for_nothing_about_devices(served: Served) -> None:
    served.create_pod("p", gpus=99)
    report = explained(served, "p")
    assert (report["deviceRequests"], report["deviceProblems"]) == ([], [])
    assert "resourceslices" not in {entry.resource for entry in served.server.requests}


def back_gpus(served: Served) -> None:
    """Make a class that backs ``nvidia.com/gpu``, and two nodes whose 16 GPUs are only in slices."""
    store = served.server.store

    def write() -> None:
        selectors = [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]
        spec = {"selectors": selectors, "extendedResourceName": "nvidia.com/gpu"}
        store.create("deviceclasses.resource.k8s.io", {"metadata": {"name": "gpu"}, "spec": spec})
        for number in (1, 2):
            name = f"slices-{number}"
            amounts = {"cpu": "64", "memory": "256Gi", "pods": "110"}
            status = {"allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
            labels = {"topology.scheduler/spine": "spine-1", "topology.scheduler/leaf": "leaf-1"}
            store.create("nodes", {"metadata": {"name": name, "labels": labels}, "status": status})

    served.call(write)
    publish(served, *(slice_of(f"slices-{number}", map(gpu, range(16))) for number in (1, 2)))


def test_a_pending_pod_counts_devices_of_extended_resources_as_the_scheduler_does(served: Served) -> None:
    back_gpus(served)
    served.create_pod("p", gpus=17)
    report = explained(served, "p")
    assert report["decision"]["reasons"]["cannot allocate all claims"] == 2
    (request,) = report["deviceRequests"]
    assert [(node["node"], node["free"]) for node in request["nodes"]] == [("slices-1", 16), ("slices-2", 16)]
    served.create_pod("fits", gpus=16)
    assert explained(served, "fits")["decision"]["verdict"] == "placed"


def test_a_user_without_permission_to_list_devices_is_warned_that_extended_resources_do_not_count(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    back_gpus(served)
    served.create_pod("p", gpus=16)
    refuse(served, monkeypatch, "resourceslices", "403")
    answer = run("explain", "p", "--kubeconfig", served.kubeconfig)
    assert answer.exit_code == 0, answer.output
    assert (
        "Warning: devices of extended resources are not counted: resourceslices.resource.k8s.io may not"
        in answer.output
    )


def test_a_refusal_for_lack_of_the_users_rights_is_not_taken_for_one_of_the_scheduler(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(served, slice_of("node-1", map(gpu, range(2))))
    create_pod(served, "p", asking(1))
    refuse(served, monkeypatch, "resourceslices", "403")
    shown = text(served, "p")
    assert "Refused: resourceslices.resource.k8s.io can't be listed yet" in shown
    assert "Warning: resourceslices.resource.k8s.io may not be listed with this kubeconfig. If the answer" in shown
