"""Configuration of links of the fabric: capacities of the uplinks of domains and of the networks of nodes."""

from fractions import Fraction
from typing import Annotated, Final

from pydantic import Field, field_validator, model_validator

from topo_scheduler.api.labels import PREFIX
from topo_scheduler.api.models import Model
from topo_scheduler.api.names import Domain
from topo_scheduler.api.quantity import QuantityError, parse_bandwidth

NODE: Final = "node"
"""Value of ``level`` for the links of nodes."""


def uplink_label(level: str) -> str:
    """Return the node label with the uplink capacity of a node's domain at a level."""
    return f"{PREFIX}{level}-uplink-bandwidth"


class Link(Model):
    """Capacity of links in each direction: of all links of a level, or of the uplink of one domain."""

    level: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$", max_length=32)] | None = None
    """Level whose domains have these uplinks, e.g. `leaf`. `node` stands for the networks of nodes without a bandwidth
    label."""
    domain: Domain | None = None
    """Path or name of the domain that has this uplink. It overrides the entry of its level."""
    capacity: str | None = None
    """Bandwidth, e.g. `3200Gb`; by default the sum of the networks of the nodes below."""
    oversubscription: Annotated[float, Field(ge=0.001, le=1000, allow_inf_nan=False)] | None = None
    """Divisor of the capacity: 2 if a leaf's uplinks carry half of what its nodes do; 1 by default."""

    @field_validator("capacity")
    @classmethod
    def _bandwidth(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                parse_bandwidth(value)
            except QuantityError as error:
                raise ValueError(f"{error}; leave out links whose capacity is not known") from None
        return value

    @model_validator(mode="after")
    def _whole(self) -> "Link":
        if (self.level is None) is (self.domain is None):
            raise ValueError("give level or domain: what the links of a level carry, or the uplink of one domain")
        if self.capacity is None and self.oversubscription is None:
            raise ValueError(f"nothing is said of {self.name}; give capacity, oversubscription or both")
        if self.level == NODE and self.capacity is None:
            raise ValueError("level node needs a capacity: there is nothing below a node to add up")
        if self.capacity is not None and not self.divided(parse_bandwidth(self.capacity)):
            raise ValueError(f"{self.capacity} divided by {self.oversubscription:g} is less than 1 Mbit/s")
        return self

    @property
    def name(self) -> str:
        """Level or domain of the entry, for messages."""
        return f"level {self.level}" if self.level is not None else f"domain {self.domain}"

    @property
    def mbits(self) -> int | None:
        """The capacity in Mbit/s, None if it is the sum of the nodes below."""
        return None if self.capacity is None else self.divided(parse_bandwidth(self.capacity))

    def divided(self, mbits: int) -> int:
        """Return a capacity in Mbit/s divided by the oversubscription, rounded down."""
        return int(mbits / Fraction(str(self.oversubscription or 1)))
