"""What the daemon writes down of its decisions, as configured."""

from typing import Annotated, Final

from pydantic import BeforeValidator, Field

from topo_scheduler.api.models import Model, Seconds
from topo_scheduler.api.quantity import QuantityError, parse_quantity

LEAST_BYTES: Final = 1 << 20


def _parse_bytes(value: object) -> object:
    """Turn a quantity such as ``2Gi`` into bytes; numbers pass."""
    if not isinstance(value, str):
        return value
    try:
        return parse_quantity(value, 1)
    except QuantityError as error:
        raise ValueError(str(error)) from error


Bytes = Annotated[int, BeforeValidator(_parse_bytes)]
"""Bytes, written as a quantity (``2Gi``) or a number."""


class Recording(Model):
    """Every decision with its inputs, for ``topo-scheduler replay``."""

    directory: str = ""
    """Where to record; empty for not at all. One scheduler a directory."""
    max_bytes: Annotated[Bytes, Field(ge=LEAST_BYTES)] = 1 << 30
    """Most the directory may hold, such as ``2Gi``; the oldest segments are deleted to stay below. At least 1Mi."""
    segment_bytes: Annotated[Bytes, Field(ge=LEAST_BYTES // 8)] = 32 << 20
    """Compressed size from which another segment is begun, with a checkpoint of the whole state. At most an eighth of
    ``maxBytes`` is used."""
    segment_age: Seconds = 21600.0
    """Age from which another segment is begun."""

    @property
    def bytes_of_segment(self) -> int:
        """The size in use: some segments must fit, whatever was asked for."""
        return min(self.segment_bytes, self.max_bytes // 8)


class AuditLog(Model):
    """Who asked, what was decided, bound, refused, moved: append-only JSON lines."""

    path: str = ""
    """File to append to, ``-`` for standard output; empty for none. Opened anew when it was renamed, and on SIGHUP."""
