"""The demo from one end to the other, and the cluster it serves."""

import fcntl
import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import suppress
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from rich.console import Console

from tests.cli.conftest import ROOT, run, start
from tests.helpers import make_pod
from topo_scheduler.cli.report import ABOUT_SCORES, Group, table

if TYPE_CHECKING:
    from topo_scheduler.scheduling.world import World


@pytest.fixture(scope="module")
def demo() -> Iterator[str]:
    """A demo that is kept up; the path of its kubeconfig."""
    process = start("demo", "--serve")
    try:
        assert process.stdout is not None
        seen = []
        for line in process.stdout:
            seen.append(line)
            if "Ctrl-C ends it" in line:
                break
        match = re.search(r"--kubeconfig (\S+) get pods", "".join(seen))
        assert match, "".join(seen) + (process.stderr.read() if process.stderr and process.poll() is not None else "")
        yield match[1]
        assert process.poll() is None, "it ended by itself"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        assert (process.returncode, err) == (0, "")
        assert not Path(match[1]).exists(), "the kubeconfig is left behind"
    finally:
        process.kill()
        process.communicate()


def pods_by_leaf(kubeconfig: str) -> dict[str, dict[str, list[str]]]:
    """Pods by leaf and node."""
    root = json.loads(run("topology", "--kubeconfig", kubeconfig, "-o", "json").output)
    return {
        leaf["path"]: {node["name"]: [pod["name"] for pod in node["pods"]] for node in leaf["nodes"]}
        for spine in root["domains"]
        for leaf in spine["domains"]
    }


def leaves_of(kubeconfig: str, prefix: str) -> list[str]:
    """The leaf of each pod of a workload."""
    return [
        leaf
        for leaf, nodes in pods_by_leaf(kubeconfig).items()
        for pods in nodes.values()
        for pod in pods
        if pod.startswith(prefix)
    ]


def test_it_shows_the_placement_and_ends() -> None:
    started = time.monotonic()
    process = start("demo")
    out, err = process.communicate(timeout=90)
    assert (process.returncode, err) == (0, ""), out + err
    assert time.monotonic() - started < 60
    for part in ("cluster  84 of 144 GPUs free", "├── spine-1", "└── spine-2", "│   ├── leaf-1", "not ready"):
        assert part in out
    assert re.search(r"node-\d+ +■{8}  0 of 8 free  eight-gpus-\w+ x8", out)
    for workload in ("Deployment inference   3/3", "Gang bare-gang         2/2", "Job training           4/4"):
        assert workload in out
    for workload in ("Job claimed-gpus       2/2", "Job mig-instances      3/3"):
        assert workload in out
    assert "gpu-0, gpu-1  claimed-gpus-0-" in out and "1g.10gb mig-instances-" in out
    assert out.count("Successfully assigned default/") >= 9
    assert "Every pod of every workload has a node." in out


def test_kernels_that_are_not_compiled_yet_are_interpreted_and_decide_the_same(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "topo_scheduler", "demo"]
    shown = {}
    for folder in (tmp_path, None):
        environment = os.environ | {"COLUMNS": "200"} | ({"TOPO_SCHEDULER_CACHE_DIR": str(folder)} if folder else {})
        done = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", timeout=90, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        # The last part of a pod's name is made up by the API server.
        shown[folder] = re.sub(r"-[a-z0-9]{5}(?= |,|$)", "-*", done.stdout, flags=re.MULTILINE)
    assert "kernels were interpreted" in " ".join(shown[tmp_path].split())
    assert not [path for path in tmp_path.rglob("*") if path.is_file()], "it compiled something"
    tree, _, _ = shown[tmp_path].partition("\n\n")
    assert tree.startswith("cluster") and tree == shown[None].partition("\n\n")[0]


def test_every_example_is_placed_as_it_wishes(demo: str) -> None:
    assert len(set(leaves_of(demo, "training-"))) == 1 and len(leaves_of(demo, "training-")) == 4
    assert leaves_of(demo, "eight-gpus") == ["spine-1/leaf-1"]
    assert len(set(leaves_of(demo, "bare-gang-"))) == 1 and len(leaves_of(demo, "bare-gang-")) == 2
    assert len(set(leaves_of(demo, "inference-"))) == 3, "replicas apart from each other"
    assert len(leaves_of(demo, "single-gpu")) == 1
    bandwidth = {"spine-2/leaf-5"}
    assert not bandwidth & set(leaves_of(demo, "training-")), "only nodes with 200Gb will do"


def test_claims_get_devices_below_one_pcie_root_and_instances_go_to_one_gpu(demo: str) -> None:
    root = json.loads(run("topology", "--kubeconfig", demo, "-o", "json").output)
    split, whole = root["domains"][1]["domains"][3]["nodes"]
    roots: dict[str, set[str]] = {}
    for device in whole["devices"]:
        roots.setdefault(device["claims"][0]["name"], set()).add(device["pcieRoot"])
    assert [len(pcie_roots) for pcie_roots in roots.values()] == [1, 1]
    assert [device["state"] for device in split["devices"]] == ["blocked", "free", *3 * ["allocated"]]
    assert {device["board"] for device in split["devices"][2:]} == {"gpu-0-counter-set"}
    (pod,) = {pod for device in split["devices"][2:3] for pod in device["claims"][0]["pods"]}
    assert "of driver gpu.nvidia.com (request instance of claim" in run("explain", pod, "--kubeconfig", demo).output


def test_explain_on_it(demo: str) -> None:
    answer = json.loads(run("explain", "bare-gang-0", "--kubeconfig", demo, "-o", "json").output)
    assert answer["state"] == "bound" and answer["boundByThisScheduler"] and answer["rank"] == 0
    assert answer["gang"]["id"] == "default/bare-gang" and len(answer["gang"]["members"]) == 2
    assert [event["reason"] for event in answer["events"]] == ["Scheduled"]
    assert "Events:\n  Normal   Scheduled            Successfully assigned default/bare-gang-0" in (
        run("explain", "bare-gang-0", "--kubeconfig", demo).output
    )


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl here")
def test_kubectl_on_it(demo: str) -> None:
    def kubectl(*arguments: str) -> str:
        command = ["kubectl", "--kubeconfig", demo, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout

    listed: dict[str, Any] = json.loads(kubectl("get", "pods", "-o", "json"))
    assert len(listed["items"]) == 18
    assert all(pod["spec"]["nodeName"] for pod in listed["items"])
    assert len(kubectl("get", "pods", "-o", "wide", "--no-headers").splitlines()) == 18
    assert "Successfully assigned default/bare-gang-0" in kubectl("describe", "pod", "bare-gang-0")


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl here")
def test_the_page_on_volumes_can_be_tried_on_it(demo: str, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "volumes.md").read_text(encoding="utf-8")
    objects, storage_class = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    command = re.search(r"`kubectl (delete [^`]+)`", page)
    assert command is not None
    manifest = tmp_path / "objects.yaml"
    manifest.write_text(f"{storage_class}---\n{objects}")
    for arguments in (command[1].split(), ["apply", "-f", str(manifest)]):
        subprocess.run(["kubectl", "--kubeconfig", demo, *arguments], check=True, timeout=30, capture_output=True)
    deadline = time.monotonic() + 30
    while len(leaves_of(demo, "finetune-")) < 4 and time.monotonic() < deadline:
        time.sleep(0.2)
    assert leaves_of(demo, "finetune-") == ["spine-1/leaf-2"] * 4


def test_a_port_in_use(demo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topo_scheduler.observability.logs.configure", lambda *_: None)
    server = json.loads(Path(demo).read_text())["clusters"][0]["cluster"]["server"]
    port = server.rpartition(":")[2]
    answer = run("demo", "--port", port)
    assert answer.exit_code == 1 and f"port {port} is in use" in answer.output


def test_what_is_not_bound_in_time_ends_it_with_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topo_scheduler.observability.logs.configure", lambda *_: None)
    monkeypatch.setattr("topo_scheduler.cli.demo.BIND_SECONDS", 0.0)
    answer = run("demo")
    assert answer.exit_code == 1, answer.output
    # whose pod it is: the first one may be bound by the first look
    assert re.search(r"^Error: \d\d-\S+\.yaml: [1-9]\d* of its pods are not bound within 0 s: .", answer.output, re.M)


def test_in_a_narrow_terminal_each_score_stays_beside_its_leaf() -> None:
    pods = [make_pod(name) for name in ("web-1", "web-2")]
    for number, pod in enumerate(pods, 1):
        pod.spec.node_name = f"node-{number}"
        pod.metadata.annotations["topology.scheduler/score"] = f"0.{number}00"
    leaves = {"node-1": ("spine-1", "leaf-1"), "node-2": ("spine-1", "leaf-2")}
    world = cast("World", SimpleNamespace(leaf_of=leaves.get))
    console = Console(width=32, file=StringIO(), record=True)
    console.print(table([Group("Deployment", "web", pods)], world))
    lines = [line.split() for line in console.export_text().splitlines()]
    starts = [line for line in lines if any(word.startswith("spine-1") for word in line)]
    assert [line[-1] for line in starts] == ["0.100", "0.200"]


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_at_80_columns_no_line_of_the_demo_is_cut_or_longer(encoding: str) -> None:
    """The table of workloads stays a table; their reasons are wrapped beside their names."""
    pid, terminal = pty.fork()
    if pid == 0:
        environment = {**os.environ, "PYTHONIOENCODING": encoding}
        os.execvpe(sys.executable, [sys.executable, "-m", "topo_scheduler", "demo"], environment)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
    shown = b""
    with suppress(OSError):  # the other end was closed
        while part := os.read(terminal, 65_536):
            shown += part
    _, code = os.waitpid(pid, 0)
    assert code == 0
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode(encoding)).splitlines()
    assert max(map(len, lines)) <= 80
    assert not any("\\u" in line for line in lines), "a character that the encoding lacks is shown as its code"
    (head,) = [line for line in lines if line.startswith("WORKLOAD") and "SCORE" in line]
    assert head.split() == ["WORKLOAD", "PODS", "LEAVES", "SCORE"]
    assert any(re.match(r"Job training +4/4 +spine-1/leaf-1 +0\.\d+$", line.rstrip()) for line in lines)
    assert ABOUT_SCORES in lines and len(ABOUT_SCORES) <= 80
    assert "Every pod of every workload has a node." in lines
