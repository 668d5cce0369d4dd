"""Metrics. Labels are bounded: domains, levels and outcomes, never a pod or a job. One metric has a namespace label."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from topo_scheduler.state.decision import Decision

_FAST: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
_SCORES: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_SHARES: Final = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
"""What is not below the last bound has the best bandwidth, or nearly."""
_HOPS: Final = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
_RECOVERY: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
_SLOW: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)


@dataclass(frozen=True, slots=True)
class DomainState:
    """A domain at the time of a scrape, with ratios from 0 to 1. The whole cluster has level ``cluster``."""

    level: str
    path: str
    utilization: float
    fragmentation: float


@dataclass(frozen=True, slots=True)
class LinkLoad:
    """A link at the time of a scrape, in bit/s. ``capacity`` is None where unknown."""

    level: str
    path: str
    capacity: float | None
    reserved: float


Family = GaugeMetricFamily | CounterMetricFamily


@dataclass(frozen=True, slots=True)
class _Metric:
    """The metric of a field. With labels, the field maps their values to numbers."""

    name: str
    text: str
    labels: tuple[str, ...]
    counts: bool

    def family(self, value: Any) -> Family:
        """Return the samples for the value of the field."""
        family = (CounterMetricFamily if self.counts else GaugeMetricFamily)(self.name, self.text, labels=self.labels)
        for key, number in value.items() if self.labels else (((), value),):
            family.add_metric([str(part) for part in (key if isinstance(key, tuple) else (key,))], number)
        return family


def _gauge(name: str, text: str, *labels: str) -> Any:
    return _field(_Metric(name, text, labels, counts=False))


def _counter(name: str, text: str, *labels: str) -> Any:
    return _field(_Metric(name, text, labels, counts=True))


def _field(metric: _Metric) -> Any:
    metadata = {"metric": metric}
    return field(default_factory=dict, metadata=metadata) if metric.labels else field(default=0, metadata=metadata)


@dataclass(frozen=True, slots=True)
class WrittenCounts:
    """Written data of the record and the audit log so far; 0 where they are not configured."""

    record_bytes: int = _counter("topology_scheduler_record_bytes", "Compressed bytes of the record.")
    record_calls: int = _counter("topology_scheduler_record_calls", "Calls of the engine that were recorded.")
    audit_lines: int = _counter("topology_scheduler_audit_lines", "Lines of the audit log.")
    audit_dropped: int = _counter(
        "topology_scheduler_audit_lines_dropped", "Lines of the audit log that could not be written."
    )
    record_stopped: bool = _gauge("topology_scheduler_record_stopped", "1 if recording stopped after a failure.")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The values at a scrape, in the order in which they are exposed. ``shares`` are from 0 to 1.

    Members of ``largest_gangs`` are ``node`` or ``typical``. Code 0 of ``api_requests`` means no answer.
    """

    domains: Iterable[DomainState] = ()
    links: Iterable[LinkLoad] = ()
    unknown_links: Mapping[str, int] = _gauge(
        "topology_scheduler_links_of_unknown_capacity",
        "Links that are not limited because their capacity is unknown; level node: networks of nodes.",
        "level",
    )
    largest_gangs: Mapping[tuple[str, str, str], int] = _gauge(
        "topology_scheduler_largest_gang_gpus",
        "GPUs of the largest gang that would fit into one domain of a level now, of whole nodes or of typical members.",
        "level",
        "model",
        "member",
    )
    stranded_gpus: Mapping[str, int] = _gauge(
        "topology_scheduler_stranded_gpus",
        "Free GPUs on nodes that fit neither a whole-node member nor a typical one.",
        "model",
    )
    gpu_allocation: float = _gauge("topology_gpu_allocation_ratio", "Share of all GPUs in use.")
    nodes: int = _gauge("topology_scheduler_nodes", "Nodes known.")
    unlabelled_nodes: int = _gauge(
        "topology_scheduler_unlabelled_nodes", "Nodes whose labels do not give their position."
    )
    unlabelled_gpu_nodes: int = _gauge(
        "topology_scheduler_unlabelled_gpu_nodes",
        "Nodes with GPUs whose labels do not give their position: gangs there are placed without topology.",
    )
    leaves_above_limits: Mapping[str, int] = _gauge(
        "topology_scheduler_leaves_above_limit",
        "Leaves larger than a limit per leaf: gangs that fit into one leaf are spread over several.",
        "limit",
    )
    oversubscribed_nodes: int = _gauge(
        "topology_scheduler_oversubscribed_nodes", "Nodes whose pods request more than the node has."
    )
    admission_backoff_classes: int = _gauge(
        "topology_scheduler_admission_backoff_classes",
        "Classes of pods in backoff, because the API server rejected a Binding. A class has one namespace.",
    )
    reservations: int = _gauge("topology_scheduler_reservations", "Workloads with a reservation.")
    reserved_gpus: int = _gauge(
        "topology_scheduler_reserved_gpus",
        "GPUs reserved for pending workloads, including those that other pods still use.",
    )
    migrations: int = _gauge("topology_scheduler_migrations", "Migrations that have not ended.")
    spares: Mapping[tuple[str, str], int] = _gauge(
        "topology_scheduler_spare_nodes",
        "Spare nodes of a leaf, kept for recovery: wanted, free of pods with GPUs, or lent to pods that the scheduler"
        " would evict. On all other wanted nodes GPUs are still in use.",
        "domain",
        "state",
    )
    devices: Mapping[tuple[str, str, str], int] = _gauge(
        "topology_scheduler_devices",
        "Devices of ResourceSlices; profile of a partition, such as a MIG instance, or whole. A blocked one overlaps"
        " allocated partitions; an unavailable one has a taint. Also MIG instances of NVIDIA's device plugin: driver"
        " nvidia.com, allocated or free. At most 64 pairs of driver and profile, then other.",
        "driver",
        "profile",
        "state",
    )
    partition_fragmentation: Mapping[tuple[str, str], float] = _gauge(
        "topology_scheduler_partition_fragmentation_ratio",
        "Share of the free memory slices of partitionable devices, such as GPUs with MIG, that no instance of a profile"
        " can use now; by the counters of ResourceSlices. It is unknown for MIG instances of a device plugin.",
        "driver",
        "profile",
    )
    device_problems: Mapping[str, int] = _gauge(
        "topology_scheduler_device_problems",
        "Problems of ResourceSlices and of the use of devices, which the log and the command topology name.",
        "kind",
    )
    binds_in_flight: int = _gauge("topology_scheduler_binds_in_flight", "Bindings without a known outcome.")
    leading: bool = _gauge("topology_scheduler_leader", "1 while this replica leads.")
    plugin_threads: int = _gauge(
        "topology_scheduler_plugin_threads_lost", "Threads of plugins that took too long and could not be ended."
    )
    configuration_refused: bool = _gauge(
        "topology_scheduler_configuration_refused",
        "1 while the configuration on disk is refused and an earlier one is in effect.",
    )
    pending: Mapping[str, int] = _gauge("topology_scheduler_pending_pods", "Pending pods, by queue.", "queue")
    longest_wait: Mapping[str, float] = _gauge(
        "topology_scheduler_longest_wait_seconds",
        "Time since the longest pending pod was first seen, by queue.",
        "queue",
    )
    shares: Mapping[str, float] = _gauge(
        "topology_scheduler_dominant_share_ratio",
        "Largest of a namespace's shares of all GPUs, CPU and memory; of namespaces with pods of this scheduler.",
        "namespace",
    )
    staleness: Mapping[str, float] = _gauge(
        "topology_scheduler_watch_staleness_seconds", "Time since a watch last received anything.", "resource"
    )
    api_requests: Mapping[tuple[str, int], int] = _counter(
        "topology_scheduler_api_requests", "Requests to the API server; code 0: no answer.", "verb", "code"
    )
    api_bytes: int = _counter("topology_scheduler_api_received_bytes", "Bytes read from the API server.")
    events: Mapping[str, int] = _counter("topology_scheduler_events", "Events by result.", "result")
    written: WrittenCounts = WrittenCounts()


class Metrics:
    """All metrics of one daemon, in its own registry."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self.registry = CollectorRegistry()
        self.latency = self._histogram(
            "topology_scheduler_latency_seconds", "From the first sight of a pending pod until it is bound.", _SLOW
        )
        self.placement = self._histogram(
            "topology_scheduler_placement_duration_seconds", "Time to decide on one workload.", _FAST
        )
        self.bind = self._histogram(
            "topology_scheduler_bind_duration_seconds", "Time of one Binding, including retries.", _SLOW, ("outcome",)
        )
        self.decisions = Counter(
            "topology_placement_decisions", "Decisions by verdict.", ("verdict",), registry=self.registry
        )
        self.gang_score = self._histogram(
            "topology_scheduler_gang_score",
            "Score of placed gangs from 0 to 1, by the innermost level of which one domain holds them.",
            _SCORES,
            ("level",),
        )
        self.gang_hops = self._histogram(
            "topology_scheduler_gang_hops",
            "Mean hops between two members of placed gangs, by the innermost level of which one domain holds them.",
            _HOPS,
            ("level",),
        )
        self.gpu_bandwidth = self._histogram(
            "topology_scheduler_gpu_bandwidth_ratio",
            "Share of the ring bandwidth of an empty node that the GPUs of placed pods get, by the number of GPUs of a"
            " pod. The choice is exact, or predicted where a device plugin makes it. Pods whose GPUs or"
            " links are not known are left out.",
            _SHARES,
            ("gpus", "choice"),
        )
        self.plugin_calls = self._histogram(
            "topology_scheduler_plugin_duration_seconds", "Time of one call of a plugin.", _FAST, ("plugin", "point")
        )
        self.plugin_errors = Counter(
            "topology_scheduler_plugin_errors",
            "Calls of plugins that failed, including those not made because the plugin is disabled.",
            ("plugin", "point", "reason"),
            registry=self.registry,
        )
        self.workload_failures = Counter(
            "topology_scheduler_workload_failures",
            "Workloads and objects that failed or exceeded a budget. Scheduling of all others continues.",
            ("phase", "kind"),
            registry=self.registry,
        )
        self.preempted = Counter(
            "topology_scheduler_preemption_victims",
            "Evictions of pods for workloads of higher priority, by outcome.",
            ("outcome",),
            registry=self.registry,
        )
        self.recovery = self._histogram(
            "topology_recovery_duration_seconds",
            "Time of a Migration, from the node failure, the request or the start of the pending time that caused it.",
            _RECOVERY,
            ("cause", "outcome"),
        )
        self.recovery_phase = self._histogram(
            "topology_scheduler_recovery_duration_seconds", "Time of one phase of a Migration.", _RECOVERY, ("phase",)
        )
        self.recovery_evictions = Counter(
            "topology_scheduler_recovery_evictions",
            "Evictions for Migrations, by outcome.",
            ("outcome",),
            registry=self.registry,
        )
        self.kernels = Gauge(
            "topology_scheduler_kernel_warmup_seconds",
            "Time to compile or load every kernel.",
            registry=self.registry,
        )
        self.registry.register(_AtScrape(snapshot))

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], labels: tuple[str, ...] = ()) -> Histogram:
        return Histogram(name, text, labels, buckets=buckets, registry=self.registry)

    def decided(self, decision: Decision, seconds: float) -> None:
        """Count a decision."""
        self.decisions.labels(decision.verdict.value).inc()
        self.placement.observe(seconds)
        if decision.quality is not None and decision.score is not None:
            level = decision.quality.level
            self.gang_score.labels(level).observe(decision.score.total / 1000)
            self.gang_hops.labels(level).observe(decision.quality.mean_hops / 1000)

    def gpus_chosen(self, gpus: int, share: float, *, predicted: bool) -> None:
        """Count a pod with several GPUs that gets this share of the bandwidth of an empty node, from 0 to 1."""
        self.gpu_bandwidth.labels(str(gpus), "predicted" if predicted else "exact").observe(share)

    def expect_failures(self, phases: Iterable[str], kind: str) -> None:
        """Show counters of failures at 0: Prometheus sees no increase in a counter that appears with its first one."""
        for phase in phases:
            self.workload_failures.labels(phase, kind)

    def bound(self, outcome: str, seconds: float) -> None:
        """Count a Binding with a known outcome."""
        self.bind.labels(outcome).observe(seconds)

    def plugin_called(self, plugin: str, point: str, seconds: float) -> None:
        """Count a call of a plugin that ended or was abandoned."""
        self.plugin_calls.labels(plugin, point).observe(seconds)

    def plugin_failed(self, plugin: str, point: str, reason: str) -> None:
        """Count a call of a plugin that failed."""
        self.plugin_errors.labels(plugin, point, reason).inc()

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class _AtScrape(Collector):
    """Gauges that are computed at each scrape, because their state changes too often to copy it at each change."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot

    def describe(self) -> Iterator[Family]:
        return _families(Snapshot())

    def collect(self) -> Iterator[Family]:
        return _families(self._snapshot())


def _families(snapshot: Snapshot) -> Iterator[Family]:
    yield from _domains(snapshot.domains)
    yield from _links(snapshot.links)
    for values in (snapshot, snapshot.written):
        for item in fields(values):
            if "metric" in item.metadata:
                yield item.metadata["metric"].family(getattr(values, item.name))


def _domains(domains: Iterable[DomainState]) -> Iterator[Family]:
    utilization = GaugeMetricFamily(
        "topology_domain_utilization_ratio", "Share of a domain's GPUs in use.", labels=("level", "domain")
    )
    fragmentation = GaugeMetricFamily(
        "topology_scheduler_domain_fragmentation_ratio",
        "1 - largest gang of whole nodes that fits in a domain / its free GPUs.",
        labels=("level", "domain"),
    )
    for domain in domains:
        utilization.add_metric((domain.level, domain.path), domain.utilization)
        fragmentation.add_metric((domain.level, domain.path), domain.fragmentation)
    yield utilization
    yield fragmentation


def _links(links: Iterable[LinkLoad]) -> Iterator[Family]:
    names = ("level", "domain")
    capacity = GaugeMetricFamily(
        "topology_scheduler_link_capacity_bits_per_second",
        "Capacity of a domain's uplink in each direction; level node: the networks of a leaf's nodes together."
        " Links of unknown capacity are left out.",
        labels=names,
    )
    reserved = GaugeMetricFamily(
        "topology_scheduler_link_reserved_bits_per_second",
        "Bandwidth of a link that gangs have reserved.",
        labels=names,
    )
    for link in links:
        if link.capacity is not None:
            capacity.add_metric((link.level, link.path), link.capacity)
        reserved.add_metric((link.level, link.path), link.reserved)
    yield capacity
    yield reserved
