"""A file to which lines are appended. Operators may rotate it at any time: rename and recreate it, or truncate it.

Each line is one write to a descriptor opened for appending, so that lines of several processes don't mix. A thread does
the writing. It counts and drops lines that it can't write, and tries the file again with the next lines: unlike a
record, an audit log with a gap is still useful.
"""

import logging
import os
import sys
import threading
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

STDOUT: Final = "-"
MAX_QUEUE_LINES: Final = 100_000
"""Lines in the queue of the writer at most."""
WRITE_SECONDS: Final = 0.1
"""Seconds for which a line may be in the queue."""
CLOSE_SECONDS: Final = 5.0


class NotAppendable(Exception):
    """The file can't be used. The message has the reason and the remedy."""


class AuditFile:
    """Appends lines. `put` never blocks."""

    def __init__(self, path: str) -> None:
        """Open the file.

        Raises:
            NotAppendable: the file can't be opened.
        """
        self.lines = 0
        """Lines written so far."""
        self.dropped = 0
        """Lines that could not be written."""
        self._path = path
        self._descriptor = -1
        self._identity: tuple[int, int] | None = None
        self._logged_error = ""
        self._waiting: list[bytes] = []
        self._wakeup = threading.Condition()
        self._closing = False
        try:
            self._open()
        except OSError as error:
            reason = error.strerror or str(error)
            raise NotAppendable(f"{path}: {reason}; name a file this process may append to, or - for stdout") from error
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._thread.start()

    def put(self, line: bytes) -> None:
        """Append a line. The argument has no line end."""
        with self._wakeup:
            if len(self._waiting) >= MAX_QUEUE_LINES:
                self.dropped += 1
            else:
                self._waiting.append(line)

    def reopen(self) -> None:
        """Open the file again before the next line, as after a rotation."""
        self._identity = None

    def close(self) -> None:
        """Write the remaining lines. Blocks for at most `CLOSE_SECONDS`."""
        with self._wakeup:
            self._closing = True
            self._wakeup.notify()
        self._thread.join(CLOSE_SECONDS)

    # ------------------------------------------------------------ inside

    def _run(self) -> None:
        while True:
            with self._wakeup:
                if not self._closing:  # `put` does not notify: waking for each line would cost more than the line
                    self._wakeup.wait(WRITE_SECONDS)
                lines, self._waiting, closing = self._waiting, [], self._closing
            for index, line in enumerate(lines):
                try:
                    if index == 0:
                        self._follow()
                    self._write(line + b"\n")
                except OSError as error:
                    self._lost(len(lines) - index, error)
                    break
                self.lines += 1
                self._logged_error = ""
            if closing:
                self._shut()
                return

    def _write(self, line: bytes) -> None:
        written = os.write(self._descriptor, line)
        while written < len(line):  # a disk that is nearly full may take a part only
            written += os.write(self._descriptor, line[written:])

    def _lost(self, count: int, error: OSError) -> None:
        self.dropped += count
        reason = error.strerror or str(error)
        if reason != self._logged_error:
            self._logged_error = reason
            log.error("lines of the audit log are lost, scheduling continues: %s: %s", self._path, reason)
        self._shut()

    def _follow(self) -> None:
        """Open the file again if the name belongs to another file, or to none."""
        if self._path == STDOUT:
            return
        try:
            status = Path(self._path).stat()
        except FileNotFoundError:
            status = None
        if self._descriptor < 0 or status is None or self._identity != (status.st_dev, status.st_ino):
            self._shut()
            self._open()

    def _open(self) -> None:
        if self._path == STDOUT:
            self._descriptor = sys.stdout.fileno()
            return
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        opened = os.fstat(self._descriptor)
        self._identity = (opened.st_dev, opened.st_ino)

    def _shut(self) -> None:
        if self._descriptor >= 0 and self._path != STDOUT:
            os.close(self._descriptor)
        self._descriptor = -1 if self._path != STDOUT else self._descriptor
