"""The control plane of the end-to-end tests: it starts, works like a cluster, leaves nothing, says what it lacks."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest

from . import ApiError, ControlPlane, ControlPlaneUnavailable, binaries, build, client
from .binaries import HERE, PROGRAMS, kubernetes_version
from .process import Process, wait_until

Json = dict[str, Any]
T = TypeVar("T")

PODS = "/api/v1/namespaces/default/pods"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
RBAC = "/apis/rbac.authorization.k8s.io/v1"


def real(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that needs the real thing, which may have to be built first."""
    marked: Callable[..., None] = pytest.mark.real(pytest.mark.timeout(3600)(test))
    return marked


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with ControlPlane(with_kwok=True) as running:
        yield running


def eventually(what: str, look: Callable[[], T | None], seconds: float = 20) -> T:
    """Look again and again until there is something to see."""
    deadline = time.monotonic() + seconds
    while (seen := look()) is None:
        if time.monotonic() > deadline:
            pytest.fail(f"not within {seconds} s: {what}")
        time.sleep(0.05)
    return seen


@pytest.fixture
def modules_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The Go modules in a folder of their own, which names builds in place of the real one."""
    for module in PROGRAMS:
        shutil.copytree(HERE / module, tmp_path / module)
    monkeypatch.setattr(binaries, "HERE", tmp_path)
    return tmp_path


@pytest.mark.parametrize("file", ["go/go.sum", "go/go.mod", "go-kwok/go.sum", "go/cmd/new.go"])
def test_a_build_is_kept_until_a_version_or_a_source_changes(modules_copied: Path, file: str) -> None:
    go = modules_copied / "fake-go"
    go.write_text("#!/bin/sh\necho go1.26 linux amd64\n", encoding="utf-8")
    go.chmod(0o755)
    before = binaries._cache_directory(str(go), ("go", "go-kwok"))
    assert binaries._cache_directory(str(go), ("go", "go-kwok")) == before
    changed = modules_copied / file
    changed.parent.mkdir(parents=True, exist_ok=True)
    changed.write_text((changed.read_text(encoding="utf-8") if changed.exists() else "") + "\n", encoding="utf-8")
    assert binaries._cache_directory(str(go), ("go", "go-kwok")) != before


def node(name: str) -> Json:
    resources = {"cpu": "96", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": "8"}
    labels = {"kubernetes.io/hostname": name}  # as kubelets do; of a node without any label this KWOK takes no notice
    return {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": resources, "capacity": resources}}


def pod_spec(gpus: int) -> Json:
    limits = {"limits": {"nvidia.com/gpu": str(gpus)}}
    return {
        "schedulerName": "topology-aware-scheduler",
        "restartPolicy": "Never",
        "containers": [{"name": "worker", "image": "example.test/worker", "resources": limits}],
    }


def bind(plane: ControlPlane, pod: str, to: str) -> None:
    target = {"apiVersion": "v1", "kind": "Node", "name": to}
    plane.request("POST", f"{PODS}/{pod}/binding", {"metadata": {"name": pod}, "target": target})


@real
def test_a_job_is_made_into_a_pod_bound_and_run_to_completion(plane: ControlPlane) -> None:
    plane.request("POST", "/api/v1/nodes", node("gpu-1"))

    def usable() -> Json | None:
        seen = plane.request("GET", "/api/v1/nodes/gpu-1")
        ready = any(c["type"] == "Ready" and c["status"] == "True" for c in seen["status"].get("conditions", []))
        return seen if ready and not seen["spec"].get("taints") else None

    assert eventually("node ready, taint gone", usable)["status"]["allocatable"]["nvidia.com/gpu"] == "8"
    quick = {"pod-complete.stage.kwok.x-k8s.io/delay": "200ms"}
    template = {"metadata": {"annotations": quick}, "spec": pod_spec(gpus=8)}
    plane.request("POST", JOBS, {"metadata": {"name": "train"}, "spec": {"template": template}})

    def made() -> Json | None:
        pods: list[Json] = plane.request("GET", f"{PODS}?labelSelector=job-name%3Dtrain")["items"]
        return pods[0] if pods else None

    pod = eventually("the Job controller made the pod", made)
    assert pod["spec"]["schedulerName"] == "topology-aware-scheduler"
    assert "nodeName" not in pod["spec"]
    bind(plane, pod["metadata"]["name"], to="gpu-1")
    status = eventually(
        "Job succeeded",
        lambda: s if (s := plane.request("GET", f"{JOBS}/train")["status"]).get("succeeded") else None,
    )
    assert status["succeeded"] == 1


@real
def test_a_service_account_may_do_what_rbac_grants_it(plane: ControlPlane) -> None:
    plane.request("POST", "/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "reader"}})
    kubeconfig = json.loads(plane.kubeconfig_for_service_account("default", "reader").read_text())

    def nodes() -> Json | None:
        """List them as that ServiceAccount."""
        token = kubeconfig["users"][0]["user"]["token"]
        with suppress(ApiError):
            return client.request("GET", f"{plane.url}/api/v1/nodes", token=token, ca_file=plane.ca_file)
        return None

    assert nodes() is None
    rules = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}]
    plane.request("POST", f"{RBAC}/clusterroles", {"metadata": {"name": "reader"}, "rules": rules})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "reader"}
    subjects = [{"kind": "ServiceAccount", "namespace": "default", "name": "reader"}]
    binding = {"metadata": {"name": "reader"}, "roleRef": role, "subjects": subjects}
    plane.request("POST", f"{RBAC}/clusterrolebindings", binding)
    assert eventually("the binding counts", nodes)["kind"] == "NodeList"


@real
def test_there_is_no_token_for_an_account_that_does_not_exist(plane: ControlPlane) -> None:
    with pytest.raises(ApiError) as refused:
        plane.kubeconfig_for_service_account("default", "nobody")
    assert refused.value.status == 404


@real
def test_a_restarted_api_server_still_knows_what_it_knew(plane: ControlPlane) -> None:
    plane.request("POST", "/api/v1/namespaces/default/configmaps", {"metadata": {"name": "kept"}})
    plane.restart("kube-apiserver", grace=0)
    assert plane.request("GET", "/api/v1/namespaces/default/configmaps/kept")["metadata"]["name"] == "kept"
    assert plane.usage()["kube-apiserver"].rss_mib > 50


@real
def test_the_current_version_is_the_one_asked_for(plane: ControlPlane) -> None:
    assert plane.request("GET", "/version")["gitVersion"] == kubernetes_version("go")


@real
def test_the_oldest_api_server_serves_and_binds() -> None:
    with ControlPlane(version="oldest") as plane:
        assert plane.request("GET", "/version")["gitVersion"] == kubernetes_version("go-oldest")
        assert "taints" not in plane.request("POST", "/api/v1/nodes", node("gpu-1"))["spec"]
        plane.request("POST", PODS, {"metadata": {"name": "worker"}, "spec": pod_spec(gpus=1)})
        bind(plane, "worker", to="gpu-1")
        assert plane.request("GET", f"{PODS}/worker")["spec"]["nodeName"] == "gpu-1"


@real
def test_nothing_outlives_a_killed_test_run() -> None:
    program = (
        "import signal\n"
        f"from {__package__} import ControlPlane\n"
        "plane = ControlPlane(with_controller_manager=False)\n"
        "plane.start()\n"
        "print(*(p.pid for p in plane._processes.values()), plane.directory, flush=True)\n"
        "signal.pause()\n"
    )
    root = HERE.parents[len(str(__package__).split(".")) - 1]
    with subprocess.Popen([sys.executable, "-c", program], cwd=root, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        *pids, directory = run.stdout.readline().split()
        run.send_signal(signal.SIGKILL)
    assert len(pids) == 2
    eventually("all gone", lambda: None if any(Path(f"/proc/{pid}").exists() for pid in pids) else True)
    subprocess.run(["rm", "-r", directory], check=True)


def test_without_binaries_and_without_go_the_error_says_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOPO_CONTROLPLANE_BIN", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ControlPlaneUnavailable, match=r"no `go` command on PATH.*Install Go.*TOPO_CONTROLPLANE_BIN"):
        ControlPlane().start()


def test_a_named_directory_that_lacks_a_program_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for program in PROGRAMS["go"]:
        (tmp_path / program).touch(mode=0o755)
    monkeypatch.setenv("TOPO_CONTROLPLANE_BIN", str(tmp_path))
    with pytest.raises(ControlPlaneUnavailable, match=r"no executable kwok\."):
        build()
    assert build(modules=["go"]) == tmp_path


def test_a_failing_build_shows_what_go_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    go = tmp_path / "go"
    go.write_text("#!/bin/sh\necho no route to the proxy; exit 1\n")
    go.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path) + os.pathsep + os.environ["PATH"])
    with pytest.raises(ControlPlaneUnavailable, match=r"no route to the proxy"):
        build(tmp_path / "bin")


def test_a_program_that_dies_shows_the_end_of_its_log(tmp_path: Path) -> None:
    process = Process("etcd", ["/bin/sh", "-c", "echo the disk is full; exit 3"], tmp_path / "etcd.log")
    process.start()
    with pytest.raises(ControlPlaneUnavailable, match=r"(?s)etcd ended with code 3.*the disk is full"):
        wait_until(lambda: False, process, time.monotonic() + 10)
    process.stop()
