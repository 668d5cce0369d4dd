"""Every replica in these tests records and is replayed; here with hundreds of gangs, failures, and two terms."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from topo_scheduler.api.config import Configuration
from topo_scheduler.api.recording import AuditLog, Recording
from topo_scheduler.simulation.apiserver import Refuse

from . import objects
from .cluster import ROOT, Cluster
from .conftest import StartReplica
from .replica import configured, replayed


def recording(directory: Path, audit: Path | None = None) -> Configuration:
    """A configuration that records in small segments."""
    base = configured()
    changes = {
        "record": Recording(directory=str(directory), segment_bytes=1 << 17),
        "audit_log": AuditLog(path=str(audit) if audit else ""),
    }
    return Configuration(base.scheduler.model_copy(update=changes), base.topology)


async def test_hundreds_of_gangs_with_failures(cluster: Cluster, start_replica: StartReplica, tmp_path: Path) -> None:
    """Binds refused, pods deleted in flight, a node that goes, a changed label: the record repeats all of it."""
    gangs = 200 if cluster.embedded else 60
    directory, audit = tmp_path / "record", tmp_path / "audit.jsonl"
    replica = await start_replica(recording(directory, audit))
    nodes = await cluster.add_fabric({"s1": [8, 8], "s2": [8, 8]})
    rule = None
    if cluster.embedded:
        replica.may_be_refused = True
        rule = cluster.server.faults.add(
            Refuse(403, message="not this one"), verb="create", resource="pods/binding", times=4
        )
    submitted = []
    for number in range(gangs):
        submitted.append(objects.gang(f"g{number}", 1 + number % 3, 2, run=0.2))
        if len(submitted) == 20:
            await cluster.apply(*submitted)
            submitted = []
        if number == gangs // 2:
            await cluster.api.delete("nodes", nodes[0])
            await cluster.label_node(nodes[1], {"topology.scheduler/leaf": "l2"})
    never, wrong = objects.pod("never", 8, {"gpu-model": "H300"}), objects.pod("wrong", 8, {"gpu-count": "x"})
    await cluster.apply(*submitted, never, wrong)
    for name in ("g0", f"g{gangs - 1}"):
        await cluster.wait_job_done(name, 120)
    if rule is not None:
        cluster.server.faults.remove(rule)
    (waiting,) = await cluster.wait_pods("never", 1)
    await cluster.wait_note(waiting, "nodes are available")

    async def all_decided() -> bool:
        return await replica.metric("topology_placement_decisions_total") >= gangs

    await cluster.wait_until(all_decided, 60, "a decision for each gang")
    decided = await replica.metric("topology_placement_decisions_total")
    recorded = await replica.metric("topology_scheduler_record_calls_total")
    assert await replica.metric("topology_scheduler_record_stopped") == 0
    await replica.stop()

    report = await asyncio.to_thread(replayed, replica)
    assert report.decisions >= decided >= gangs
    assert report.calls >= recorded > 0
    # In another process, whose strings have other hashes.
    command = [sys.executable, "-m", "topo_scheduler", "replay", str(directory), "-o", "json"]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["decisions"] == report.decisions

    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    asked = {pod["uid"] for line in lines if line["kind"] == "asked" for pod in line["pods"]}
    bound = {pod["uid"] for line in lines if line["kind"] == "bound" for pod in line["pods"]}
    assert bound <= asked
    assert all(line["node"] and line["pods"][0]["domain"] for line in lines if line["kind"] == "bound")
    assert any(line["kind"] == "refused" and line["pods"][0]["name"] == "wrong" for line in lines)
    assert any(line["kind"] == "decided" and line["verdict"] == "unschedulable" for line in lines)
    by_job = next(line for line in lines if line["kind"] == "asked" and line.get("workload") == "g1")["by"]
    assert by_job["owners"][0]["kind"] == "Job"
    if not cluster.embedded:  # which has no admission that fills it in
        assert by_job["serviceAccount"] == "default"
    if cluster.embedded:
        assert any(line["kind"] == "not-bound" and "not this one" in line["reason"] for line in lines)


async def test_a_second_scheduler_takes_the_directory_over(
    cluster: Cluster, start_replica: StartReplica, tmp_path: Path
) -> None:
    """One after the other: each starts from what the API server says, and so does its part of the record."""
    directory = tmp_path / "record"
    await cluster.add_fabric({"s1": [4]})
    for number in range(2):
        replica = await start_replica(recording(directory))
        await cluster.apply(objects.gang(f"team-{number}", 2))
        await cluster.wait_bound(f"team-{number}", 2)
        await (replica.kill() if number == 0 else replica.stop())
    report = await asyncio.to_thread(replayed, replica)
    assert report.files == 2
    assert report.decisions >= 2
