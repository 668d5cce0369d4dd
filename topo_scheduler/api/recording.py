"""Configuration of the record of decisions and of the audit log."""

from typing import Annotated, Final

from pydantic import BeforeValidator, Field

from topo_scheduler.api.models import Model, Seconds
from topo_scheduler.api.names import FilePath
from topo_scheduler.api.quantity import MAX_VALUE, parse_quantity

LEAST_BYTES: Final = 1 << 20


def _parse_bytes(value: object) -> object:
    """Turn a quantity such as ``2Gi`` into bytes; numbers pass."""
    return parse_quantity(value) if isinstance(value, str) else value


Bytes = Annotated[int, BeforeValidator(_parse_bytes), Field(le=MAX_VALUE)]
"""Bytes, written as a quantity (``2Gi``) or a number."""


class Recording(Model):
    """Record of all decisions with their inputs, for ``topo-scheduler replay``."""

    directory: FilePath = ""
    """Directory of the record; empty for no record. Each scheduler needs its own directory."""
    max_bytes: Annotated[Bytes, Field(ge=LEAST_BYTES)] = 1 << 30
    """Maximum size of the directory in bytes, e.g. ``2Gi``, at least 1Mi. The oldest segments are deleted to stay below
    it."""
    segment_bytes: Annotated[Bytes, Field(ge=LEAST_BYTES // 8)] = 32 << 20
    """Compressed size in bytes at which a new segment starts, with a checkpoint of the whole state. Capped at an eighth
    of ``maxBytes``."""
    segment_age: Seconds = 21600.0
    """Age at which a new segment starts."""

    @property
    def bytes_of_segment(self) -> int:
        """Effective size of a segment in bytes: at least eight segments must fit into the directory."""
        return min(self.segment_bytes, self.max_bytes // 8)


class AuditLog(Model):
    """Audit log of requests, decisions, binds, refusals and moves, as append-only JSON lines."""

    path: FilePath = ""
    """File to append to, ``-`` for standard output; empty for no audit log. The scheduler reopens the file after a
    rename and on SIGHUP."""
