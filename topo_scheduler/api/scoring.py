"""The fields that both configuration kinds have under ``spec``: weights of the score, and the fewest-leaves rule."""

from collections.abc import Mapping
from fractions import Fraction

from pydantic import Field, model_validator

from topo_scheduler.api.annotations import Enforcement
from topo_scheduler.api.models import Model, Share
from topo_scheduler.api.names import Count


class ScoringWeights(Model):
    """Weights of the parts of the score, each from 0 to 1. Only their ratios matter."""

    resource_availability: Share = 0.4
    """Weight of the free share of the common domain after the placement."""
    topology_alignment: Share = 0.3
    """Weight of the alignment: 1 for the innermost level and the fewest leaves, less otherwise. A preferred domain
    counts here."""
    domain_utilization: Share = 0.2
    """Weight of the utilisation of the leaves. `consolidated` prefers full leaves, `distributed` empty ones, and
    `balanced` leaves near the mean."""
    historical_performance: Share = 0.1
    """Weight of recent outcomes of placements in the leaves."""
    plugins: dict[str, Share] = Field(default_factory=dict)
    """Weights of plugin scores, by name of the score. They replace the defaults that plugins set."""

    @model_validator(mode="after")
    def _has_weight(self) -> "ScoringWeights":
        if not any(self.milli()):
            raise ValueError("at least one weight must be above 0.0005")
        return self

    def milli(self) -> tuple[int, int, int, int]:
        """Return the weights in thousandths, in the order of the fields."""
        return tuple(  # type: ignore[return-value]
            round(Fraction(str(weight)) * 1000)
            for weight in (
                self.resource_availability,
                self.topology_alignment,
                self.domain_utilization,
                self.historical_performance,
            )
        )

    def added_milli(self, defaults: Mapping[str, float]) -> list[int]:
        """Return the weights of plugin scores in thousandths, in the order of their defaults."""
        return [round(Fraction(str(self.plugins.get(name, weight))) * 1000) for name, weight in defaults.items()]


class TopologyConstraints(Model):
    """The fewest-leaves rule: over how many leaf switches a gang may spread."""

    enforcement: Enforcement = Enforcement.REQUIRED
    """``required``: a gang is placed on the fewest leaf switches that could hold it; otherwise it stays pending.
    ``preferred``: if these have no room, it gets the next best spread."""
    max_nodes_per_leaf: Count | None = None
    """Maximum nodes of one leaf that a gang may use; no limit by default."""
    max_gpus_per_leaf: Count | None = Field(default=None, alias="maxGPUsPerLeaf")
    """Maximum GPUs of one leaf that a gang may use; no limit by default."""


class SharedSpec(Model):
    """Fields of a TopologySchedulerConfig that may also be set here. Changes take effect while the process runs."""

    scoring_weights: ScoringWeights = ScoringWeights.defaults()
    topology_constraints: TopologyConstraints = TopologyConstraints.defaults()
