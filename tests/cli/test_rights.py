"""The ClusterRoles of docs/reference/cli-permissions.md allow every request of the commands, and nothing else."""

import re
import signal
from typing import Any, Final

import yaml

from tests.cli.conftest import ROOT, Served, run, start
from tests.crds import migration_definition
from topo_scheduler.simulation.demo import until

Right = tuple[str, str, str]
READER: Final = "topology-scheduler-reader"
DRAINER: Final = "topology-scheduler-drainer"
OWNED_BY_OTHERS: Final = {
    ("get", "apps", "replicasets"),
    ("get", "apps", "statefulsets"),
    ("get", "apps", "daemonsets"),
    ("get", "apps", "deployments"),
    ("get", "batch", "cronjobs"),
    ("list", "topology.node.k8s.io", "noderesourcetopologies"),
    *(("list", f"scheduling.{group}", "podgroups") for group in ("x-k8s.io", "sigs.k8s.io", "volcano.sh")),
}
"""Owners of kinds that no pod here has, and kinds that are not served here."""


def _rules(name: str) -> list[dict[str, Any]]:
    """Return the rules of a ClusterRole that the page shows."""
    page = (ROOT / "docs" / "reference" / "cli-permissions.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    roles = {role["metadata"]["name"]: role["rules"] for role in yaml.safe_load_all(block)}
    assert roles.keys() == {READER, DRAINER}
    rules: list[dict[str, Any]] = roles[name]
    return rules


def _granted(*names: str) -> set[Right]:
    return {
        (verb, group, resource)
        for name in names
        for rule in _rules(name)
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        # A rule of several groups names the resources of each.
        if (group == "batch") == (resource in ("jobs", "cronjobs")) or len(rule["apiGroups"]) != 2
    }


def _asked(served: Served) -> set[Right]:
    """Return what was asked for since the last call; of what rules name, by these names only."""
    entries = [entry for entry in list(served.server.requests) if entry.resource]
    for entry in entries:
        if entry.resource == "configmaps":
            assert entry.name == "topology-scheduler-config"
        if entry.resource == "leases":
            assert entry.name == "topology-scheduler"
    served.server.requests.clear()
    return {(entry.verb, entry.group, entry.full_resource) for entry in entries}


def _pods(served: Served) -> tuple[str, str]:
    """Make a Job of two pods with a claim; the names of one that waits for a node, and of one that runs in a gang."""
    store = served.server.store
    spec = {
        "schedulerName": "topology-aware-scheduler",
        "restartPolicy": "Never",
        "containers": [{"name": "main", "image": "busybox"}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
    }
    job = {"metadata": {"name": "train"}, "spec": {"parallelism": 2, "completions": 2, "template": {"spec": spec}}}
    served.call(lambda: store.create("jobs.batch", job, "default"))
    assert served.wait(lambda: until(store, lambda: len(store.list("pods")) == 2, 10))
    waits, runs = (pod.key.name for pod in store.list("pods"))
    served.bind(runs, "node-7", gang_id="default/train")
    served.server.requests.clear()
    return waits, runs


def _watch(served: Served) -> None:
    """Have `topology --watch` show one picture."""
    process = start("topology", "--watch", "-o", "json", "--kubeconfig", served.kubeconfig)
    try:
        assert process.stdout is not None and process.stdout.readline()
        process.send_signal(signal.SIGINT)
    finally:
        process.communicate(timeout=30)


def test_users_of_topology_and_explain_may_do_what_these_ask_for_and_no_more(served: Served) -> None:
    waits, runs = _pods(served)
    for words in (("topology",), ("explain", waits), ("explain", runs), ("explain", "job/train")):
        done = run(*words, "--kubeconfig", served.kubeconfig)
        assert done.exit_code == 0, done.output
    _watch(served)
    asked = _asked(served)
    granted = _granted(READER)
    assert asked <= granted
    # To get each is what any tool does that may list all.
    assert granted - asked <= OWNED_BY_OTHERS | {("get", "", "nodes"), ("list", "apps", "deployments")}


def test_users_of_drain_may_do_what_it_asks_for_and_no_more(served: Served) -> None:
    kind = "customresourcedefinitions.apiextensions.k8s.io"
    served.call(lambda: served.server.store.create(kind, migration_definition()))
    _pods(served)
    done = run("drain", "node-7", "--wait", "--timeout", "1s", "--kubeconfig", served.kubeconfig)
    assert "1 node cordoned, 1 Migration created" in done.output
    asked = _asked(served)
    assert asked <= _granted(READER, DRAINER)
    assert _granted(DRAINER) <= asked
