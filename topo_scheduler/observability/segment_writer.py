"""Writes segments in a thread of its own, so that nobody waits for a disk.

What was handed over and is not written yet is bounded. Whatever goes wrong ends the writing for good: it is logged
once, and the process goes on. A record with a hole could not be replayed, so none is left.
"""

import logging
import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import zstandard

from topo_scheduler.observability.segments import RecordError, SegmentFile, segment_file, segments_of

log = logging.getLogger(__name__)

LEVEL: Final = 3
FLUSH_SECONDS: Final = 0.5
"""How long a line may wait before it is on its way to the disk: what a kill loses."""
WAKE_BYTES: Final = 1 << 20
"""Bytes from which nothing waits for its time."""
MOST_WAITING: Final = 64 << 20
PATIENCE_SECONDS: Final = 2.0
"""More bytes than that may wait to be written for so long, and no longer."""
CLOSE_SECONDS: Final = 10.0
LOCK: Final = ".lock"


class NotWritable(Exception):
    """The directory can't be used; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class SegmentLimits:
    """Bytes of all segments together and of one, and the seconds after which another is begun."""

    directory_bytes: int
    segment_bytes: int
    segment_seconds: float


@dataclass(frozen=True, slots=True)
class _Begin:
    number: int
    header: bytes
    checkpoint: bytes | None


class SegmentWriter:
    """One directory, one writer. `begin` and `put` are called from one thread and never block."""

    def __init__(self, directory: Path, bounds: SegmentLimits) -> None:
        """Take the directory.

        Raises:
            NotWritable: it can't be made, written to, or belongs to another process.
        """
        self.bounds = bounds
        self.failed = ""
        """Why nothing is written any more; empty while all is well."""
        self.written = 0
        """Compressed bytes so far."""
        self.lines = 0
        """Lines handed over so far."""
        self._directory = directory
        self._lock = _take(directory)
        known = segments_of(directory)
        self._next = known[-1].number + 1 if known else 1
        self._waiting: list[bytes | _Begin] = []
        self._waiting_bytes = 0
        self._since = 0.0
        self._something = threading.Condition()
        self._closing = False
        self._open: IO[bytes] | None = None
        self._number = -1
        self._frame: zstandard.ZstdCompressionObj | None = None
        self._size = self._beside = self._others = 0
        self._begun = 0.0
        self._full = self._overfull = self._huge = 0
        self._thread = threading.Thread(target=self._run, name="record", daemon=True)
        self._thread.start()

    @property
    def next_number(self) -> int:
        """The number of the segment that `begin` would begin."""
        return self._next

    @property
    def full(self) -> bool:
        """Whether the segment has its size or age, and `begin` should be called when it is convenient."""
        return self._full == self._next - 1

    @property
    def overfull(self) -> bool:
        """Whether it is that by a quarter."""
        return self._overfull == self._next - 1

    @property
    def huge(self) -> bool:
        """Whether the segment is a quarter of all that the directory may hold."""
        return self._huge == self._next - 1

    def begin(self, header: bytes, checkpoint: bytes | None = None) -> None:
        """Close the segment and begin another."""
        self._hand_over(_Begin(self._next, header, checkpoint), len(header) + len(checkpoint or b""), bounded=False)
        self._next += 1

    def put(self, line: bytes) -> None:
        """Add a line."""
        self.lines += 1
        self._hand_over(line, len(line) + 1)

    def stop(self, why: str) -> None:
        """Write nothing more: what would follow could not be replayed."""
        if not self.failed:
            self._fail(why)

    def close(self) -> None:
        """Write what is left and give the directory back; blocks for a bounded time."""
        with self._something:
            self._closing = True
            self._something.notify()
        self._thread.join(CLOSE_SECONDS)
        os.close(self._lock)

    # ------------------------------------------------------------ inside

    def _hand_over(self, item: "bytes | _Begin", size: int, *, bounded: bool = True) -> None:
        if self.failed:
            return
        # A list of the whole cluster comes at once: for a moment there may be more.
        if bounded and self._waiting_bytes > MOST_WAITING and time.monotonic() - self._since > PATIENCE_SECONDS:
            self._fail(f"{MOST_WAITING >> 20} MiB wait to be written: the disk is too slow")
            return
        with self._something:
            if not self._waiting:
                self._since = time.monotonic()
            self._waiting.append(item)
            self._waiting_bytes += size
            if self._waiting_bytes > WAKE_BYTES:
                self._something.notify()

    def _fail(self, why: str) -> None:
        self.failed = why
        log.error("recording has stopped, scheduling goes on: %s: %s", self._directory, why)
        with self._something:
            self._waiting.clear()
            self._waiting_bytes = 0

    def _run(self) -> None:
        while True:
            with self._something:
                if not self._closing:
                    self._something.wait(FLUSH_SECONDS)
                items, self._waiting, closing = self._waiting, [], self._closing
                self._waiting_bytes = 0
            try:
                self._write(items)
                if closing:
                    self._end_segment()
                    return
            except (OSError, RecordError) as error:
                self._fail((error.strerror if isinstance(error, OSError) else "") or str(error))
                self._abandon()
            if closing or self.failed:
                return

    def _write(self, items: "list[bytes | _Begin]") -> None:
        if self.failed:
            return
        lines: list[bytes] = []
        for item in items:
            if isinstance(item, bytes):
                lines.append(item)
                continue
            self._add(lines)
            lines = [item.header]
            self._end_segment()
            self._begin_segment(item)
        self._add(lines)
        if self._open is None:
            return
        age = time.monotonic() - self._begun
        # How full it is of its measure; of which segment that is said, since another may have been asked for by now.
        share = max(self._size / self.bounds.segment_bytes, age / self.bounds.segment_seconds)
        self._full = self._number if share > 1 else self._full
        self._overfull = self._number if share > 1.25 else self._overfull
        self._huge = self._number if 4 * self._size > self.bounds.directory_bytes else self._huge

    def _add(self, lines: list[bytes]) -> None:
        if not lines or self._frame is None or self._open is None:
            return
        data = self._frame.compress(b"\n".join(lines) + b"\n")
        self._store(data + self._frame.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK))

    def _store(self, data: bytes) -> None:
        assert self._open is not None
        if self._others + self._beside + self._size + len(data) > self.bounds.directory_bytes:
            self._make_room(len(data))
        rest = memoryview(data)
        while rest:  # a disk that is nearly full takes a part
            rest = rest[self._open.write(rest) :]
        self._size += len(data)
        self.written += len(data)

    def _begin_segment(self, item: _Begin) -> None:
        packed = None if item.checkpoint is None else zstandard.ZstdCompressor(level=LEVEL).compress(item.checkpoint)
        self._number, self._size, self._beside = item.number, 0, len(packed or b"")
        self._make_room(5 * self.bounds.segment_bytes // 4)
        file = segment_file(self._directory, item.number)
        if packed is not None:
            try:
                file.checkpoint.write_bytes(packed)
            except OSError:
                file.checkpoint.unlink(missing_ok=True)
                raise
            self.written += len(packed)
        self._open = file.path.open("xb", buffering=0)
        self._frame = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).compressobj()
        self._begun = time.monotonic()

    def _end_segment(self) -> None:
        if self._open is not None and self._frame is not None:
            self._store(self._frame.flush(zstandard.COMPRESSOBJ_FLUSH_FINISH))
            self._open.close()
        self._open = self._frame = None

    def _abandon(self) -> None:
        if self._open is not None:
            try:
                self._open.close()
            except OSError as error:
                log.debug("%s: %s", self._directory, error)
        self._open = self._frame = None

    def _make_room(self, needed: int) -> None:
        """Delete the oldest segments until so many bytes more have room; never the one that is being written."""
        known = [(file, file.size()) for file in segments_of(self._directory) if file.number != self._number]
        self._others = sum(size for _, size in known)
        for file, size in known:
            if self._others + self._beside + self._size + needed <= self.bounds.directory_bytes:
                break
            _delete(file)
            self._others -= size


def _delete(file: SegmentFile) -> None:
    # The lines first: a checkpoint without lines harms nobody.
    file.path.unlink(missing_ok=True)
    file.checkpoint.unlink(missing_ok=True)


def _take(directory: Path) -> int:
    """Make the directory and lock it; the lock falls with the process."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        told = error.strerror or str(error)
        raise NotWritable(f"{directory}: {told}; name a directory this process may write to") from error
    try:
        if sys.platform != "win32":
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        probe = directory / f".probe-{os.getpid()}"
        probe.write_bytes(b"\0" * 4096)
        probe.unlink()
    except BlockingIOError as error:
        os.close(lock)
        raise NotWritable(f"{directory}: another process records there; give each a directory of its own") from error
    except OSError as error:
        os.close(lock)
        told = error.strerror or str(error)
        raise NotWritable(f"{directory}: {told}; free some room, or name another directory") from error
    return lock
