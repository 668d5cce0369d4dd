"""Configuration of the placement of single pods on GPUs."""

from typing import Annotated, Final

from pydantic import Field, field_validator, model_validator

from topo_scheduler.api.fractions import parse_fraction
from topo_scheduler.api.models import Model
from topo_scheduler.api.names import LabelValue
from topo_scheduler.api.quantity import QuantityError, parse_exact

FRAGMENTATION: Final = "fragmentation"
FGD: Final = "fgd"
"""The score that FGD (ATC 2023) published, for comparison."""
OFF: Final = "off"


class TypicalPod(Model):
    """A kind of pod that is common in the cluster."""

    cpu: str = "0"
    """CPU request of one pod, as in a pod spec."""
    gpus: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Whole GPUs of one pod."""
    gpu_fraction: str | None = None
    """Share of one GPU, e.g. `"0.5"`, instead of whole GPUs."""
    gpu_models: tuple[Annotated[LabelValue, Field(min_length=1)], ...] = ()
    """Acceptable GPU models; empty for any."""
    weight: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """Relative frequency of such pods."""

    @field_validator("cpu", mode="before")
    @classmethod
    def _cpu(cls, value: object) -> object:
        try:
            parse_exact(value, 1000)
        except (QuantityError, TypeError) as error:
            raise ValueError(str(error)) from None
        return str(value)

    @field_validator("gpu_fraction")
    @classmethod
    def _fraction(cls, value: str | None) -> str | None:
        if value is not None:
            parse_fraction(value)
        return value

    @model_validator(mode="after")
    def _has_one_size(self) -> "TypicalPod":
        if self.gpus and self.gpu_fraction is not None:
            raise ValueError("a pod asks for whole GPUs or for a share of one; give gpus or gpuFraction, not both")
        return self

    @property
    def share(self) -> int:
        """Thousandths of one GPU."""
        return parse_fraction(self.gpu_fraction) if self.gpu_fraction is not None else 0


class SmallPods(Model):
    """Placement of single pods on nodes with GPUs."""

    scoring: Annotated[str, Field(min_length=1, max_length=63)] | None = None
    """Score for single pods. ``fragmentation``: strand as few GPUs as possible for typical pods. ``fgd``: the same as
    published (FGD, ATC 2023), for comparison. ``off``: the score of gangs. Or the name of a plugin's score for single
    pods. The default is ``fragmentation``, or ``off`` if a plugin score has a weight."""
    typical_pods: Annotated[tuple[TypicalPod, ...], Field(max_length=128)] = ()
    """Typical pods of the cluster. By default the scheduler derives them from the pods that it sees."""
