"""``topology`` on a cluster nobody schedules."""

import json
from pathlib import Path

from tests.cli.conftest import Served, run


def test_the_tree(served: Served) -> None:
    served.create_pod("worker", gpus=3)
    served.bind("worker", "node-1")
    answer = run("topology", "--kubeconfig", served.kubeconfig)
    assert answer.exit_code == 0, answer.output
    lines = answer.output.splitlines()
    assert lines[0].startswith("cluster  37 of 64 GPUs free, 5% used, fragmentation 0.14"), lines[0]
    assert "8 nodes, 3 not available" in lines[0]
    assert [line[4:11] for line in lines if "─ spine-" in line] == ["spine-1", "spine-2"]
    assert any("node-1 " in line and "■■■□□□□□" in line and "5 of 8 free" in line for line in lines)
    assert any("node-2 " in line and "not ready" in line for line in lines)
    assert "worker" not in answer.output


def test_wide_tells_who_sits_where(served: Served) -> None:
    served.create_pod("worker", gpus=3)
    served.bind("worker", "node-1")
    answer = run("topology", "--kubeconfig", served.kubeconfig, "-o", "wide")
    line = next(line for line in answer.output.splitlines() if "node-1 " in line)
    assert "NVIDIA-A100-SXM4-80GB  200Gb  1 pod  worker x3" in line


def test_json(served: Served) -> None:
    served.create_pod("worker", gpus=3)
    served.bind("worker", "node-1")
    answer = run("topology", "--kubeconfig", served.kubeconfig, "-o", "json")
    root = json.loads(answer.output)
    assert root["gpus"] == {"capacity": 64, "used": 3, "free": 37, "onEmptyNodes": 32}
    leaf = root["domains"][0]["domains"][0]
    assert (leaf["path"], leaf["type"], leaf["connected"]) == ("spine-1/leaf-1", "leaf", ["spine-1/leaf-2"])
    node = leaf["nodes"][0]
    assert (node["name"], node["gpuModel"], node["bandwidthMbit"]) == ("node-1", "NVIDIA-A100-SXM4-80GB", 200_000)
    assert node["pods"] == [
        {"namespace": "default", "name": "worker", "gpus": 3, "schedulerName": "topology-aware-scheduler"}
    ]


LINKS = """
apiVersion: topology.scheduler/v1alpha1
kind: TopologySchedulerConfig
spec: {links: [{level: leaf, capacity: 800Gb}, {level: rack, capacity: 1Gb}]}
"""


def test_links_and_what_is_reserved_of_them(served: Served, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(LINKS)
    for number, node in enumerate(("node-1", "node-5")):
        served.create_pod(f"g-{number}", gpus=1)
        served.bind(f"g-{number}", node, reserved_bandwidth="50000", gang_id="default/g")
    options = ("topology", "--kubeconfig", served.kubeconfig, "--config", str(config))
    answer = run(*options)
    assert answer.exit_code == 0, answer.output
    leaf = next(line for line in answer.output.splitlines() if "leaf-1 " in line)
    assert "50 of 800 Gbit/s of its uplink reserved" in leaf
    assert "no node has a label for a level called rack" in answer.output
    wide = run(*options, "-o", "wide").output.splitlines()
    assert "50Gb of it reserved" in next(line for line in wide if "node-1 " in line)
    assert "of an uplink of unknown capacity reserved" in next(line for line in wide if "spine-1 " in line)
    told = run(*options, "-o", "json").output
    root = json.loads(told[told.index("{") :])
    spine = root["domains"][0]
    assert spine["uplink"] == {"capacityMbit": None, "reservedMbit": 0}
    assert spine["domains"][0]["uplink"] == {"capacityMbit": 800_000, "reservedMbit": 50_000}
    assert spine["domains"][0]["nodes"][0]["reservedBandwidthMbit"] == 50_000
    assert "uplink" not in root


def test_nodes_without_labels_are_noted(served: Served) -> None:
    served.call(lambda: served.server.store.create("nodes", {"metadata": {"name": "stray"}}))
    answer = run("topology", "--kubeconfig", served.kubeconfig)
    assert "1 of 9 nodes do not tell their place in the fabric (stray)" in answer.output
    assert "unlabelled" in answer.output


def test_a_cluster_without_nodes(served: Served) -> None:
    def empty() -> None:
        for node in served.server.store.list("nodes"):
            served.server.store.delete("nodes", node.key.name, "")

    served.call(empty)
    answer = run("topology", "--kubeconfig", served.kubeconfig)
    assert (answer.exit_code, answer.output) == (1, "Error: the cluster has no nodes\n")


def test_a_server_that_is_away(served: Served) -> None:
    served.wait(served.server.go_away)
    answer = run("topology", "--kubeconfig", served.kubeconfig)
    assert answer.exit_code == 1
    assert answer.output.startswith("Error: GET /api/v1/") and served.server.url in answer.output


def test_a_context_that_is_not_there(served: Served) -> None:
    answer = run("topology", "--kubeconfig", served.kubeconfig, "--context", "none")
    assert answer.exit_code == 2 and "none" in answer.output
