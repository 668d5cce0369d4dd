"""What operators see: health, metrics, logs."""

import logging

import pytest

from . import objects
from .cluster import Cluster, leaves_of
from .conftest import StartReplica
from .replica import Replica, configured

METRICS = (
    "topology_scheduler_latency_seconds",
    "topology_scheduler_placement_duration_seconds",
    "topology_domain_utilization_ratio",
    "topology_gpu_allocation_ratio",
    "topology_placement_decisions_total",
    "topology_scheduler_domain_fragmentation_ratio",
    "topology_scheduler_bind_duration_seconds",
    "topology_scheduler_watch_staleness_seconds",
    "topology_scheduler_pending_pods",
)


async def test_metrics_report_what_happened_and_name_no_pods(cluster: Cluster, daemon: Replica) -> None:
    await cluster.add_fabric({"s1": [4, 4]})
    await cluster.apply(objects.gang("distinctive", 4), objects.pod("peculiar", 8, {"gpu-model": "H300"}))
    await cluster.wait_bound("distinctive", 4)
    (waiting,) = await cluster.wait_pods("peculiar", 1)
    await cluster.wait_note(waiting, "0/8 nodes are available")
    _, text = await daemon.get("/metrics")
    for name in METRICS:
        assert f"# TYPE {name.removesuffix('_total')}" in text or f"# TYPE {name}" in text, name
    assert "distinctive" not in text and "peculiar" not in text and waiting["metadata"]["uid"] not in text
    assert await daemon.metric("topology_scheduler_latency_seconds_count") == 4
    assert await daemon.metric("topology_placement_decisions_total", verdict="placed") == 1
    assert await daemon.metric("topology_placement_decisions_total", verdict="unschedulable") >= 1
    assert await daemon.metric("topology_gpu_allocation_ratio") == 0.5
    assert await daemon.metric("topology_scheduler_pending_pods") == 1
    assert await daemon.metric("topology_scheduler_dominant_share_ratio", namespace="default") == 0.5
    assert await daemon.metric("topology_scheduler_longest_wait_seconds", queue="unschedulable") > 0
    assert await daemon.metric("topology_scheduler_bind_duration_seconds_count", outcome="bound") == 4
    assert await daemon.metric("topology_scheduler_nodes") == 8
    staleness = [line for line in text.splitlines() if line.startswith("topology_scheduler_watch_staleness_seconds{")]
    assert len(staleness) >= 9 and all(float(line.rpartition(" ")[2]) < 120 for line in staleness)


async def test_health(cluster: Cluster, daemon: Replica) -> None:
    for path in ("/livez", "/healthz", "/readyz"):
        assert await daemon.get(path) == (200, "ok")
    status, text = await daemon.get("/readyz?verbose")
    assert status == 200 and "[+]kernels ok" in text and "[+]caches ok" in text


async def test_it_is_not_ready_before_its_caches_are_filled(cluster: Cluster, start_replica: StartReplica) -> None:
    """And alive all the while: a restart would not help."""
    if cluster.embedded:
        from topo_scheduler.simulation.apiserver import Refuse

        rule = cluster.server.faults.add(Refuse(503), verb="list", resource="nodes")
        replica = await start_replica(configured(), wait=False)
        await replica.daemon.wait_served()

        async def only_one_lacks() -> bool:
            return (await replica.get("/readyz"))[1].startswith("[+]kernels ok\n[-]caches failed: nodes\n")

        await cluster.wait_until(only_one_lacks, 20, "readyz names the cache that is not filled")
        assert (await replica.get("/livez"))[0] == 200
        cluster.server.faults.remove(rule)
    else:
        replica = await start_replica(configured(), wait=False)
        await replica.daemon.wait_served()
    await replica.wait_leading(60)
    assert (await replica.get("/readyz"))[0] == 200


MOST_LINES_AT_START = 8


async def test_a_start_is_logged_in_few_lines(
    cluster: Cluster, start_replica: StartReplica, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "topo_scheduler")
    await cluster.add_fabric({"s1": [4]})
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "guard", "namespace": "default"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}},
    }
    kinds = ("Deployment", "ReplicaSet", "StatefulSet")
    others = [objects.replicated(kind, kind.lower(), 1, 0, scheduler="another") for kind in kinds]
    await cluster.apply(budget, *others, objects.job("batch", gpus=0, scheduler="another"))
    for kind in (*kinds, "batch"):
        await cluster.wait_pods(kind.lower(), 1)
    await start_replica()
    await cluster.apply(objects.pod("first", 1))
    await cluster.wait_bound("first", 1)
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("topo_scheduler")]
    lines = lines[: next(n for n, line in enumerate(lines) if "default/first" in line)]
    assert 1 <= len(lines) <= MOST_LINES_AT_START, lines
    assert len(set(lines)) == len(lines), "nothing is said twice"
    assert not any("broke off" in line or "listed" in line for line in lines), lines
    (filled,) = [record for record in caplog.records if record.getMessage() == "caches filled, scheduling"]
    assert (filled.__dict__["nodes"], filled.__dict__["pods"]) == (4, 4)


async def test_one_log_line_a_decision(cluster: Cluster, daemon: Replica, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "topo_scheduler.decisions")
    await cluster.add_fabric({"s1": [4]})
    await cluster.apply(objects.gang("team", 4))
    await cluster.wait_bound("team", 4)
    (line,) = [record for record in caplog.records if record.name == "topo_scheduler.decisions"]
    fields = line.__dict__
    assert fields["workload"] == "default/team" and fields["verdict"] == "placed" and fields["members"] == 4
    assert fields["leaves"] == ["s1/l1"] and len(fields["nodes"]) == 4


async def test_gauges_agree_with_the_objects_of_the_api(cluster: Cluster, daemon: Replica) -> None:
    """Two leaves of four nodes, one node without a place in the fabric that has less than its pods hold."""
    await cluster.add_fabric({"s1": [4, 4]})
    await cluster.add_nodes([objects.node("lost", gpus=8, model="H100")])
    cluster.overbooked_by_others.add("lost")
    await cluster.apply(objects.pod("big", 4, scheduler="another", cpu="60"))
    await cluster.api.bind("big", "lost")
    await cluster.api.patch("nodes", "lost", {"status": {"allocatable": {"cpu": "32"}}}, subresource="status")
    await cluster.apply(objects.gang("team", 4, annotations={"network-bandwidth": "200Gb"}))
    full = leaves_of(await cluster.wait_bound("team", 4))
    await cluster.apply(objects.pod("small", 4))
    (small,) = await cluster.wait_bound("small", 1)
    await cluster.apply(objects.gang("huge", 4, gpus=8))
    (waiting, *_) = await cluster.wait_pods("huge", 4)
    await cluster.wait_note(waiting, "0/9 nodes are available")

    assert full == {"s1-l1"} and leaves_of([small]) == {"s1-l2"}
    gauges = {
        ("topology_scheduler_nodes",): 9,
        ("topology_scheduler_unlabelled_nodes",): 1,
        ("topology_scheduler_unlabelled_gpu_nodes",): 1,
        ("topology_scheduler_oversubscribed_nodes",): 1,
        ("topology_gpu_allocation_ratio",): (4 * 8 + 4 + 4) / 72,
        ("topology_domain_utilization_ratio", "level=cluster"): (4 * 8 + 4 + 4) / 72,
        ("topology_domain_utilization_ratio", "level=leaf", "domain=s1/l1"): 1.0,
        ("topology_domain_utilization_ratio", "level=leaf", "domain=s1/l2"): 4 / 32,
        ("topology_domain_utilization_ratio", "level=spine", "domain=s1"): 36 / 64,
        # Of 28 free GPUs in the second leaf a gang of whole nodes can have 24.
        ("topology_scheduler_domain_fragmentation_ratio", "level=leaf", "domain=s1/l2"): 1 - 24 / 28,
        ("topology_scheduler_domain_fragmentation_ratio", "level=leaf", "domain=s1/l1"): 0.0,
        ("topology_scheduler_largest_gang_gpus", "level=leaf", "model=H100", "member=node"): 24,
        ("topology_scheduler_largest_gang_gpus", "level=spine", "model=H100", "member=node"): 24,
        ("topology_scheduler_stranded_gpus", "model=H100"): 4 + 4,
        ("topology_scheduler_link_capacity_bits_per_second", "level=node", "domain=s1/l1"): 4 * 400e9,
        ("topology_scheduler_link_reserved_bits_per_second", "level=node", "domain=s1/l1"): 4 * 200e9,
        ("topology_scheduler_link_reserved_bits_per_second", "level=node", "domain=s1/l2"): 0,
        ("topology_scheduler_link_reserved_bits_per_second", "level=leaf", "domain=s1/l1"): 0,
        ("topology_scheduler_dominant_share_ratio", "namespace=default"): (4 * 8 + 4 + 4) / 72,
        ("topology_scheduler_leader",): 1,
        ("topology_scheduler_binds_in_flight",): 0,
        ("topology_scheduler_migrations",): 0,
        ("topology_scheduler_reservations",): 0,
        ("topology_scheduler_admission_backoff_classes",): 0,
        ("topology_scheduler_plugin_threads_lost",): 0,
        ("topology_scheduler_record_stopped",): 0,
        ("topology_scheduler_configuration_refused",): 0,
        ("topology_scheduler_pending_pods", "queue=unschedulable"): 4,
        ("topology_scheduler_pending_pods", "queue=active"): 0,
    }
    seen = {key: await daemon.metric(key[0], **dict(label.split("=", 1) for label in key[1:])) for key in gauges}
    assert seen == pytest.approx(gauges, rel=1e-4)
    assert await daemon.metric("topology_scheduler_links_of_unknown_capacity", level="leaf") == 3
    warmth = daemon.daemon.warmth
    assert warmth is not None and 0 < warmth.seconds < 600
    assert await daemon.metric("topology_scheduler_kernel_warmup_seconds") == pytest.approx(warmth.seconds)


async def test_mig_instances_of_the_device_plugin_are_counted(cluster: Cluster, daemon: Replica) -> None:
    model = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb"}
    await cluster.add_nodes([objects.node("split", spine="s1", leaf="l1", gpus=7, labels=model)])
    await cluster.apply(objects.pod("notebook", 2))
    await cluster.wait_bound("notebook", 1)
    labels = {"driver": "nvidia.com", "profile": "1g.10gb"}
    assert await daemon.metric("topology_scheduler_devices", state="allocated", **labels) == 2
    assert await daemon.metric("topology_scheduler_devices", state="free", **labels) == 5


async def test_requests_and_events_are_counted(cluster: Cluster, daemon: Replica) -> None:
    await cluster.add_fabric({"s1": [4]})
    binds = await daemon.metric("topology_scheduler_api_requests_total", verb="POST", code="201")
    received = await daemon.metric("topology_scheduler_api_received_bytes_total")
    await cluster.apply(objects.gang("team", 4))
    for pod in await cluster.wait_bound("team", 4):
        await cluster.wait_note(pod, "Successfully assigned", reason="Scheduled")
    assert await daemon.metric("topology_scheduler_events_total", result="posted") >= 4
    assert await daemon.metric("topology_scheduler_events_total", result="failed") == 0
    # Four Bindings and four events at least.
    assert await daemon.metric("topology_scheduler_api_requests_total", verb="POST", code="201") >= binds + 8
    assert await daemon.metric("topology_scheduler_api_received_bytes_total") > received
