"""How pods that are placed alone are spread over the GPUs."""

from typing import Annotated, Final

from pydantic import Field, field_validator, model_validator

from topo_scheduler.api.fractions import parse_fraction
from topo_scheduler.api.models import Model
from topo_scheduler.api.quantity import QuantityError, parse_exact

FRAGMENTATION: Final = "fragmentation"
FGD: Final = "fgd"
"""What FGD (ATC 2023) published, to compare with."""
OFF: Final = "off"


class TypicalPod(Model):
    """A kind of pod that the cluster is usually asked for."""

    cpu: str = "0"
    """CPU of one pod, as pods request it."""
    gpus: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Whole GPUs of one pod."""
    gpu_fraction: str | None = None
    """Share of one GPU, such as `"0.5"`, in place of whole ones."""
    gpu_models: tuple[str, ...] = ()
    """GPU models that will do; none means any."""
    weight: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """How many there are, in proportion to the others."""

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
    def _one(self) -> "TypicalPod":
        if self.gpus and self.gpu_fraction is not None:
            raise ValueError("a pod asks for whole GPUs or for a share of one; give gpus or gpuFraction, not both")
        return self

    @property
    def share(self) -> int:
        """Thousandths of one GPU."""
        return parse_fraction(self.gpu_fraction) if self.gpu_fraction is not None else 0


class SmallPods(Model):
    """How pods that are placed alone are spread over the nodes with GPUs."""

    scoring: Annotated[str, Field(min_length=1, max_length=63)] | None = None
    """``fragmentation``: where they strand the fewest GPUs for the pods that this cluster usually sees. ``fgd``: the
    same as it was published, to compare with. ``off``: by the score, as gangs. Or the name of a plugin's score for pods
    placed alone. By default ``fragmentation``, but ``off`` where a plugin has a score with a weight."""
    typical_pods: Annotated[tuple[TypicalPod, ...], Field(max_length=128)] = ()
    """The pods that the cluster usually sees; by default they are counted."""
