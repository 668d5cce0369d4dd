"""The samples that a scrape of the metrics shows."""

from prometheus_client.parser import text_string_to_metric_families

from topo_scheduler.observability.metrics import Metrics

Sample = tuple[str, tuple[tuple[str, str], ...]]


def samples(metrics: Metrics) -> dict[Sample, float]:
    """Return every sample of a scrape by name and labels, without the times of creation."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(metrics.exposition().decode())
        for sample in family.samples
        if not sample.name.endswith("_created")
    }
