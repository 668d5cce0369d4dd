"""Files of a record: lines in compressed segments, numbered in one directory.

A segment is one zstd frame of JSON lines, ``00000042.jsonl.zst``. Its checkpoint ``00000042.checkpoint.zst`` allows a
replay without the segments before. ``zstdcat`` reads both. The segment of a killed process ends in the middle, and can
be read up to there.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import zstandard

LINES: Final = ".jsonl.zst"
CHECKPOINT: Final = ".checkpoint.zst"
_NAME: Final = re.compile(r"(\d{8})" + re.escape(LINES))
_CHUNK_BYTES: Final = 1 << 12
"""Bytes per read. This is the precision of the position in an error about a damaged file."""


class RecordError(Exception):
    """A file can't be read. The message has the file, the position, the problem and the remedy."""

    def __init__(self, path: Path, problem: str, remedy: str, offset: int | None = None) -> None:
        where = str(path) if offset is None else f"{path}: byte {offset}"
        super().__init__(f"{where}: {problem}; {remedy}")
        self.path, self.problem, self.remedy, self.offset = path, problem, remedy, offset


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """One segment by its number."""

    number: int
    path: Path

    @property
    def checkpoint(self) -> Path:
        """Path of its checkpoint, if it has one."""
        return self.path.with_name(f"{self.number:08d}{CHECKPOINT}")

    def size(self) -> int:
        """Return the bytes of its files; 0 for deleted files."""
        return sum(path.stat().st_size for path in (self.path, self.checkpoint) if path.exists())


def segment_file(directory: Path, number: int) -> SegmentFile:
    """Return the segment of a number."""
    return SegmentFile(number, directory / f"{number:08d}{LINES}")


def segments_of(directory: Path) -> list[SegmentFile]:
    """Return the segments of a directory in order.

    Raises:
        RecordError: there is no such directory, or it can't be read.
    """
    try:
        names = [path for path in directory.iterdir() if _NAME.fullmatch(path.name)]
    except OSError as error:
        reason = error.strerror or str(error)
        raise RecordError(directory, reason, "name the directory that was given to run --record") from error
    return [SegmentFile(int(path.name[:8]), path) for path in sorted(names)]


class SegmentReader:
    """Reads the lines of a segment, once.

    After the last line, ``complete`` is whether the segment was closed. ``offset``: compressed bytes read so far.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.complete = False
        self.offset = 0

    def __iter__(self) -> Iterator[bytes]:
        """Yield whole lines.

        Raises:
            RecordError: the file can't be read, is not compressed by zstd, or is damaged.
        """
        remedy = "delete it, and what comes before the next checkpoint, or take the directory from a backup"
        unfinished = b""
        decompressor = zstandard.ZstdDecompressor().decompressobj()
        try:
            with self.path.open("rb") as file:
                while chunk := file.read(_CHUNK_BYTES):
                    unfinished += decompressor.decompress(chunk)
                    self.offset += len(chunk)
                    *lines, unfinished = unfinished.split(b"\n")
                    yield from lines
                    if decompressor.eof:
                        break
        except zstandard.ZstdError as error:
            problem = "damaged" if self._begins_as_one() else "not a segment of a record"
            raise RecordError(self.path, f"{problem} ({error})", remedy, self.offset) from error
        except OSError as error:
            raise RecordError(self.path, error.strerror or str(error), remedy, self.offset) from error
        self.complete = decompressor.eof and not unfinished

    def _begins_as_one(self) -> bool:
        with self.path.open("rb") as file:
            return file.read(len(zstandard.FRAME_HEADER)) == zstandard.FRAME_HEADER


def read_checkpoint(segment: SegmentFile) -> bytes:
    """Return the checkpoint of a segment.

    Raises:
        RecordError: the checkpoint is missing or damaged.
    """
    path = segment.checkpoint
    try:
        return zstandard.ZstdDecompressor().decompress(path.read_bytes())
    except (OSError, zstandard.ZstdError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise RecordError(path, reason, "delete this segment, to replay from another one") from error
