"""``explain`` of pods that are bound, pending, refused, and not ours."""

import asyncio
import json
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cli.conftest import Served, run
from tests.cli.served_devices import refuse
from tests.crds import job_set_definition, migration_definition, native_pod_group
from tests.schemas import follows
from topo_scheduler.cli.explanation_schema import SCHEMA, Explained
from topo_scheduler.cli.explanation_text import lines
from topo_scheduler.cli.missing_pods import events_of
from topo_scheduler.cli.snapshot import connected
from topo_scheduler.simulation import demo
from topo_scheduler.simulation.apiserver.deletion import DeleteOptions
from topo_scheduler.simulation.demo import until

GANG = """
apiVersion: batch/v1
kind: Job
metadata: {name: big, annotations: {topology.scheduler/gpu-count: "40"}}
spec:
  completionMode: Indexed
  parallelism: 5
  completions: 5
  template:
    spec:
      schedulerName: topology-aware-scheduler
      restartPolicy: Never
      containers: [{name: c, image: busybox, resources: {limits: {nvidia.com/gpu: 8}}}]
"""


def explain(served: Served, *arguments: str) -> tuple[int, str]:
    answer = run("explain", *arguments, "--kubeconfig", served.kubeconfig)
    return answer.exit_code, answer.output


def explained(served: Served, *arguments: str) -> dict[str, Any]:
    code, output = explain(served, *arguments, "-o", "json")
    assert code == 0, output
    answer = json.loads(output)
    assert isinstance(answer, dict)
    msgspec.json.decode(output, type=Explained)
    follows(answer, "explain.schema.json")
    return answer


def test_a_bound_pod_and_its_gang(served: Served) -> None:
    for rank in (1, 0):
        served.create_pod(f"member-{rank}")
        address = f"spine-1.leaf-1.node-{rank + 3}"
        served.bind(
            f"member-{rank}", f"node-{rank + 3}", rank=str(rank), address=address, score="0.750", gang_id="default/g"
        )
    explanation = explained(served, "member-1")
    assert (explanation["state"], explanation["node"], explanation["rank"], explanation["score"]) == (
        "bound",
        "node-4",
        1,
        "0.750",
    )
    assert [member["pod"] for member in explanation["gang"]["members"]] == ["member-0", "member-1"]
    code, text = explain(served, "default/member-1")
    assert code == 0
    assert "Pod default/member-1 is on node node-4.\n  address    spine-1.leaf-1.node-4" in text
    assert "Gang g of 2 pods:\n" in text
    assert "rank 0  member-0  spine-1.leaf-1.node-3" in text


def test_a_gang_has_the_name_that_events_give_it(served: Served) -> None:
    served.configure("", name="training", namespace="default")
    controller = served.call(lambda: served.server.store.get("configmaps", "training", "default").obj)
    uid = controller["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "training", "uid": uid, "controller": True}
    served.create_pod("training-0", owner=owner)
    served.bind("training-0", "node-3", rank="0", address="s.l.node-3", gang_id=f"default/{uid}")
    assert f"Gang training of 1 pod (default/{uid}):\n" in explain(served, "training-0")[1]
    assert explained(served, "training-0")["gang"]["name"] == "training"


def test_of_a_gang_on_nodes_without_labels_it_is_not_said_what_spans_it(served: Served) -> None:
    written = {"gang_id": "default/g", "spanned_level": "leaf", "levels_spanned": "1", "hops": "2.00", "score": "1.000"}
    for rank, place in enumerate(("unlabelled", "spine-1.unlabelled", "spine-1.leaf-1")):
        served.create_pod(f"member-{rank}")
        node = f"node-{rank + 3}"
        served.bind(f"member-{rank}", node, rank=str(rank), address=f"{place}.{node}", **written)
    (warning,) = explained(served, "member-2")["warnings"]
    assert warning.startswith(
        "2 of 3 pods are on nodes without labels that give their position in the fabric (node-3, node-4)"
    )
    _, text = explain(served, "member-0")
    assert f"  warning    {warning}" in text
    assert "within one leaf" not in text and "hops between" not in text
    served.create_pod("alone")
    served.bind("alone", "node-5", address="unlabelled.node-5")
    assert explained(served, "alone")["warnings"] == ["node node-5 has no labels that give its position in the fabric"]
    served.create_pod("placed")
    served.bind("placed", "node-6", **{**written, "gang_id": "default/h"}, rank="0", address="spine-1.leaf-1.node-6")
    assert explained(served, "placed")["warnings"] == []
    assert "within one leaf, 2.00 hops" in explain(served, "placed")[1]


def test_a_share_of_a_gpu_is_shown_with_its_index(served: Served) -> None:
    served.create_pod("notebook")
    shared = {"gpu_index": "3", "charged_gpu_fraction": "0.25"}
    served.bind("notebook", "node-4", rank="0", address="s.l.node-4", score="0.500", **shared)
    assert "  GPU index  3, of which it holds 0.25\n" in explain(served, "notebook")[1]


def test_predicted_gpus_are_reported_as_such(served: Served) -> None:
    served.create_pod("linked")
    served.bind("linked", "node-4", rank="0", address="s.l.node-4", score="0.500", predicted_gpus="0,3")
    assert "  GPU index  0, 3 (predicted: the device plugin of the node chooses)\n" in explain(served, "linked")[1]
    assert explained(served, "linked")["predictedGpus"] == [0, 3]


def test_the_score_of_gpus_is_reported_by_name_as_it_was_when_the_pod_was_bound(served: Served) -> None:
    served.create_pod("linked")
    score = "total=67,topology=92,base=40,nvlink=40,same-socket=12,same-pcie-switch=0,resources=50,balance=51"
    served.bind("linked", "node-4", rank="0", address="s.l.node-4", score="0.500", device_score=score)
    shown = explain(served, "linked")[1]
    assert "  GPU score  67 of 100 when it was bound, from:\n" in shown
    assert "             topology 92 (base 40, NVLink 40, same socket 12), weight 40\n" in shown
    assert "             resources 50, weight 35\n             balance 51, weight 25\n" in shown
    assert explained(served, "linked")["deviceScore"]["sameSocket"] == 12


@pytest.mark.parametrize("written", [None, "", "total=1000", "total=67,topology=92", "total=" * 1000])
def test_a_score_that_was_not_written_or_was_edited_is_not_made_up(served: Served, written: str | None) -> None:
    served.create_pod("plain")
    annotations = {} if written is None else {"device_score": written}
    served.bind("plain", "node-4", rank="0", address="s.l.node-4", score="0.500", **annotations)
    assert explained(served, "plain")["deviceScore"] is None
    assert "GPU score" not in explain(served, "plain")[1]


def test_a_pod_bound_by_another(served: Served) -> None:
    served.create_pod("taken")
    served.bind("taken", "node-1")
    assert "It was not bound by this scheduler" in explain(served, "taken")[1]
    assert explained(served, "taken")["boundByThisScheduler"] is False


def test_a_pod_of_another_scheduler(served: Served) -> None:
    served.create_pod("theirs", schedulerName="default-scheduler")
    code, output = explain(served, "theirs")
    assert code == 1
    assert "pod default/theirs belongs to another scheduler: its schedulerName is default-scheduler" in output
    assert "if that is another instance of this scheduler, name it by --scheduler-name" in output


@pytest.mark.parametrize(("name", "expected"), [("none", "there is no pod none in namespace default"), ("..", "'..'")])
def test_no_such_pod(served: Served, name: str, expected: str) -> None:
    code, output = explain(served, name)
    assert code == 1 and expected in output


def test_what_is_no_type_is_a_namespace_and_where_nothing_is_found_the_types_are_named(served: Served) -> None:
    code, output = explain(served, "jbo/train")
    assert code == 1
    assert "there is no pod train in namespace jbo, and no pods of a workload of that name: jbo is no type of" in output
    assert "(pod, job, cronjob, jobset, deployment, " in output
    code, output = explain(served, "job/train")
    assert code == 1 and "job train has no pods in namespace default; -n names another namespace" in output


def test_a_pending_pod_that_could_be_placed(served: Served) -> None:
    served.create_pod("soon", gpus=2)
    explanation = explained(served, "soon")
    assert explanation["decision"]["verdict"] == "placed" and explanation["decision"]["node"].startswith("node-")
    assert explanation["decision"]["score"]["total"] > 0
    code, text = explain(served, "soon")
    assert code == 0 and f"It would be placed now: on {explanation['decision']['node']}" in text
    assert "If it stays pending, read its last event" in text, "a Binding may be rejected"


@pytest.mark.parametrize("phase", ["Placing", "Done"])
def test_nodes_that_migrations_reserve_are_not_free(served: Served, phase: str) -> None:
    definition = migration_definition()
    held = {f"node-{number}": f"uid-{number}" for number in range(1, 9)}
    moves = [
        {"pod": f"moved-{uid}", "uid": uid, "to": node, "controller": "Job moved", "requests": {"gpu": 8}}
        for node, uid in held.items()
    ]
    migration = {"metadata": {"name": "moved"}, "spec": {"pods": [{"name": move["pod"]} for move in moves]}}
    status = {"phase": phase, "schedulerName": "topology-aware-scheduler", "moves": moves}
    store = served.server.store
    served.call(lambda: store.create("customresourcedefinitions.apiextensions.k8s.io", definition))
    served.call(lambda: store.create("migrations.topology.scheduler", migration, "default"))
    written = partial(store.modify, "migrations.topology.scheduler", "moved", "default")
    served.call(lambda: written(lambda obj: {**obj, "status": status}, subresource="status"))
    served.create_pod("late")
    _, text = explain(served, "late")
    assert ("reserved for replacements of moved pods" in text) is (phase == "Placing"), text
    assert ("It would be placed now" in text) is (phase == "Done"), text


def test_the_reason_of_a_gang_without_room_is_reported(served: Served, tmp_path: Path) -> None:
    path = tmp_path / "gang.yaml"
    path.write_text(GANG)
    name = served.submit(path, 5)[0]
    for number, node in enumerate((1, 3, 5)):
        served.create_pod(f"filler-{number}", gpus=8)
        served.bind(f"filler-{number}", f"node-{node}")
    before = served.call(lambda: served.server.store.revision)
    explanation = explained(served, name)
    assert explanation["workload"]["name"] == "default/big" and explanation["workload"]["madeBy"] == "Job big"
    assert (
        explanation["workload"]["size"],
        explanation["workload"]["gang"],
        explanation["workload"]["gpusPerPod"],
    ) == (5, True, 8)
    decision = explanation["decision"]
    assert decision["verdict"] == "unschedulable" and decision["node"] is None
    assert decision["message"].startswith("0/8 nodes are available: ")
    assert explanation["predictedEvents"] == [decision["message"]]
    code, text = explain(served, name)
    assert code == 0 and "Pod default/big-0-" in text and decision["message"] in text
    assert served.call(lambda: served.server.store.revision) == before, "nothing is written"


def test_the_cheapest_remedies_are_reported_for_a_job_by_its_name(served: Served, tmp_path: Path) -> None:
    path = tmp_path / "gang.yaml"
    path.write_text(GANG)
    pods = served.submit(path, 5)
    for number, node in enumerate((1, 3, 5)):
        served.create_pod(f"filler-{number}", gpus=8, annotations={"topology.scheduler/expected-duration": "2h"})
        served.bind(f"filler-{number}", f"node-{node}")
    explanation = explained(served, "big")
    assert explanation["schema"] == SCHEMA
    assert explanation["pod"] == sorted(pods)[0]
    why = explanation["pending"]
    # Eight nodes, of which three are down, and three are held.
    assert why["reason"].startswith("40 GPUs are needed and 16 are free; 24 more are on nodes that are cordoned or not")
    assert {domain["level"] for domain in why["domains"]} == {"spine", "leaf"}
    leaf = next(domain for domain in why["domains"] if domain["path"] == "spine-1/leaf-1")
    assert (leaf["nodes"], leaf["room"], leaf["needed"]) == (4, 1, 5)
    ways = {way["kind"]: way for way in why["remedies"]}
    assert ways["wait"]["endingWorkloads"] and ways["wait"]["until"].endswith("Z")
    assert ways["reduce"]["size"] == 1
    assert ways["free"]["cost"]["podsEnded"] == len(ways["free"]["endingWorkloads"])
    code, text = explain(served, "default/big")
    assert code == 0
    assert "What would help, cheapest first (each was tried on a copy of the cluster):\n  1. " in text
    assert all(way["text"] in text for way in why["remedies"] if "until" not in way["text"])
    assert "spine-1/leaf-1           room for 1 of 5 pods" in text
    assert "fewest-leaves rule  at least 5 nodes, within 3 leaves of the cluster" in text


def test_how_many_would_fit_is_no_remedy_and_room_beyond_the_size_rule_is_said_to_be_that() -> None:
    reduce = {"kind": "reduce", "text": "16 of 100 pods would fit now", "size": 16, "cost": {"membersGivenUp": 84}}
    end = {"kind": "free", "text": "end pod default/x", "size": None, "cost": {"membersGivenUp": 0}}
    domain = {"path": "s1", "level": "spine", "nodes": 8, "freeGpus": 48, "room": 6, "needed": 5, "reasons": {}}
    why = {"sizeRule": {"nodes": 5, "leaves": 2, "within": "spine"}, "domains": [domain], "remedies": [reduce, end]}
    decision: dict[str, Any] = {"verdict": "unschedulable", "message": "0/8 nodes", "sizeRule": None, "domains": []}
    explanation = {
        "namespace": "a",
        "pod": "b",
        "state": "pending",
        "workload": None,
        "decision": decision,
        "pending": why,
    }
    text = list(lines({**explanation, "predictedEvents": [], "unreadObjects": [], "events": []}))
    at = text.index("What would help, cheapest first (each was tried on a copy of the cluster):")
    assert text[at + 1 :] == ["  1. end pod default/x", "16 of 100 pods would fit now."]
    assert any("room for 5 of 5 pods but not within 2 leaves of one spine, 48 GPUs free" in line for line in text)
    why["remedies"] = [reduce]
    text = list(lines({**explanation, "predictedEvents": [], "unreadObjects": [], "events": []}))
    assert text[-2].startswith("No remedy was found") and text[-1] == "16 of 100 pods would fit now."
    decision["reasons"] = {"node(s) where the namespace's quota leaves no room": 8}
    text = list(lines({**explanation, "predictedEvents": [], "unreadObjects": [], "events": []}))
    assert any(line.startswith("It fits its quota once pods of its namespace end") for line in text)


def test_what_is_reserved_for_a_gang_is_reported_after_the_rest_which_is_not_repeated(
    served: Served, tmp_path: Path
) -> None:
    path, config = tmp_path / "gang.yaml", tmp_path / "config.yaml"
    path.write_text(GANG.replace('"40"', '"16"').replace(": 5", ": 2"))
    config.write_text(
        "apiVersion: topology.scheduler/v1alpha1\nkind: TopologySchedulerConfig\nspec:\n  reservation: {after: 1ms}\n"
    )
    served.submit(path, 2)
    for node in range(1, 9):
        served.create_pod(f"filler-{node}", gpus=8, annotations={"topology.scheduler/expected-duration": "2h"})
        served.bind(f"filler-{node}", f"node-{node}")
    code, text = explain(served, "big", "--config", str(config))
    assert code == 0
    assert "\nAlso: Reserved: spine-1/leaf-1 (2 nodes), expected free at about " in text
    assert text.partition("\nEvents:")[0].count("nodes are available") == 1
    assert "fewest-leaves rule  at least 2 nodes, within one leaf\n" in text


def test_a_remedy_that_was_reported_helps(served: Served, tmp_path: Path) -> None:
    path = tmp_path / "gang.yaml"
    path.write_text(GANG)
    name = served.submit(path, 5)[0]
    for number, node in enumerate((1, 3, 5)):
        served.create_pod(f"filler-{number}", gpus=8)
        served.bind(f"filler-{number}", f"node-{node}")
    way = next(way for way in explained(served, name)["pending"]["remedies"] if way["kind"] == "free")
    for workload in way["endingWorkloads"]:
        delete = partial(
            served.server.store.delete, "pods", workload["name"].rpartition("/")[2], "default", DeleteOptions(0)
        )
        served.call(delete)
    assert explained(served, name)["decision"]["verdict"] == "placed"


def outranked(served: Served, *, budget: bool) -> None:
    """Fill all nodes, and create a pod of higher priority."""
    store = served.server.store
    urgent = {"metadata": {"name": "urgent"}, "value": 1000}
    served.call(lambda: store.create("priorityclasses.scheduling.k8s.io", urgent))
    for node in range(1, 9):
        served.create_pod(f"filler-{node}", gpus=8)
        served.bind(f"filler-{node}", f"node-{node}")
    if budget:
        protected = {"metadata": {"name": "web"}, "spec": {"minAvailable": "100%", "selector": {}}}
        served.call(lambda: store.create("poddisruptionbudgets.policy", protected, "default"))
    served.create_pod("urgent", gpus=8, priorityClassName="urgent")


@pytest.mark.parametrize("budget", [True, False])
def test_disruption_budgets_count_as_in_the_scheduler(served: Served, budget: bool) -> None:
    outranked(served, budget=budget)
    text = explain(served, "urgent")[1]
    also = "Also: 5 pods of lower priority may not be evicted now: PodDisruptionBudget default/web.\n"
    assert (also in text) is budget, text
    assert "PodDisruptionBudgets" not in text


def test_without_the_list_of_disruption_budgets_nothing_is_said_of_evictions(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    outranked(served, budget=True)
    refuse(served, monkeypatch, "poddisruptionbudgets", "403")
    text = explain(served, "urgent")[1]
    assert "Warning: poddisruptionbudgets.policy may not be listed: the answer does not say whether" in text
    assert "evicts no pod" not in text and "may not be evicted" not in text


def test_a_pod_with_a_claim(served: Served) -> None:
    served.create_pod("p", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}])
    assert explained(served, "p")["decision"]["message"].endswith('8 persistentvolumeclaim "data" not found.')

    def bound_on_node_3() -> None:
        store = served.server.store
        named = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-3"]}
        affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": [named]}]}}
        claim = {"metadata": {"name": "data"}, "spec": {"volumeName": "pv"}}
        made = store.create("persistentvolumeclaims", claim, "default")
        reference = {"namespace": "default", "name": "data", "uid": made["metadata"]["uid"]}
        body = {"metadata": {"name": "pv"}, "spec": {"claimRef": reference, "nodeAffinity": affinity}}
        store.create("persistentvolumes", body)

    served.call(bound_on_node_3)
    served.wait(lambda: until(served.server.store, lambda: claim_is_bound(served), 10))
    assert explained(served, "p")["decision"]["node"] == "node-3"


def claim_is_bound(served: Served) -> bool:
    claim = served.server.store.get("persistentvolumeclaims", "data", "default")
    return bool((claim.get("status") or {}).get("phase") == "Bound")


def test_quotas_count_and_a_limit_on_decisions_keeps_no_pod_from_an_answer(served: Served, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "apiVersion: topology.scheduler/v1alpha1\nkind: TopologySchedulerConfig\nspec:\n"
        "  fairness: {decisionsPerSecond: 0.1, decisionBurst: 1}\n"
        "  quotas: [{namespaces: [default], hard: {gpus: 4}}]\n"
    )
    for name in ("first", "second", "third"):
        served.create_pod(name, gpus=2)
    decisions = [explained(served, name, "--config", str(config))["decision"] for name in ("first", "second", "third")]
    (waits,) = (decision for decision in decisions if decision["verdict"] != "placed")
    assert "Quota of namespace default: 4 of 4 gpus in use, 2 more asked." in waits["message"]


def test_an_incomplete_gang_waits(served: Served) -> None:
    wants = {"topology.scheduler/gang-name": "pair", "topology.scheduler/gang-size": "2"}
    served.create_pod("one", annotations=wants)
    explanation = explained(served, "one")
    assert explanation["decision"] is None
    assert explanation["predictedEvents"] == ["Gang pair is waiting for 1 of 2 pods"]
    assert "Gang pair is waiting for 1 of 2 pods" in explain(served, "one")[1]


def report_failure(served: Served, uid: str, number: int, reason: str = "FailedCreate") -> None:
    """Create an event on an object."""
    body = {
        "metadata": {"name": f"event-{number}"},
        "involvedObject": {"namespace": "default", "uid": uid},
        "type": "Warning",
        "reason": reason,
        "message": f"exceeded quota: {number}",
        "lastTimestamp": f"2026-01-01T00:00:{number:02}Z",
    }
    served.call(lambda: served.server.store.create("events", body, "default"))


def test_why_a_controller_fails_to_create_pods_of_a_gang(served: Served) -> None:
    served.configure("", name="training", namespace="default")
    uid = served.call(lambda: served.server.store.get("configmaps", "training", "default").obj)["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "training", "uid": uid, "controller": True}
    wants = {"topology.scheduler/gang-name": "pair", "topology.scheduler/gang-size": "2"}
    served.create_pod("one", annotations=wants, owner=owner)
    for number in (2, 3, 1):
        report_failure(served, uid, number)
    report_failure(served, uid, 4, "SuccessfulCreate")
    report_failure(served, "another", 5)
    failure = {"controller": "ConfigMap training", "message": "exceeded quota: 3"}
    assert explained(served, "one")["failedCreations"] == [failure]
    text = explain(served, "one")[1]
    assert "Gang pair is waiting for 1 of 2 pods\nConfigMap training failed to create pods: exceeded quota: 3\n" in text
    served.create_pod("two", annotations=wants, owner=owner)
    assert explained(served, "one")["failedCreations"] == [], "the gang lacks no pods"


def test_the_uid_of_an_owner_selects_no_other_events(served: Served) -> None:
    report_failure(served, "u", 1)

    async def events(uid: str) -> int:
        async with connected(served.kubeconfig, None) as client:
            return len(await events_of(client, "default", uid))

    assert asyncio.run(events("u")) == 1
    assert asyncio.run(events("u,type=Warning")) == asyncio.run(events("u!=v")) == 0


@pytest.mark.parametrize("target", ["big", "job/big"])
def test_a_job_that_is_suspended_or_scaled_to_0(served: Served, target: str) -> None:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "busybox"}]}}
    spec = {"suspend": True, "parallelism": 2, "completions": 2, "template": template}
    store = served.server.store
    served.call(lambda: store.create("jobs.batch", {"metadata": {"name": "big"}, "spec": spec}, "default"))
    code, text = explain(served, target)
    assert code == 1
    assert " in namespace default: Job big is suspended (spec.suspend); set it to false, or wait until the" in text
    changed = {"suspend": False, "parallelism": 0}
    served.call(
        lambda: store.modify("jobs.batch", "big", "default", lambda obj: {**obj, "spec": {**obj["spec"], **changed}})
    )
    code, text = explain(served, target)
    assert code == 1 and " in namespace default: Job big has a parallelism of 0\n" in text


def test_why_a_controller_creates_nothing(served: Served) -> None:
    job = {
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "busybox"}]}}}
    }
    body = {"metadata": {"name": "nightly"}, "spec": {"schedule": "0 3 * * *", "jobTemplate": job}}
    made = served.call(lambda: served.server.store.create("cronjobs.batch", body, "default"))
    report_failure(served, made.obj["metadata"]["uid"], 1)
    code, text = explain(served, "cj/nightly")
    assert code == 1 and ": CronJob nightly failed to create pods: exceeded quota: 1\n" in text


def test_a_gang_that_a_rolling_update_can_not_complete(served: Served) -> None:
    labels = {"app": "web"}
    pod = {"schedulerName": "topology-aware-scheduler", "containers": [{"name": "c", "image": "busybox"}]}
    body = {
        "metadata": {"name": "web", "annotations": {"topology.scheduler/gang-size": "3"}},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
    store = served.server.store
    served.call(lambda: store.create("deployments.apps", body, "default"))
    assert served.wait(lambda: until(store, lambda: len(store.list("pods")) == 1, 10))
    text = explain(served, "deploy/web")[1]
    assert " is waiting for 2 of 3 pods: a rolling update of its Deployment makes only maxSurge" in text


def test_a_deployment_that_is_scaled_to_0(served: Served) -> None:
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "busybox"}]}}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    body = {"metadata": {"name": "web"}, "spec": spec}
    served.call(lambda: served.server.store.create("deployments.apps", body, "default"))
    code, text = explain(served, "deploy/web")
    assert code == 1
    assert "deployment web has no pods in namespace default: Deployment web is scaled to 0 (spec.replicas)" in text


def test_a_plugin_of_the_scheduler_that_is_not_installed_here(served: Served) -> None:
    served.configure(
        "apiVersion: topology.scheduler/v1alpha1\nkind: SchedulerConfig\nplugins: [{name: absent, arguments: {}}]\n"
    )
    served.create_pod("p", gpus=1)
    answer = run("explain", "p", "--kubeconfig", served.kubeconfig)
    assert answer.exit_code == 2
    assert "plugin absent is not installed" in answer.output
    assert "install it here too, or name a configuration without it by --config FILE" in answer.output


def test_a_refused_pod(served: Served) -> None:
    served.create_pod("wrong", annotations={"topology.scheduler/gpu-count": "many"})
    explanation = explained(served, "wrong")
    assert explanation["decision"] is None and "gpu-count" in explanation["predictedEvents"][0]


def test_a_gated_pod(served: Served) -> None:
    served.create_pod("gated", schedulingGates=[{"name": "example.com/wait"}])
    assert explained(served, "gated")["state"] == "gated"
    assert "scheduling gates" in explain(served, "gated")[1]


def test_a_pod_of_a_pod_group(served: Served) -> None:
    store = served.server.store
    served.create_pod("member", schedulingGroup={"podGroupName": "crew"})
    code, text = explain(served, "member")
    assert code == 0
    assert "Gang crew is waiting: PodGroup default/crew of scheduling.k8s.io does not exist" in text
    served.call(lambda: store.create("podgroups.scheduling.k8s.io", native_pod_group("crew", 3), "default"))
    explanation = explained(served, "member")
    assert (explanation["workload"]["gang"], explanation["workload"]["size"]) == (True, 3)
    assert explanation["predictedEvents"] == ["Gang crew is waiting for 2 of 3 pods"]
    for number in range(2):
        served.create_pod(f"other-{number}", schedulingGroup={"podGroupName": "crew"})
    assert explained(served, "member")["decision"]["verdict"] == "placed"


@pytest.fixture
def no_controllers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pods stay whose owner or namespace is gone, as while a garbage collector has much to do."""
    monkeypatch.setattr(demo, "controllers", lambda store: nullcontext())


LEAVING = {
    "deleted": "Job train does not exist",
    "being deleted": "Job train is being deleted",
    "suspended": "Job train is suspended (spec.suspend)",
    "finished": "Job train has the condition Failed",
    "JobSet suspended": "JobSet jobs is suspended (spec.suspend)",
    "namespace": "namespace default is being deleted",
}


@pytest.mark.parametrize("state", LEAVING)
@pytest.mark.usefixtures("no_controllers")
def test_a_pod_that_is_about_to_be_deleted_is_not_scheduled_and_has_no_remedies(state: str, served: Served) -> None:
    uid = _create_owner(served, state)
    for node in range(1, 9):
        served.create_pod(f"filler-{node}", gpus=8)
        served.bind(f"filler-{node}", f"node-{node}")
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": uid, "controller": True}
    served.create_pod("train-0", gpus=8, owner=owner)
    if state == "namespace":
        served.call(lambda: served.server.store.delete("namespaces", "default", "", DeleteOptions()))
    answer = explained(served, "train-0")
    assert (answer["workload"], answer["decision"], answer["pending"]) == (None, None, None)
    assert answer["predictedEvents"][0].startswith(
        f"not scheduled: {LEAVING[state]}. So this pod is about to be deleted"
    )
    code, text = explain(served, "train-0")
    assert code == 0 and f"not scheduled: {LEAVING[state]}" in text
    assert "would help" not in text and "end pod" not in text


def _create_owner(served: Served, state: str) -> str:
    """Create Job train, unless it was deleted, and what is above it; return its uid."""
    store = served.server.store
    metadata: dict[str, Any] = {"name": "train"}
    if state == "JobSet suspended":
        served.call(lambda: store.create("customresourcedefinitions.apiextensions.k8s.io", job_set_definition()))
        jobs = {"metadata": {"name": "jobs"}, "spec": {"suspend": True}}
        above = served.call(lambda: store.create("jobsets.jobset.x-k8s.io", jobs, "default")).obj["metadata"]["uid"]
        reference = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "jobs", "uid": above}
        metadata["ownerReferences"] = [{**reference, "controller": True}]
    if state == "being deleted":
        metadata["finalizers"] = ["example.com/held"]
    container = {"name": "c", "image": "busybox"}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    body = {"metadata": metadata, "spec": {"suspend": state == "suspended", "template": template}}
    uid = served.call(lambda: store.create("jobs.batch", body, "default")).obj["metadata"]["uid"]
    if "deleted" in state:
        served.call(lambda: store.delete("jobs.batch", "train", "default", DeleteOptions(propagation="Background")))
    if state == "finished":
        status = {"conditions": [{"type": "Failed", "status": "True"}]}
        change = partial(store.modify, "jobs.batch", "train", "default", lambda obj: {**obj, "status": status})
        served.call(lambda: change(subresource="status"))
    assert isinstance(uid, str)
    return uid
