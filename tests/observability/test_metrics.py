"""Each metric carries its own figure: a family that showed another's, or none, is noticed here."""

from dataclasses import fields
from unittest.mock import Mock

import msgspec

from tests.helpers import make_node
from tests.observability.executors import decision, executor
from tests.observability.samples import Sample, samples
from tests.scheduling.driver import Driver
from topo_scheduler.api.config import Configuration
from topo_scheduler.daemon import Daemon
from topo_scheduler.observability.metrics import DomainState, LinkLoad, Metrics, Snapshot, WrittenCounts
from topo_scheduler.scheduling.barrier import Activity
from topo_scheduler.scheduling.instructions import CountFailure, RecordDecision
from topo_scheduler.state.decision import Quality, ScoreParts, Seat, Verdict

EVERYTHING = Snapshot(
    domains=[DomainState("leaf", "s1/l1", 0.11, 0.13), DomainState("cluster", "", 0.17, 0.19)],
    links=[LinkLoad("spine", "s1", 2300.0, 2900.0), LinkLoad("leaf", "s1/l1", None, 3100.0)],
    unknown_links={"node": 37},
    gpu_allocation=0.41,
    largest_gangs={("leaf", "H100", "node"): 43, ("spine", "H100", "typical"): 47},
    stranded_gpus={"H100": 53},
    pending={"active": 59, "unschedulable": 61},
    longest_wait={"active": 67.5},
    shares={"team-a": 0.71},
    staleness={"pods": 73.25},
    nodes=79,
    unlabelled_nodes=83,
    unlabelled_gpu_nodes=183,
    leaves_above_limits={"maxNodesPerLeaf": 31},
    oversubscribed_nodes=89,
    admission_backoff_classes=97,
    reservations=101,
    reserved_gpus=103,
    binds_in_flight=107,
    migrations=109,
    spares={("s1/l1", "wanted"): 113, ("s1/l1", "free"): 127},
    devices={("gpu.example.com", "1g.10gb", "free"): 181, ("gpu.example.com", "whole", "allocated"): 191},
    partition_fragmentation={("gpu.example.com", "1g.10gb"): 0.23},
    device_problems={"incomplete": 193},
    leading=True,
    api_requests={("GET", 200): 131, ("POST", 0): 137},
    api_bytes=139,
    events={"posted": 149, "dropped": 151},
    plugin_threads=157,
    configuration_refused=True,
    written=WrittenCounts(record_bytes=163, record_calls=167, record_stopped=True, audit_lines=173, audit_dropped=179),
)
"""A snapshot in which no two figures are alike."""

SHOWN: dict[Sample, float] = {
    ("topology_domain_utilization_ratio", (("domain", "s1/l1"), ("level", "leaf"))): 0.11,
    ("topology_domain_utilization_ratio", (("domain", ""), ("level", "cluster"))): 0.17,
    ("topology_scheduler_domain_fragmentation_ratio", (("domain", "s1/l1"), ("level", "leaf"))): 0.13,
    ("topology_scheduler_domain_fragmentation_ratio", (("domain", ""), ("level", "cluster"))): 0.19,
    ("topology_scheduler_link_capacity_bits_per_second", (("domain", "s1"), ("level", "spine"))): 2300,
    ("topology_scheduler_link_reserved_bits_per_second", (("domain", "s1"), ("level", "spine"))): 2900,
    ("topology_scheduler_link_reserved_bits_per_second", (("domain", "s1/l1"), ("level", "leaf"))): 3100,
    ("topology_scheduler_links_of_unknown_capacity", (("level", "node"),)): 37,
    (
        "topology_scheduler_devices",
        (("driver", "gpu.example.com"), ("profile", "1g.10gb"), ("state", "free")),
    ): 181,
    (
        "topology_scheduler_devices",
        (("driver", "gpu.example.com"), ("profile", "whole"), ("state", "allocated")),
    ): 191,
    (
        "topology_scheduler_partition_fragmentation_ratio",
        (("driver", "gpu.example.com"), ("profile", "1g.10gb")),
    ): 0.23,
    ("topology_scheduler_device_problems", (("kind", "incomplete"),)): 193,
    ("topology_gpu_allocation_ratio", ()): 0.41,
    (
        "topology_scheduler_largest_gang_gpus",
        (("level", "leaf"), ("member", "node"), ("model", "H100")),
    ): 43,
    (
        "topology_scheduler_largest_gang_gpus",
        (("level", "spine"), ("member", "typical"), ("model", "H100")),
    ): 47,
    ("topology_scheduler_stranded_gpus", (("model", "H100"),)): 53,
    ("topology_scheduler_pending_pods", (("queue", "active"),)): 59,
    ("topology_scheduler_pending_pods", (("queue", "unschedulable"),)): 61,
    ("topology_scheduler_longest_wait_seconds", (("queue", "active"),)): 67.5,
    ("topology_scheduler_dominant_share_ratio", (("namespace", "team-a"),)): 0.71,
    ("topology_scheduler_watch_staleness_seconds", (("resource", "pods"),)): 73.25,
    ("topology_scheduler_nodes", ()): 79,
    ("topology_scheduler_unlabelled_nodes", ()): 83,
    ("topology_scheduler_unlabelled_gpu_nodes", ()): 183,
    ("topology_scheduler_leaves_above_limit", (("limit", "maxNodesPerLeaf"),)): 31,
    ("topology_scheduler_oversubscribed_nodes", ()): 89,
    ("topology_scheduler_admission_backoff_classes", ()): 97,
    ("topology_scheduler_reservations", ()): 101,
    ("topology_scheduler_reserved_gpus", ()): 103,
    ("topology_scheduler_binds_in_flight", ()): 107,
    ("topology_scheduler_migrations", ()): 109,
    ("topology_scheduler_spare_nodes", (("domain", "s1/l1"), ("state", "wanted"))): 113,
    ("topology_scheduler_spare_nodes", (("domain", "s1/l1"), ("state", "free"))): 127,
    ("topology_scheduler_leader", ()): 1,
    ("topology_scheduler_api_requests_total", (("code", "200"), ("verb", "GET"))): 131,
    ("topology_scheduler_api_requests_total", (("code", "0"), ("verb", "POST"))): 137,
    ("topology_scheduler_api_received_bytes_total", ()): 139,
    ("topology_scheduler_events_total", (("result", "posted"),)): 149,
    ("topology_scheduler_events_total", (("result", "dropped"),)): 151,
    ("topology_scheduler_plugin_threads_lost", ()): 157,
    ("topology_scheduler_configuration_refused", ()): 1,
    ("topology_scheduler_record_bytes_total", ()): 163,
    ("topology_scheduler_record_calls_total", ()): 167,
    ("topology_scheduler_record_stopped", ()): 1,
    ("topology_scheduler_audit_lines_total", ()): 173,
    ("topology_scheduler_audit_lines_dropped_total", ()): 179,
}
COUNTED = (
    "topology_scheduler_latency_seconds",
    "topology_scheduler_placement_duration_seconds",
    "topology_scheduler_bind_duration_seconds",
    "topology_placement_decisions",
    "topology_scheduler_gang_score",
    "topology_scheduler_gang_hops",
    "topology_scheduler_gpu_bandwidth_ratio",
    "topology_scheduler_plugin_duration_seconds",
    "topology_scheduler_plugin_errors",
    "topology_scheduler_preemption_victims",
    "topology_recovery_duration_seconds",
    "topology_scheduler_recovery_duration_seconds",
    "topology_scheduler_recovery_evictions",
    "topology_scheduler_kernel_warmup_seconds",
)
"""Families that are counted as things happen."""


def test_each_figure_of_a_snapshot_is_shown_under_its_own_name() -> None:
    seen = samples(Metrics(lambda: EVERYTHING))
    shown = {key: value for key, value in seen.items() if not key[0].startswith(COUNTED)}
    assert shown == SHOWN


def test_the_snapshot_above_leaves_nothing_out() -> None:
    """A field that is added later needs a figure here, or its metric would be shown unchecked."""
    empty = Snapshot()
    for snapshot, default in ((EVERYTHING, empty), (EVERYTHING.written, empty.written)):
        for field in fields(snapshot):
            assert getattr(snapshot, field.name) != getattr(default, field.name), field.name


def test_a_follower_shows_that_it_does_not_lead() -> None:
    assert samples(Metrics(Snapshot))["topology_scheduler_leader", ()] == 0


def test_the_bandwidth_that_pods_get_is_counted_by_size_and_choice() -> None:
    metrics = Metrics(Snapshot)
    for share in (0.5, 1.0):
        metrics.gpus_chosen(2, share, predicted=True)
    metrics.gpus_chosen(4, 0.25, predicted=False)
    seen, name = samples(metrics), "topology_scheduler_gpu_bandwidth_ratio"
    pairs, fours = (("choice", "predicted"), ("gpus", "2")), (("choice", "exact"), ("gpus", "4"))
    assert (seen[f"{name}_sum", pairs], seen[f"{name}_count", pairs]) == (1.5, 2)
    assert (seen[f"{name}_sum", fours], seen[f"{name}_count", fours]) == (0.25, 1)
    assert seen[f"{name}_bucket", (("choice", "predicted"), ("gpus", "2"), ("le", "0.99"))] == 1


def test_decisions_are_counted_by_verdict_with_their_duration_and_quality() -> None:
    metrics = Metrics(Snapshot)
    score = ScoreParts(availability=1, alignment=2, utilization=3, history=4, total=750)
    metrics.decided(decision(Verdict.UNSCHEDULABLE), 0.25)
    metrics.decided(decision(Verdict.PLACED, score, Quality(levels=1, level="leaf", most_hops=2, mean_hops=1500)), 0.5)
    seen = samples(metrics)
    assert seen["topology_placement_decisions_total", (("verdict", "unschedulable"),)] == 1
    assert seen["topology_placement_decisions_total", (("verdict", "placed"),)] == 1
    assert seen["topology_scheduler_placement_duration_seconds_sum", ()] == 0.75
    assert seen["topology_scheduler_placement_duration_seconds_count", ()] == 2
    assert seen["topology_scheduler_gang_score_sum", (("level", "leaf"),)] == 0.75
    assert seen["topology_scheduler_gang_hops_sum", (("level", "leaf"),)] == 1.5


def test_binds_and_plugins_are_counted() -> None:
    metrics = Metrics(Snapshot)
    metrics.bound("rejected", 1.5)
    metrics.plugin_called("power", "score", 0.5)
    metrics.plugin_failed("power", "score", "timeout")
    seen = samples(metrics)
    assert seen["topology_scheduler_bind_duration_seconds_sum", (("outcome", "rejected"),)] == 1.5
    point = (("plugin", "power"), ("point", "score"))
    assert seen["topology_scheduler_plugin_duration_seconds_sum", point] == 0.5
    assert seen["topology_scheduler_plugin_errors_total", (*point, ("reason", "timeout"))] == 1


def test_the_first_internal_error_is_an_increase_of_a_counter_that_was_scraped_before() -> None:
    """Otherwise the alert on internal errors would miss it: `increase` of a series that begins at 1 is 0."""
    (family,) = Daemon(Configuration(), Mock()).metrics.workload_failures.collect()
    totals = [sample for sample in family.samples if sample.name.endswith("_total")]
    shown = {(sample.labels["phase"], sample.labels["kind"]): sample.value for sample in totals}
    assert shown == {(activity, "fault"): 0.0 for activity in Activity}


def test_what_the_engine_announces_is_counted_as_it_says() -> None:
    metrics = Metrics(Snapshot)
    announced = executor(metrics)
    announced.carry_out(RecordDecision(decision(Verdict.UNSCHEDULABLE), 0.25))
    announced.carry_out(CountFailure("deciding", "time"))
    seen = samples(metrics)
    assert seen["topology_placement_decisions_total", (("verdict", "unschedulable"),)] == 1
    assert seen["topology_scheduler_placement_duration_seconds_sum", ()] == 0.25
    assert seen["topology_scheduler_workload_failures_total", (("kind", "time"), ("phase", "deciding"))] == 1


def test_the_gpus_of_placed_pods_are_counted_with_the_links_of_their_nodes() -> None:
    engine = Driver([make_node("mesh", "s1/l1", gpus=8, model="Tesla-V100-SXM2-16GB")]).engine
    row = engine.world.nodes.row_of["mesh"]
    seats = [
        Seat(f"p{devices}", "default", "p", row, "mesh", 0, "", devices=devices, predicted=True)
        for devices in ((0, 3), (1, 5), (4, 5), ())
    ]
    metrics = Metrics(Snapshot)
    placed = msgspec.structs.replace(decision(Verdict.PLACED), seats=tuple(seats))
    executor(metrics, engine).carry_out(RecordDecision(placed, 0.25))
    pairs, seen = (("choice", "predicted"), ("gpus", "2")), samples(metrics)
    assert seen["topology_scheduler_gpu_bandwidth_ratio_count", pairs] == 3
    assert seen["topology_scheduler_gpu_bandwidth_ratio_sum", pairs] == 2.5  # two links, two links, and one
