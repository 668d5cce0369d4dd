"""``topology`` shows the devices of ResourceSlices, the pods that have them, and what is wrong with them."""

import json
import signal
from typing import Any

import pytest

from tests.cli.conftest import Served, run, start
from tests.cli.served_devices import publish, refuse, with_status
from tests.helpers import make_node
from tests.state.device_objects import DRIVER, claim, gpu, mig_slices, put, slice_of
from topo_scheduler.api.process import SchedulerConfig
from topo_scheduler.cli import render, views
from topo_scheduler.cli.device_rows import ranges
from topo_scheduler.cli.render import VisibleConsole
from topo_scheduler.scheduling.world import World

TAINT = {"taints": [{"key": "xid", "value": "79", "effect": "NoExecute"}]}


def rows_of(output: str, node: str) -> list[str]:
    """Return the rows of devices below a node, without guides."""
    lines = output.splitlines()
    begin = next(number for number, line in enumerate(lines) if f"{node} " in line)
    depth = lines[begin].index(node)
    rows = []
    for line in lines[begin + 1 :]:
        if len(line) <= depth or line[depth] not in "├└│ ":
            break
        rows.append(line[depth:].lstrip("├└│─ ").rstrip())
    return rows


def shown(served: Served, *options: str) -> str:
    answer = run("topology", "--kubeconfig", served.kubeconfig, *options)
    assert answer.exit_code == 0, answer.output
    return answer.output


def cluster_with_devices(served: Served) -> None:
    publish(
        served,
        slice_of("node-1", [*map(gpu, range(7)), gpu(7, **TAINT)]),
        *mig_slices("node-3", 2),
        claim("c", "node-1", "gpu-0", "gpu-1", pods=["worker"]),
        claim("kept", "node-1", "gpu-2", namespace="research"),
        claim("m", "node-3", "gpu-0-mig-1g-10gb-6", pods=["notebook"], namespace="research"),
    )


def test_wide_shows_devices_alike_in_one_row_with_their_holders_and_places(served: Served) -> None:
    cluster_with_devices(served)
    output = shown(served, "-o", "wide")
    assert rows_of(output, "node-1") == [
        "GPUs 0-7 linked by NVSwitch, 600 GB/s each",
        "gpu-0, gpu-1  worker  NVIDIA H100 80GB HBM3, NUMA 0, pci0000:00",
        "gpu-2  claim research/kept  NVIDIA H100 80GB HBM3, NUMA 0, pci0000:10",
        "gpu-3  free  NVIDIA H100 80GB HBM3, NUMA 0, pci0000:10",
        "gpu-4, gpu-5  free  NVIDIA H100 80GB HBM3, NUMA 1, pci0000:20",
        "gpu-6  free  NVIDIA H100 80GB HBM3, NUMA 1, pci0000:30",
        "gpu-7  unavailable  xid=79:NoExecute  NVIDIA H100 80GB HBM3, NUMA 1, pci0000:30",
    ]
    assert rows_of(output, "node-3") == [
        "GPUs 0-7 linked by NVSwitch, 600 GB/s each",
        "gpu-1  free  NVIDIA H100 80GB HBM3, NUMA 0, pci0000:00",
        "gpu-0  1g.10gb research/notebook  NVIDIA H100 80GB HBM3, NUMA 0, pci0000:00",
        "room for 1g.10gb x6 or 2g.20gb x3 or 3g.40gb x1",
    ]


def test_totals_count_devices_also_without_wide(served: Served) -> None:
    cluster_with_devices(served)
    output = shown(served)
    assert ", 5 of 10 devices free" in output.splitlines()[0]
    assert "gpu-0" not in output


def test_a_node_whose_gpus_exist_only_in_slices(served: Served) -> None:
    def bare() -> None:
        served.server.store.create("nodes", {"metadata": {"name": "dra-1"}, "status": {"conditions": []}})

    served.call(bare)
    publish(served, slice_of("dra-1", map(gpu, range(4))), claim("c", "dra-1", "gpu-0"))
    line = next(line for line in shown(served).splitlines() if "dra-1 " in line)
    assert "■□□□  3 of 4 devices free" in line


def test_json(served: Served) -> None:
    cluster_with_devices(served)
    root = json.loads(shown(served, "-o", "json"))
    nodes = {node["name"]: node for node in root["domains"][0]["domains"][0]["nodes"]}
    first, *_, last = nodes["node-1"]["devices"]
    assert first == {
        "driver": DRIVER,
        "pool": "node-1",
        "name": "gpu-0",
        "state": "allocated",
        "profile": "whole",
        "board": None,
        "product": "NVIDIA H100 80GB HBM3",
        "memory": "80Gi",
        "pcieRoot": "pci0000:00",
        "numaNode": 0,
        "taints": [],
        "claims": [{"namespace": "default", "name": "c", "pods": ["worker"]}],
    }
    assert (last["state"], last["taints"]) == ("unavailable", [{"key": "xid", "value": "79", "effect": "NoExecute"}])
    split = nodes["node-3"]
    assert [device["name"] for device in split["devices"]] == ["gpu-0", "gpu-1", "gpu-0-mig-1g-10gb-6"]
    assert [device["state"] for device in split["devices"]] == ["blocked", "free", "allocated"]
    assert split["partitions"][0] == {
        "driver": DRIVER,
        "pool": "node-3",
        "board": "gpu-0-set",
        "profile": "1g.10gb",
        "total": 7,
        "allocated": 1,
        "free": 6,
    }
    assert "devices" not in nodes["node-4"]


def test_problems_are_warnings_with_object_field_and_remedy(served: Served) -> None:
    publish(served, slice_of("node-1", [gpu(0), gpu(0)]), slice_of("node-4", [gpu(0)], slices=2))
    output = shown(served)
    assert f"warning: ResourceSlice node-1-{DRIVER}: spec.devices[1].name: device gpu-0 exists in" in output
    assert f"warning: ResourceSlice node-4-{DRIVER}: spec.pool.resourceSliceCount: generation 1 of pool" in output


def test_without_the_right_to_list_claims_holders_are_unknown(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster_with_devices(served)
    refuse(served, monkeypatch, "resourceclaims", "403")
    output = shown(served, "-o", "wide")
    assert "warning: resourceclaims.resource.k8s.io may not be listed, so devices are shown without" in output
    assert "worker" not in output and "research" not in output
    assert rows_of(output, "node-1")[1].startswith("gpu-0, gpu-1  holder unknown")


@pytest.mark.parametrize(("status", "warned"), [("403", True), ("404", False)])
def test_without_slices_there_are_no_devices(
    served: Served, monkeypatch: pytest.MonkeyPatch, status: str, warned: bool
) -> None:
    cluster_with_devices(served)
    refuse(served, monkeypatch, "resourceslices", status)
    output = shown(served, "-o", "wide")
    assert ("devices are not shown" in output) is warned
    assert "gpu-0" not in output and "devices free" not in output


def test_watch_follows_devices(served: Served) -> None:
    cluster_with_devices(served)
    watching = start("topology", "--watch", "--interval", "0.1", "-o", "json", "--kubeconfig", served.kubeconfig)
    try:
        assert watching.stdout is not None

        def holders() -> list[Any]:
            assert watching.stdout is not None
            root = json.loads(watching.stdout.readline())
            (node,) = (n for n in root["domains"][0]["domains"][0]["nodes"] if n["name"] == "node-1")
            return [node["devices"][3]["claims"], node["devices"][3]["state"]]

        assert holders() == [[], "free"]
        publish(served, claim("late", "node-1", "gpu-3"))
        for _ in range(100):
            if holders()[1] == "allocated":
                break
        else:
            pytest.fail("the new claim is not shown")
    finally:
        watching.send_signal(signal.SIGINT)
        watching.communicate(timeout=30)


def test_rows_can_be_read_at_80_columns() -> None:
    world = World(SchedulerConfig())
    world.put_node(make_node("node-1", "spine-1/leaf-1", gpus=0), 0.0)
    put(world.inventory, *mig_slices("node-1", 2))
    put(world.inventory, claim("m", "node-1", "gpu-0-mig-1g-10gb-6", pods=["notebook-0"], namespace="research"))
    root = views.tree(world, [])
    assert root is not None
    console = VisibleConsole(width=80)
    with console.capture() as capture:
        console.print(render.fabric(root, wide=True, tenants=True, devices=True))
    lines = [line.rstrip() for line in capture.get().splitlines()]
    assert max(map(len, lines)) <= 80
    begin = next(number for number, line in enumerate(lines) if "gpu-0 " in line)
    assert [line.lstrip("├└│─ ") for line in lines[begin:]] == [
        "gpu-0  1g.10gb research/notebook-0  NVIDIA H100 80GB HBM3, NUMA",
        "0, pci0000:00",
        "room for 1g.10gb x6 or 2g.20gb x3 or 3g.40gb x1",
    ]


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["gpu-0", "gpu-1"], "gpu-0, gpu-1"),
        (["gpu-2", "gpu-10", "gpu-0", "gpu-1"], "gpu-[0-2], gpu-10"),
        (["a", "b-1"], "a, b-1"),
        (["gpu-01", "gpu-02", "gpu-03"], "gpu-0[1-3]"),
        ([], ""),
    ],
)
def test_names_with_consecutive_numbers_are_ranges(names: list[str], text: str) -> None:
    assert ranges(names) == text


def gpus_by_extended_resources(served: Served) -> None:
    """Have a node whose four GPUs back ``nvidia.com/gpu``; a pod that runs there has two of them."""
    store = served.server.store

    def write() -> None:
        spec = {
            "selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}],
            "extendedResourceName": "nvidia.com/gpu",
        }
        store.create("deviceclasses.resource.k8s.io", {"metadata": {"name": "gpu"}, "spec": spec})
        amounts = {"cpu": "64", "memory": "256Gi", "pods": "110"}
        status = {"allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
        labels = {"topology.scheduler/spine": "spine-1", "topology.scheduler/leaf": "leaf-1"}
        store.create("nodes", {"metadata": {"name": "dra-1", "labels": labels}, "status": status})

    served.call(write)
    publish(served, slice_of("dra-1", map(gpu, range(4))))
    served.create_pod("worker", gpus=2)
    mapping = {"containerName": "main", "resourceName": "nvidia.com/gpu", "requestName": "container-0-request-0"}
    made = {"extendedResourceClaimStatus": {"resourceClaimName": "worker-gpus", "requestMappings": [mapping]}}
    served.call(
        lambda: store.modify("pods", "worker", "default", lambda item: with_status(item, made), subresource="status")
    )
    served.bind("worker", "dra-1")


def test_devices_of_extended_resources_count_as_gpus(served: Served) -> None:
    before = shown(served).splitlines()[0]
    gpus_by_extended_resources(served)
    after = shown(served).splitlines()
    free, capacity = (int(number) for number in before.split()[1:4:2])
    assert f"{free + 2} of {capacity + 4} GPUs free" in after[0]
    (line,) = [line for line in after if "dra-1 " in line]
    assert "4 devices free" in line, "the row shows the devices themselves"


def test_a_watched_cluster_counts_devices_of_extended_resources_too(served: Served) -> None:
    gpus_by_extended_resources(served)
    process = start("topology", "--watch", "-o", "json", "--kubeconfig", served.kubeconfig)
    try:
        assert process.stdout is not None
        watched = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGINT)
    finally:
        process.communicate(timeout=30)
    assert watched["gpus"] == json.loads(shown(served, "-o", "json"))["gpus"]


def test_without_the_right_to_list_classes_a_warning_says_what_is_not_counted(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus_by_extended_resources(served)
    refuse(served, monkeypatch, "deviceclasses", "403")
    assert "deviceclasses.resource.k8s.io may not be listed, so devices that pods get by extended" in shown(served)
