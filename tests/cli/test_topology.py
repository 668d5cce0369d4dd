"""``topology`` on a cluster without a scheduler."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

import pytest

from tests.cli.conftest import ROOT, Served, run, start
from topo_scheduler.cli import accelerators, gangs
from topo_scheduler.cli.render import VisibleConsole
from topo_scheduler.scheduling.surveying.fragmentation import Fragmentation, LargestGang
from topo_scheduler.scheduling.surveying.survey import SurveyedDomain


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


def test_gpus_that_a_node_does_not_offer_any_more_are_shown_separately_from_those_in_use(served: Served) -> None:
    served.create_pod("worker", gpus=3)
    served.bind("worker", "node-1")

    def fewer(node: dict[str, Any]) -> dict[str, Any]:
        amounts = {**node["status"]["allocatable"], "nvidia.com/gpu": "1"}
        return {**node, "status": {**node["status"], "allocatable": amounts}}

    served.call(lambda: served.server.store.modify("nodes", "node-1", "", fewer, subresource="status"))
    lines = run("topology", "--kubeconfig", served.kubeconfig).output.splitlines()
    assert any("node-1 " in line and "0 of 1 free  pods hold 2 GPUs that it does not offer" in line for line in lines)
    assert lines[0].startswith("cluster  32 of 57 GPUs free, 2% used")


def test_wide_output_names_the_pods_of_each_node(served: Served) -> None:
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
    assert ", uplink of unknown capacity, none of it reserved" in next(line for line in wide if "spine-1 " in line)
    output = run(*options, "-o", "json").output
    root = json.loads(output[output.index("{") :])
    spine = root["domains"][0]
    assert spine["uplink"] == {"capacityMbit": None, "reservedMbit": 0}
    assert spine["domains"][0]["uplink"] == {"capacityMbit": 800_000, "reservedMbit": 50_000}
    assert spine["domains"][0]["nodes"][0]["reservedBandwidthMbit"] == 50_000
    assert "uplink" not in root


def test_labels_of_gpus_that_can_not_be_read_are_named(served: Served, tmp_path: Path) -> None:
    wrong = {"neuronetes.io/gpu-topology": "nvlnk"}
    store = served.server.store
    served.call(lambda: store.modify("nodes", "node-1", "", lambda node: labelled(node, wrong)))
    empty = "apiVersion: topology.scheduler/v1alpha1\nkind: TopologySchedulerConfig\n"
    (tmp_path / "config.yaml").write_text(empty)
    topology = run("topology", "--kubeconfig", served.kubeconfig)
    check = run("check-config", "--live", "--kubeconfig", served.kubeconfig, str(tmp_path / "config.yaml"))
    for answer in (topology, check):
        assert (
            "warning: node node-1: label neuronetes.io/gpu-topology: 'nvlnk' is not one of nvswitch," in answer.output
        )


def test_shares_of_a_gpu_are_drawn_and_named(served: Served, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "apiVersion: topology.scheduler/v1alpha1\nkind: TopologySchedulerConfig\n"
        'spec: {gpusByAnnotation: {namespaces: ["*"]}}\n'
    )
    store = served.server.store
    shares = {"topology.scheduler/gpu-sharing": "true"}
    served.call(lambda: store.modify("nodes", "node-1", "", lambda node: labelled(node, shares)))
    for name in ("a", "b"):
        served.create_pod(name, gpus=0, annotations={"topology.scheduler/gpu-fraction": "0.25"})
        served.bind(name, "node-1", charged_gpu_fraction="0.25", gpu_index="0")
    options = ("topology", "--kubeconfig", served.kubeconfig, "--config", str(config))
    wide = run(*options, "-o", "wide").output
    line = next(line for line in wide.splitlines() if "node-1 " in line)
    assert line.count("■") == 1 and line.count("□") == 7 and "7 of 8 free" in line
    assert line.endswith("a x0.25, b x0.25")
    answer = run(*options, "-o", "json").output
    pods = json.loads(answer)["domains"][0]["domains"][0]["nodes"][0]["pods"]
    assert [(pod["gpus"], pod["gpuFraction"], pod["gpuIndexes"]) for pod in pods] == [(0, 0.25, [0])] * 2


def test_nodes_without_labels_are_noted(served: Served) -> None:
    served.call(lambda: served.server.store.create("nodes", {"metadata": {"name": "stray"}}))
    answer = run("topology", "--kubeconfig", served.kubeconfig)
    assert "1 of 9 nodes have no labels that give their position in the fabric (stray)" in answer.output
    assert "unlabelled" in answer.output


def labelled(node: dict[str, Any], more: dict[str, str]) -> dict[str, Any]:
    meta = node["metadata"]
    return {**node, "metadata": {**meta, "labels": {**meta.get("labels", {}), **more}}}


def test_accelerator_domains_and_units_of_rails(served: Served) -> None:
    def label() -> None:
        for number in range(1, 5):
            labels = {"nvidia.com/gpu.clique": f"uuid.{number % 2}"}
            if number > 2:
                labels |= {f"topology.scheduler/leaf-rail-{rail}": f"su-{rail}" for rail in range(4)}
            served.server.store.modify("nodes", f"node-{number}", "", partial(labelled, more=labels))

    served.call(label)
    answer = run("topology", "--kubeconfig", served.kubeconfig)
    assert "su-[0-3] (leaf) unit on 4 rails" in answer.output
    lines = answer.output.splitlines()
    start = lines.index(next(line for line in lines if line.strip() == "Accelerator domains"))
    first = lines[start + 2].split()
    assert first[:2] == ["uuid.0", "accelerator-domain"]
    assert any(line.startswith("accelerator-domain") for line in lines[start + 4 :]), "the largest gang by level"
    topology = json.loads(run("topology", "--kubeconfig", served.kubeconfig, "-o", "json").output)
    assert [domain["path"] for domain in topology["accelerators"]] == ["uuid.0", "uuid.1"]
    assert topology["accelerators"][0]["nodes"] == ["node-2", "node-4"]
    assert topology["accelerators"][0]["leaves"] == ["spine-1/leaf-1", "spine-1/su-[0-3]"]


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
    assert answer.output.startswith("Error: the API server http://127.0.0.1:") and served.server.url in answer.output


def test_a_context_that_is_not_there(served: Served) -> None:
    answer = run("topology", "--kubeconfig", served.kubeconfig, "--context", "none")
    assert answer.exit_code == 2 and "none" in answer.output


# ---------------------------------------------------------------- the largest gang, once and as it changes


def test_the_largest_gang_that_fits_by_level_and_model(served: Served) -> None:
    served.create_pod("worker", gpus=3)
    served.bind("worker", "node-1")
    answer = run("topology", "--kubeconfig", served.kubeconfig)
    lines = [" ".join(line.split()) for line in answer.output.splitlines()]
    at = lines.index("Largest gang that fits now")
    assert lines[at + 1 : at + 3] == ["NVIDIA-A100-SXM4-80GB", "level of whole nodes in of typical members in"]
    assert lines[at + 3] == "cluster 4 x node = 32 GPUs cluster 9 x 3 = 27 GPUs cluster"
    # Four nodes that a gang of whole nodes has wholly; of the other one 2 of 5 are left over.
    assert lines[at + 6] == "Stranded: 2 of 37 NVIDIA-A100-SXM4-80GB"
    topology = json.loads(run("topology", "--kubeconfig", served.kubeconfig, "-o", "json").output)
    assert topology["strandedGpus"] == [{"gpuModel": "NVIDIA-A100-SXM4-80GB", "free": 37, "stranded": 2}]
    leaf = next(gang for gang in topology["largestGangs"] if gang["level"] == "leaf")
    assert leaf["typicalMembers"]["gpusEach"] == 3
    assert set(leaf["wholeNodes"]) == {"nodes", "gpus", "domain"}


def test_tables_lose_nothing_in_80_columns() -> None:
    where = ("fabric-with-a-long-name", "spine-12", "leaf-1234")
    rows = [
        LargestGang(level, model, 1_000, 8_000, where[:depth], 8, 1_000, 8_000, where[:depth])
        for model in ("NVIDIA-H100-80GB-HBM3-SXM5", "NVIDIA-A100-SXM4-80GB")
        for depth, level in enumerate(("cluster", "fabric", "spine", "leaf"))
    ]
    unit = SurveyedDomain("nvlink-domain", where, 72, 0, 72, 72, ("node-1",) * 18, ())
    screen = VisibleConsole(width=80)
    with screen.capture() as captured:
        screen.print(gangs.largest_gangs(Fragmentation(tuple(rows), {}, {})))
        screen.print(accelerators.table([(unit, ["/".join(where)] * 4)]))
    text = captured.get()
    assert "…" not in text and max(map(len, text.splitlines())) <= 80
    assert text.count("1000 x node = 8000 GPUs") == len(rows) and "NVIDIA-H100-80GB-HBM3-SXM5" in text


def _pictures(stream: IO[str]) -> Iterator[dict[str, object]]:
    for line in stream:
        yield json.loads(line)


def test_watch_follows_the_cluster_one_line_a_picture(served: Served) -> None:
    arguments = ("topology", "--kubeconfig", served.kubeconfig, "--watch", "--interval", "0.2", "-o", "json")
    watching = start(*arguments)
    try:
        assert watching.stdout is not None
        pictures = _pictures(watching.stdout)
        first = next(pictures)
        assert first["gpus"] == {"capacity": 64, "used": 0, "free": 40, "onEmptyNodes": 40}
        served.create_pod("worker", gpus=3)
        served.bind("worker", "node-1")
        changed = next(picture for picture in pictures if picture["gpus"] != first["gpus"])
        assert changed["gpus"] == {"capacity": 64, "used": 3, "free": 37, "onEmptyNodes": 32}
        assert changed["strandedGpus"] != first["strandedGpus"]
        watching.send_signal(signal.SIGINT)
        watching.communicate(timeout=40)  # reads on, so that the process does not block on a full pipe
        assert watching.returncode == 0
    finally:
        watching.kill()
        watching.communicate()


def test_watch_prints_one_picture_after_the_other_where_there_is_no_terminal(served: Served) -> None:
    watching = start("topology", "--kubeconfig", served.kubeconfig, "--watch", "--interval", "0.2")
    try:
        assert watching.stdout is not None
        count = 0
        for line in watching.stdout:
            count += line.startswith("Largest gang that fits now")
            if count == 2:
                break
        assert count == 2
    finally:
        watching.kill()
        watching.communicate()


def test_watch_on_a_terminal_keeps_its_place(served: Served) -> None:
    main, other = pty.openpty()
    command = [sys.executable, "-m", "topo_scheduler.cli", "topology", "--kubeconfig", served.kubeconfig]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    watching = subprocess.Popen(
        [*command, "--watch", "--interval", "0.2"],
        stdin=other,
        stdout=other,
        stderr=other,
        cwd=ROOT,
        env=environment,
    )
    os.close(other)
    seen = b""
    until = time.monotonic() + 30
    try:
        while seen.count(b"Largest gang that fits now") < 2 and time.monotonic() < until:
            seen += os.read(main, 65536)
        assert seen.startswith(b"\x1b[?1049h"), "the alternate screen"
        assert b"\x1b[H" in seen, "from the top again"
    finally:
        watching.kill()
        watching.wait()
        os.close(main)


def test_watch_of_a_server_that_is_away(served: Served) -> None:
    served.wait(served.server.go_away)
    answer = run("topology", "--kubeconfig", served.kubeconfig, "--watch")
    assert answer.exit_code == 1
    assert answer.output.startswith("Error: the API server http://127.0.0.1:")


def test_the_largest_gangs_are_readable_in_eighty_columns(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    narrow = run("topology", "--kubeconfig", served.kubeconfig).output
    table = narrow[narrow.index("Largest gang that fits now") :]
    assert "…" not in table
    for word in ("cluster", "spine", "leaf"):
        assert word in table
