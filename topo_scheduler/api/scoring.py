"""The fields that both configuration kinds take under ``spec``: weights of the score, and the size rule."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated

from pydantic import Field, model_validator

from topo_scheduler.api.annotations import Enforcement
from topo_scheduler.api.models import Model, Share


class ScoringWeights(Model):
    """Weights of the parts of the score, each from 0 to 1. Only their ratios matter."""

    resource_availability: Share = 0.4
    """Free share of the common domain after the placement."""
    topology_alignment: Share = 0.3
    """1 at the lowest level and fewest leaves, less beyond; a preferred domain counts here."""
    domain_utilization: Share = 0.2
    """How full the leaves are: good when consolidated, bad when distributed, judged by distance from the mean
    when balanced."""
    historical_performance: Share = 0.1
    """How placements in these leaves went lately."""
    plugins: dict[str, Share] = Field(default_factory=dict)
    """Weights of the scores of plugins, by name of the score, in place of those their plugins chose."""

    @model_validator(mode="after")
    def _some(self) -> "ScoringWeights":
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
        """Return the weights of the scores of plugins in thousandths, in the order of their defaults."""
        return [round(Fraction(str(self.plugins.get(name, weight))) * 1000) for name, weight in defaults.items()]


class TopologyConstraints(Model):
    """The size rule: how a gang may spread over leaves."""

    enforcement: Enforcement = Enforcement.REQUIRED
    """``required``: a gang waits until the fewest leaves that could hold it have room. ``preferred``: it takes the
    next best spread when they have not."""
    max_nodes_per_leaf: Annotated[int, Field(ge=1)] | None = None
    """Most nodes of one leaf a gang may use; none by default."""
    max_gpus_per_leaf: Annotated[int, Field(ge=1)] | None = Field(default=None, alias="maxGPUsPerLeaf")
    """Most GPUs of one leaf a gang may use; none by default."""


class SharedSpec(Model):
    """Fields of a TopologySchedulerConfig that may also stand here. Reloaded while running."""

    scoring_weights: ScoringWeights = ScoringWeights.defaults()
    topology_constraints: TopologyConstraints = TopologyConstraints.defaults()
