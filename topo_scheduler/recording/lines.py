"""The form of a record: a header, then one line a call."""

from typing import Final

import msgspec

from topo_scheduler.api.config import Configuration
from topo_scheduler.api.objects import Job
from topo_scheduler.recording.calls import decoder_of, encoder
from topo_scheduler.recording.stand_ins import PluginNote
from topo_scheduler.scheduling.intake.understand import Lineage

FORMAT: Final = "topo-scheduler record"
SCHEMA: Final = 1
TERM: Final = "term"
CHECKPOINT: Final = "checkpoint"
CONTINUED: Final = "continued"


class Start(msgspec.Struct):
    """The first fields of a header, which are there whatever the schema."""

    format: str = ""
    schema: int = 0
    version: str = ""


class Header(msgspec.Struct, kw_only=True):
    """The first line of a segment.

    ``build`` tells the code that decided; ``start``: whether the engine knew nothing yet (``term``), stands beside the
    segment (``checkpoint``), or is only known from the segments before it (``continued``). ``term`` which engine,
    ``first`` number of the first call of this segment in its term, ``begun`` seconds since the epoch, ``epoch`` what
    makes such of the times of the calls.
    """

    format: str = FORMAT
    schema: int = SCHEMA
    version: str
    build: str
    segment: int
    term: str
    start: str
    first: int
    begun: float
    epoch: float
    config: Configuration
    plugins: list[PluginNote] = []


class RecordLine(msgspec.Struct, omit_defaults=True):
    """A call.

    ``lineages`` those that ``owners`` names for the first time in this segment, ``owners`` what was answered for pods
    in the order in which they were asked for: a number among the segment's lineages, or None for not known.
    ``out`` pairs of the kind and the fields of an instruction. ``end``: nothing follows in this term.
    """

    call: str = ""
    args: msgspec.Raw = msgspec.Raw(b"[]")
    lineages: list[msgspec.Raw] = []
    owners: list[int | None] = []
    answers: list[msgspec.Raw] = []
    clock: list[float] = []
    out: list[tuple[str, msgspec.Raw]] = []
    raised: str = ""
    end: bool = False


class RecordedOwner(msgspec.Struct, omit_defaults=True):
    """What decisions depend on of a link of a chain."""

    kind: str
    namespace: str
    name: str
    uid: str
    annotations: dict[str, str] = {}
    job: Job | None = None


class _Chain(msgspec.Struct, omit_defaults=True):
    owners: list[RecordedOwner] = []
    complaint: str = ""
    gone: str = ""
    doubt: str = ""


_CHAIN: Final = msgspec.json.Decoder(_Chain)
header_decoder: Final = decoder_of(Header)
line_decoder: Final[msgspec.json.Decoder[RecordLine]] = msgspec.json.Decoder(RecordLine)


def encode_lineage(lineage: Lineage) -> bytes:
    """Return a lineage as JSON."""
    owners = [
        RecordedOwner(one.kind, one.namespace, one.name, one.uid, dict(one.annotations), one.job)
        for one in lineage.owners
    ]
    return encoder.encode(_Chain(owners, lineage.complaint, lineage.gone, lineage.doubt))


def decode_lineage(raw: msgspec.Raw) -> Lineage:
    """Return what `encode_lineage` was given."""
    found = _CHAIN.decode(raw)
    return Lineage(tuple(found.owners), found.complaint, found.gone, found.doubt)
