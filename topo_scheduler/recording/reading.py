"""Reads a record: its segments in order, each with its header and its calls."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from topo_scheduler.observability.segments import RecordError, SegmentFile, SegmentReader, segments_of
from topo_scheduler.recording.lines import (
    FORMAT,
    SCHEMA,
    Header,
    HeaderPrefix,
    RecordLine,
    header_decoder,
    line_decoder,
)

_START = msgspec.json.Decoder(HeaderPrefix)


@dataclass(slots=True)
class Segment:
    """A segment. Its calls can be read once. Afterwards ``reader.complete`` is whether the segment was closed."""

    file: SegmentFile
    header: Header
    reader: SegmentReader
    _lines: Iterator[bytes]

    def calls(self) -> Iterator[RecordLine]:
        """Yield the calls in order.

        Raises:
            RecordError: a line can't be decoded.
        """
        for number, raw in enumerate(self._lines, 2):
            try:
                yield line_decoder.decode(raw)
            except msgspec.MsgspecError as error:
                raise damaged(self.reader, f"line {number}: {error}") from error


def damaged(reader: SegmentReader, problem: str) -> RecordError:
    """Return the error for a line that can't be used."""
    remedy = "it is damaged, or was changed; delete it, and the replay continues at the next checkpoint"
    return RecordError(reader.path, problem, remedy, reader.offset)


def read_segments(directory: Path) -> Iterator[Segment]:
    """Yield the segments of a record in order, the oldest first.

    Raises:
        RecordError: there is no segment, or one is not of this scheduler, damaged, or of another schema.
    """
    files = segments_of(directory)
    if not files:
        raise RecordError(directory, "no segment of a record", "name the directory that was given to run --record")
    for file in files:
        if (segment := _open(file, last=file is files[-1])) is not None:
            yield segment


def _open(file: SegmentFile, *, last: bool) -> Segment | None:
    reader = SegmentReader(file.path)
    lines = iter(reader)
    first = next(lines, None)
    if first is None:
        if last or not reader.complete:
            return None  # the scheduler was killed before it wrote to the new segment
        raise RecordError(file.path, "it is empty", "delete it", reader.offset)
    try:
        start = _START.decode(first)
    except msgspec.MsgspecError as error:
        raise RecordError(file.path, f"not a segment of a record ({error})", "delete it", reader.offset) from error
    if start.format != FORMAT:
        raise RecordError(file.path, "not a segment of a record of this scheduler", "delete it", 0)
    if start.schema != SCHEMA:
        problem = f"schema {start.schema}, and this version reads schema {SCHEMA}"
        raise RecordError(file.path, problem, f"replay it with version {start.version}, which wrote it", 0)
    try:
        header = header_decoder.decode(first)
    except msgspec.MsgspecError as error:
        remedy = f"replay it with version {start.version}, which wrote it"
        raise RecordError(file.path, f"its header can't be read: {error}", remedy, 0) from error
    return Segment(file, header, reader, lines)
