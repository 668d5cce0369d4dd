"""Why a gang waits and what would help: as event, as condition, from the command line; and what they propose helps."""

import asyncio
import json
import sys
from pathlib import Path

import msgspec

from tests.e2e import objects
from tests.e2e.api import Json
from tests.e2e.cluster import Cluster, annotation
from tests.e2e.replica import Replica
from tests.schemas import follows
from topo_scheduler.cli.explanation_schema import Explained, PendingReport, RemedyReport

ROOT = Path(__file__).resolve().parents[2]


async def explain(cluster: Cluster, *arguments: str) -> str:
    """Run the command as a process of its own."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "topo_scheduler.cli", "explain", *arguments),
        *("--kubeconfig", str(cluster.scheduler_kubeconfig)),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


async def why(cluster: Cluster, name: str) -> PendingReport:
    output = await explain(cluster, name, "-o", "json")
    follows(json.loads(output), "explain.schema.json")
    explained = msgspec.json.decode(output, type=Explained)
    assert isinstance(explained.pending, PendingReport)
    return explained.pending


async def test_the_events_of_a_pending_gang_give_a_reason_and_a_remedy_that_helps(
    cluster: Cluster, daemon: Replica
) -> None:
    await cluster.add_fabric({"s1": [2, 2], "s2": [2]})
    for node in ("s1-l1-1", "s1-l2-1", "s2-l1-1", "s2-l1-2"):
        await cluster.occupy(node)
    await cluster.apply(objects.gang("whole", 2))
    pods = await cluster.wait_pods("whole", 2)
    reason = "16 GPUs are free, but the largest free block in one leaf is 8: s1/l1."
    (job,) = await cluster.api.list("jobs")
    on_job = await cluster.wait_note(job, "What would help, cheapest first: (1) ", reason="FailedScheduling")
    assert on_job["regarding"]["kind"] == "Job" and reason in on_job["note"]
    notes = await cluster.notes(job, "FailedScheduling")
    assert notes == [on_job["note"]], "once for both pods, what is lacking and what would help in one"
    for pod in pods:
        event = await cluster.wait_note(pod, "What would help, cheapest first: (1) ", reason="FailedScheduling")
        assert event["note"].startswith("0/6 nodes are available: ")
        assert reason in event["note"]
        assert "set topology.scheduler/placement to preferred: it fits under one spine" in event["note"]
        assert "reduce it to 1 pod" in event["note"]
        assert "end pod default/held-s1-l1-1 on node s1-l1-1: 1 pod, 8 GPUs" in event["note"]
        assert len(event["note"].encode()) <= 1024
        assert await cluster.notes(pod, "FailedScheduling") == [event["note"]], "one event a pod"

        async def marked(pod: Json = pod, note: str = event["note"]) -> bool | None:
            condition = await cluster.wait_unschedulable(pod)
            return True if condition["message"] == note else None

        await cluster.wait_until(marked, 15, "the condition says the same")

    text = await explain(cluster, "whole")
    assert reason in text
    assert "What would help, cheapest first (each was tried on a copy of the cluster):" in text
    assert "s1/l1" in text and "room for 1 of 2 pods" in text

    report = await why(cluster, "whole")
    assert report.reason.startswith(reason)
    kinds = {way.kind: way for way in report.remedies}
    assert list(kinds) == ["relax", "reduce", "free"]
    assert kinds["reduce"].size == 1
    await _end(cluster, kinds["free"])
    bound = await cluster.wait_bound("whole", 2)
    assert {annotation(pod, "spanned-level") for pod in bound} == {"leaf"}
    assert {annotation(pod, "levels-spanned") for pod in bound} == {"1"}
    assert {annotation(pod, "hops") for pod in bound} == {"2.00"}
    assert 0 < float(annotation(bound[0], "score")) <= 1


async def _end(cluster: Cluster, way: RemedyReport) -> None:
    for workload in way.ending_workloads:
        for pod in workload.pods:
            namespace, _, name = pod.partition("/")
            await cluster.api.delete("pods", name, namespace, grace=0)


async def test_what_ends_soon_is_waited_for(cluster: Cluster, daemon: Replica) -> None:
    await cluster.add_fabric({"s1": [2]})
    body = objects.pod("timed", 8)
    body["metadata"].setdefault("annotations", {})["topology.scheduler/expected-duration"] = "2h"
    await cluster.apply(body)
    (pod,) = await cluster.wait_bound("timed", 1)
    await cluster.apply(objects.gang("next", 2))
    for waiting in await cluster.wait_pods("next", 2):
        event = await cluster.wait_note(waiting, "(1) wait until about ", reason="FailedScheduling")
        assert "when pod default/timed ends" in event["note"]
    way = (await why(cluster, "next")).remedies[0]
    assert way.kind == "wait" and way.ending_workloads[0].name == "default/timed"
    assert 7000 < way.cost.seconds_waited <= 7200
    await cluster.api.delete("pods", pod["metadata"]["name"], grace=0)
    await cluster.wait_bound("next", 2)
