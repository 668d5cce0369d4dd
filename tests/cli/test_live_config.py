"""Which configuration commands take: the one that the scheduler of the cluster runs with."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.conftest import Served, run
from topo_scheduler.cli.live_config import LISTED_DEPLOYMENTS
from topo_scheduler.simulation.apiserver.faults import Disconnect, Refuse
from topo_scheduler.simulation.demo import until

LEVELS = """
apiVersion: topology.scheduler/v1alpha1
kind: SchedulerConfig
schedulerName: {name}
topology:
  levels:
    - name: row
      labels: [topology.scheduler/spine]
    - name: leaf
      labels: [topology.scheduler/leaf]
"""


def _levels(served: Served, *arguments: str) -> tuple[list[str], str]:
    """Return the levels that `topology` shows, and what it warned of."""
    answer = run("topology", "-o", "json", *arguments, "--kubeconfig", served.kubeconfig)
    assert answer.exit_code == 0, answer.output
    return [gang["level"] for gang in json.loads(answer.stdout)["largestGangs"]], answer.stderr


def _deploy(
    served: Served, config_map: str, *args: str, name: str = "topology-scheduler", namespace: str = "kube-system"
) -> None:
    labels = {"app": "topology-scheduler"}
    container = {
        "name": "main",
        "image": "topo-scheduler",
        "args": ["run", "--config=/etc/scheduler", *args],
        "volumeMounts": [{"name": "config", "mountPath": "/etc/scheduler"}],
    }
    pod = {
        "containers": [container],
        "volumes": [{"name": "cache", "emptyDir": {}}, {"name": "config", "configMap": {"name": config_map}}],
    }
    body = {
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
    store = served.server.store
    if served.call(lambda: store.find("namespaces", namespace)) is None:
        served.call(lambda: store.create("namespaces", {"metadata": {"name": namespace}}))
    served.call(lambda: store.create("deployments.apps", body, namespace))


def _without_config_map(served: Served) -> None:
    """Install nothing in the namespace of the manifests."""
    served.call(lambda: served.server.store.delete("configmaps", "topology-scheduler-config", "kube-system"))


def test_the_config_map_of_the_manifests_is_read(served: Served) -> None:
    served.configure(LEVELS.format(name="topology-aware-scheduler"))
    assert "row" in _levels(served)[0]


def test_the_config_map_that_the_deployment_mounts_is_read_and_its_flags_hold(served: Served) -> None:
    _deploy(served, "config-7f9c", "--scheduler-name", "gpus")
    served.configure(LEVELS.format(name="other"), "config-7f9c")
    levels, warned = _levels(served)
    assert "row" in levels and not warned
    served.create_pod("waits", schedulerName="gpus", gpus=64)
    answer = run("explain", "waits", "--kubeconfig", served.kubeconfig)
    assert answer.exit_code == 0, answer.output


def test_one_of_several_schedulers_must_be_chosen(served: Served) -> None:
    _deploy(served, "one", name="first")
    _deploy(served, "two", name="second")
    answer = run("topology", "--kubeconfig", served.kubeconfig)
    assert answer.exit_code == 2
    assert "Deployment kube-system/second mounts kube-system/two" in answer.output and "--config-map" in answer.output
    served.configure(LEVELS.format(name="x"))
    assert "row" in _levels(served, "--config-map", "kube-system/topology-scheduler-config")[0]


def test_deployments_of_users_change_nothing_for_a_scheduler_in_the_namespace_of_the_manifests(served: Served) -> None:
    served.configure(LEVELS.format(name="gpus"))
    _deploy(served, "mine", namespace="tenant-a")
    served.configure("schedulername: no", "mine", "tenant-a")
    _deploy(served, "other", namespace="tenant-b")
    levels, warned = _levels(served)
    assert "row" in levels, "the ConfigMap of a Deployment with other labels"
    assert "warning: ConfigMap kube-system/topology-scheduler-config is read, not the configuration of" in warned
    assert "Deployment tenant-a/topology-scheduler, Deployment tenant-b/topology-scheduler" in warned
    _deploy(served, "config-7f9c")
    served.configure(LEVELS.format(name="gpus").replace("row", "aisle"), "config-7f9c")
    levels, warned = _levels(served)
    assert "aisle" in levels and not warned, "the ConfigMap that the Deployment mounts"
    lists = [entry for entry in served.server.requests if entry.resource == "deployments" and entry.verb == "list"]
    assert lists[-1].namespace == "kube-system", "other namespaces are not read"


def test_a_list_of_deployments_of_users_that_fails_changes_nothing(served: Served) -> None:
    served.configure(LEVELS.format(name="gpus"))
    served.server.faults.add(Disconnect(), verb="list", where=lambda info: info.path.endswith("v1/deployments"))
    assert "row" in _levels(served)[0]


def test_a_scheduler_in_another_namespace_is_found_and_named(served: Served) -> None:
    _without_config_map(served)
    _deploy(served, "config", namespace="gpu-system")
    served.configure(LEVELS.format(name="gpus"), "config", "gpu-system")
    levels, warned = _levels(served)
    assert "row" in levels
    assert "the configuration of Deployment gpu-system/topology-scheduler is read, in namespace gpu-system" in warned


def test_one_of_several_schedulers_in_other_namespaces_must_be_chosen(served: Served) -> None:
    """Users can label any number of Deployments, of which only the first are listed."""
    _without_config_map(served)
    for number in range(LISTED_DEPLOYMENTS):
        _deploy(served, "config", name=f"a{number}", namespace="a")
    served.configure(LEVELS.format(name="gpus"), "config", "a")
    answer = run("topology", "--kubeconfig", served.kubeconfig)
    assert answer.exit_code == 2 and "several schedulers run here: Deployment a/a0 mounts a/config" in answer.output
    assert "row" in _levels(served, "--config-map", "a/config")[0]


@pytest.mark.parametrize("command", [("topology",), ("explain", "absent"), ("drain", "node-7", "--dry-run")])
def test_defaults_that_are_assumed_are_reported(served: Served, command: tuple[str, ...]) -> None:
    served.server.faults.add(Refuse(403), verb="get", resource="configmaps")
    answer = run(*command, "--kubeconfig", served.kubeconfig)
    assert "warning: ConfigMap kube-system/topology-scheduler-config can't be read" in answer.stderr
    assert "defaults are assumed" in answer.stderr


def test_a_config_map_that_is_named_must_be_there_and_make_sense(served: Served) -> None:
    for named, code, message in (
        ("default/none", 1, "ConfigMap default/none can't be read"),
        ("none", 2, "write NAMESPACE/NAME"),
        ("kube-system/..", 2, "--config-map kube-system/..: '..' is not a name of the Kubernetes API"),
    ):
        answer = run("topology", "--config-map", named, "--kubeconfig", served.kubeconfig)
        assert answer.exit_code == code and message in answer.output
    served.configure("kind: Nonsense")
    answer = run("topology", "--kubeconfig", served.kubeconfig)
    assert answer.exit_code == 2
    assert "ConfigMap kube-system/topology-scheduler-config: config.yaml" in answer.output
    assert "a scheduler that runs keeps the configuration that it had" in answer.output
    both = run("topology", "--config", "x.yaml", "--config-map", "a/b", "--kubeconfig", served.kubeconfig)
    assert both.exit_code == 2 and "exclude each other" in both.output


def _in_namespace(served: Served, namespace: str, tmp_path: Path) -> str:
    """Return a kubeconfig whose context names a namespace."""
    config: dict[str, Any] = yaml.safe_load(Path(served.kubeconfig).read_text())
    for context in config["contexts"]:
        context["context"]["namespace"] = namespace
    path = tmp_path / "context"
    path.write_text(yaml.safe_dump(config))
    return str(path)


def _pod(served: Served, name: str, namespace: str, owner: tuple[str, str] | None = None, **labels: str) -> None:
    owners = []
    if owner is not None:
        kind, of = owner
        owners = [{"apiVersion": "apps/v1", "kind": kind, "name": of, "uid": f"uid-{of}", "controller": True}]
    body = {
        "metadata": {
            "name": name,
            "ownerReferences": owners,
            "labels": {key.replace("__", "/").replace("_", "-"): value for key, value in labels.items()},
        },
        "spec": {"schedulerName": "topology-aware-scheduler", "nodeName": "node-7", "containers": [{"name": "c"}]},
    }
    served.call(lambda: served.server.store.create("pods", body, namespace))


def test_names_are_looked_up_as_kubectl_does(served: Served, tmp_path: Path) -> None:
    for namespace in ("team-a", "team-b"):
        body = {"metadata": {"name": namespace}}
        served.call(lambda body=body: served.server.store.create("namespaces", body))  # type: ignore[misc]
    template = {
        "metadata": {"labels": {"app": "web"}},
        "spec": {"schedulerName": "topology-aware-scheduler", "containers": [{"name": "c", "image": "busybox"}]},
    }
    web = {"metadata": {"name": "web"}, "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": template}}
    served.call(lambda: served.server.store.create("deployments.apps", web, "team-a"))
    store = served.server.store
    assert served.wait(lambda: until(store, lambda: len(store.list("pods")) == 1, 10))
    _pod(served, "train-0", "team-a", ("Job", "train"), **{"jobset.sigs.k8s.io__jobset_name": "set"})
    _pod(served, "train-0", "team-b", ("Job", "train"))
    _pod(served, "web", "team-b")
    kubeconfig = _in_namespace(served, "team-a", tmp_path)

    def found(*arguments: str) -> str:
        answer = run("explain", *arguments, "-o", "yaml", "--kubeconfig", kubeconfig)
        if answer.exit_code:
            return str(answer.output)
        explanation = yaml.safe_load(answer.stdout)
        return f"{explanation['namespace']}/{explanation['pod']}"

    assert found("train-0") == "team-a/train-0"
    (replica,) = (pod.key.name for pod in store.list("pods") if pod.key.name.startswith("web-"))
    assert found("deploy/web") == found("deployment.apps/web") == found("web") == f"team-a/{replica}"
    assert found("job/train") == found("jobset/set") == found("pod/train-0") == "team-a/train-0"
    assert found("-n", "team-b", "job/train") == found("team-b/train-0") == "team-b/train-0"
    assert found("-A", "pod/web") == "team-b/web"
    assert "job train is in namespaces team-a, team-b; choose one with -n" in found("-A", "job/train")
    assert "there is no pod web in namespace team-a" in found("pod/web")
    assert "deployment train has no pods in namespace team-a" in found("deploy/train")
    assert "write a pod's NAME, or TYPE/NAME" in found("a/b/c")
    assert "exclude each other" in found("-A", "-n", "team-a", "web")
    assert found("-A", "absent").endswith("in any namespace, and no pods of a workload of that name\n")


@pytest.mark.parametrize("command", [("topology",), ("explain", "x"), ("drain", "node-1", "--dry-run")], ids=" ".join)
def test_a_config_map_that_is_refused_can_be_replaced(served: Served, command: tuple[str, ...], tmp_path: Path) -> None:
    served.configure("apiVersion: topology.scheduler/v1alpha1\nkind: SchedulerConfig\nschedulername: x\n")
    answer = run(*command, "--kubeconfig", served.kubeconfig)
    assert answer.exit_code == 2
    assert "ConfigMap kube-system/topology-scheduler-config: config.yaml: SchedulerConfig is refused" in answer.output
    assert answer.output.endswith("\n--config FILE or --config-map NAMESPACE/NAME names another configuration\n")
    path = tmp_path / "config.yaml"
    path.write_text("schedulername: x\n")
    answer = run(*command, "--kubeconfig", served.kubeconfig, "--config", str(path))
    assert answer.exit_code == 2 and "--config-map" not in answer.output
