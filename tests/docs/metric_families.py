"""The metrics of the scheduler with their labels, read from the registry."""

from dataclasses import dataclass

from prometheus_client.metrics import MetricWrapperBase

from topo_scheduler.observability.metrics import Metrics, Snapshot


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """A metric under the name with which it is scraped."""

    name: str
    type: str
    labels: tuple[str, ...]
    meaning: str


def metric_families() -> list[MetricFamily]:
    """Return every metric."""
    metrics = Metrics(Snapshot)
    labelled = {item._name: item._labelnames for item in vars(metrics).values() if isinstance(item, MetricWrapperBase)}
    return [
        MetricFamily(
            family.name + ("_total" if family.type == "counter" else ""),
            family.type,
            tuple(labelled.get(family.name, getattr(family, "_labelnames", ()))),
            family.documentation,
        )
        for family in metrics.registry.collect()
    ]


def metric_names() -> set[str]:
    """Return the name of every metric as it is scraped."""
    return {family.name for family in metric_families()}
