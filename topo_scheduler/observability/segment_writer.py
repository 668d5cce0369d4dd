"""Writes segments in its own thread, so that decisions do not wait for a disk.

The queue of the writer is bounded. Any error ends the writing for good: the writer logs it once, and the process
continues. A record with a gap could not be replayed, so the writer leaves none.
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

COMPRESSION_LEVEL: Final = 3
FLUSH_SECONDS: Final = 0.5
"""Seconds for which a line may be in the queue. A kill loses these lines."""
WAKE_BYTES: Final = 1 << 20
"""Bytes in the queue from which the thread writes at once."""
MAX_QUEUE_BYTES: Final = 64 << 20
PATIENCE_SECONDS: Final = 2.0
"""Seconds for which the queue may hold more than `MAX_QUEUE_BYTES`."""
CLOSE_SECONDS: Final = 10.0
LOCK: Final = ".lock"


class NotWritable(Exception):
    """The directory can't be used. The message has the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class SegmentLimits:
    """Limits of all segments together and of one in bytes, and seconds after which the next segment begins."""

    directory_bytes: int
    segment_bytes: int
    segment_seconds: float


@dataclass(frozen=True, slots=True)
class _Begin:
    number: int
    header: bytes
    checkpoint: bytes | None


class SegmentWriter:
    """The only writer of a directory. One thread calls `begin` and `put`, which never block."""

    def __init__(self, directory: Path, bounds: SegmentLimits) -> None:
        """Create and lock the directory.

        Raises:
            NotWritable: the directory can't be created or written to, or belongs to another process.
        """
        self.bounds = bounds
        self.failed = ""
        """Why writing has stopped; empty while it works."""
        self.written = 0
        """Compressed bytes written so far."""
        self.lines = 0
        """Lines added so far."""
        self._directory = directory
        self._lock = _lock_directory(directory)
        existing = segments_of(directory)
        self._next = existing[-1].number + 1 if existing else 1
        self._waiting: list[bytes | _Begin] = []
        self._waiting_bytes = 0
        self._since = 0.0
        self._wakeup = threading.Condition()
        self._closing = False
        self._open: IO[bytes] | None = None
        self._number = -1
        self._frame: zstandard.ZstdCompressionObj | None = None
        self._size = self._checkpoint_size = self._other_size = 0
        self._begun = 0.0
        self._full = self._overfull = self._huge = 0
        self._thread = threading.Thread(target=self._run, name="record", daemon=True)
        self._thread.start()

    @property
    def next_number(self) -> int:
        """Number of the next segment."""
        return self._next

    @property
    def full(self) -> bool:
        """Whether the segment has reached its size or age, so that the caller should call `begin` soon."""
        return self._full == self._next - 1

    @property
    def overfull(self) -> bool:
        """Whether the segment exceeds its size or age by a quarter."""
        return self._overfull == self._next - 1

    @property
    def huge(self) -> bool:
        """Whether the segment takes more than a quarter of the limit of the directory."""
        return self._huge == self._next - 1

    def begin(self, header: bytes, checkpoint: bytes | None = None) -> None:
        """Close the segment and begin another."""
        self._enqueue(_Begin(self._next, header, checkpoint), len(header) + len(checkpoint or b""), bounded=False)
        self._next += 1

    def put(self, line: bytes) -> None:
        """Add a line."""
        self.lines += 1
        self._enqueue(line, len(line) + 1)

    def stop(self, reason: str) -> None:
        """Stop writing, because later calls could not be replayed."""
        if not self.failed:
            self._fail(reason)

    def close(self) -> None:
        """Write the remaining lines and unlock the directory. Blocks for at most `CLOSE_SECONDS`."""
        with self._wakeup:
            self._closing = True
            self._wakeup.notify()
        self._thread.join(CLOSE_SECONDS)
        os.close(self._lock)

    # ------------------------------------------------------------ inside

    def _enqueue(self, item: "bytes | _Begin", size: int, *, bounded: bool = True) -> None:
        if self.failed:
            return
        # A list of the whole cluster arrives at once: the queue may exceed its limit for a moment.
        if bounded and self._waiting_bytes > MAX_QUEUE_BYTES and time.monotonic() - self._since > PATIENCE_SECONDS:
            self._fail(f"{MAX_QUEUE_BYTES >> 20} MiB wait to be written: the disk is too slow")
            return
        with self._wakeup:
            if not self._waiting:
                self._since = time.monotonic()
            self._waiting.append(item)
            self._waiting_bytes += size
            if self._waiting_bytes > WAKE_BYTES:
                self._wakeup.notify()

    def _fail(self, reason: str) -> None:
        self.failed = reason
        log.error("recording has stopped, scheduling goes on: %s: %s", self._directory, reason)
        with self._wakeup:
            self._waiting.clear()
            self._waiting_bytes = 0

    def _run(self) -> None:
        while True:
            with self._wakeup:
                if not self._closing:
                    self._wakeup.wait(FLUSH_SECONDS)
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
        # The properties store the number of the segment, because the caller may have begun the next one already.
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
        if self._other_size + self._checkpoint_size + self._size + len(data) > self.bounds.directory_bytes:
            self._make_room(len(data))
        remaining = memoryview(data)
        while remaining:  # a disk that is nearly full may take a part only
            remaining = remaining[self._open.write(remaining) :]
        self._size += len(data)
        self.written += len(data)

    def _begin_segment(self, item: _Begin) -> None:
        packed = (
            None
            if item.checkpoint is None
            else zstandard.ZstdCompressor(level=COMPRESSION_LEVEL).compress(item.checkpoint)
        )
        self._number, self._size, self._checkpoint_size = item.number, 0, len(packed or b"")
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
        self._frame = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL, write_checksum=True).compressobj()
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
        """Delete the oldest segments until ``needed`` more bytes have room, but never the open segment."""
        other_files = [(file, file.size()) for file in segments_of(self._directory) if file.number != self._number]
        self._other_size = sum(size for _, size in other_files)
        for file, size in other_files:
            if self._other_size + self._checkpoint_size + self._size + needed <= self.bounds.directory_bytes:
                break
            _delete(file)
            self._other_size -= size


def _delete(file: SegmentFile) -> None:
    # Delete the lines first: a checkpoint without lines does no harm.
    file.path.unlink(missing_ok=True)
    file.checkpoint.unlink(missing_ok=True)


def _lock_directory(directory: Path) -> int:
    """Create the directory and lock it. The lock ends with the process."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        reason = error.strerror or str(error)
        raise NotWritable(f"{directory}: {reason}; name a directory this process may write to") from error
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
        reason = error.strerror or str(error)
        raise NotWritable(f"{directory}: {reason}; free some room, or name another directory") from error
    return lock
