"""The format of a record: a header, then one line for each call."""

from typing import Final

import msgspec

from topo_scheduler.api.config import Configuration
from topo_scheduler.api.objects import Job
from topo_scheduler.recording.calls import decoder_of, encoder
from topo_scheduler.recording.plugin_replay import PluginNote
from topo_scheduler.scheduling.intake.understand import Lineage

FORMAT: Final = "topo-scheduler record"
SCHEMA: Final = 1
TERM: Final = "term"
CHECKPOINT: Final = "checkpoint"
CONTINUED: Final = "continued"


class HeaderPrefix(msgspec.Struct):
    """The first fields of a header, which every schema has."""

    format: str = ""
    schema: int = 0
    version: str = ""


class Header(msgspec.Struct, kw_only=True):
    """The first line of a segment.

    Attributes:
        format: format of the file.
        schema: version of the format.
        version: version of the scheduler.
        build: ID of the code that decided.
        segment: number of the segment.
        term: ID of the engine.
        start: initial state of the engine. ``term``: empty. ``checkpoint``: in a file next to the segment.
            ``continued``: follows only from the segments before.
        first: number of the first call of this segment in its term.
        begun: start of the segment, in seconds since the epoch.
        epoch: seconds to add to the times of calls for seconds since the epoch.
        config: configuration of the engine.
        plugins: declarations of the plugins.
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

    Attributes:
        call: name of the method.
        args: its arguments.
        lineages: lineages to which ``owners`` refers for the first time in this segment.
        owners: answers for pods in the order of the queries: a number among the segment's lineages, or None if unknown.
        answers: answers of plugins.
        clock: readings of the clock.
        out: pairs of the kind and the fields of an instruction.
        raised: the exception with which the call ended; empty for none.
        end: whether this is the last line of the term.
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
    """One owner in a chain, with the fields on which decisions depend."""

    kind: str
    namespace: str
    name: str
    uid: str
    annotations: dict[str, str] = {}
    job: Job | None = None


class _OwnerChain(msgspec.Struct, omit_defaults=True):
    owners: list[RecordedOwner] = []
    complaint: str = ""
    gone: str = ""
    doubt: str = ""


_CHAIN: Final = msgspec.json.Decoder(_OwnerChain)
header_decoder: Final = decoder_of(Header)
line_decoder: Final[msgspec.json.Decoder[RecordLine]] = msgspec.json.Decoder(RecordLine)


def encode_lineage(lineage: Lineage) -> bytes:
    """Return a lineage as JSON."""
    owners = [
        RecordedOwner(owner.kind, owner.namespace, owner.name, owner.uid, dict(owner.annotations), owner.job)
        for owner in lineage.owners
    ]
    return encoder.encode(_OwnerChain(owners, lineage.complaint, lineage.gone, lineage.doubt))


def decode_lineage(raw: msgspec.Raw) -> Lineage:
    """Return the lineage that `encode_lineage` encoded."""
    chain = _CHAIN.decode(raw)
    return Lineage(tuple(chain.owners), chain.complaint, chain.gone, chain.doubt)
