"""A file that lines are appended to, as operators rotate it: renamed and made anew, or truncated, at any time.

Each line is one write to a descriptor opened for appending, so that lines of several processes don't mix. Writing is
done in a thread. What can't be written is counted and dropped, and the file is tried again with the next lines: unlike
a record, an audit log with a hole is still of use.
"""

import logging
import os
import sys
import threading
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

STDOUT: Final = "-"
MOST_WAITING: Final = 100_000
"""Lines that may wait to be written."""
WRITE_SECONDS: Final = 0.1
"""How long a line may wait."""
CLOSE_SECONDS: Final = 5.0


class NotAppendable(Exception):
    """The file can't be used; the message says why, and what to do."""


class AuditFile:
    """Appends lines. `put` never blocks."""

    def __init__(self, path: str) -> None:
        """Open the file.

        Raises:
            NotAppendable: it can't be opened.
        """
        self.lines = 0
        """Lines written so far."""
        self.dropped = 0
        """Lines that could not be written."""
        self._path = path
        self._descriptor = -1
        self._identity: tuple[int, int] | None = None
        self._told = ""
        self._waiting: list[bytes] = []
        self._something = threading.Condition()
        self._closing = False
        try:
            self._open()
        except OSError as error:
            told = error.strerror or str(error)
            raise NotAppendable(f"{path}: {told}; name a file this process may append to, or - for stdout") from error
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._thread.start()

    def put(self, line: bytes) -> None:
        """Append a line, given without its end."""
        with self._something:
            if len(self._waiting) >= MOST_WAITING:
                self.dropped += 1
            else:
                self._waiting.append(line)

    def reopen(self) -> None:
        """Open the file anew before the next line, as after it was rotated."""
        self._identity = None

    def close(self) -> None:
        """Write what is left; blocks for a bounded time."""
        with self._something:
            self._closing = True
            self._something.notify()
        self._thread.join(CLOSE_SECONDS)

    # ------------------------------------------------------------ inside

    def _run(self) -> None:
        while True:
            with self._something:
                if not self._closing:  # nobody wakes it: to be woken for each line would cost more than the line
                    self._something.wait(WRITE_SECONDS)
                lines, self._waiting, closing = self._waiting, [], self._closing
            for at, line in enumerate(lines):
                try:
                    if at == 0:
                        self._follow()
                    self._write(line + b"\n")
                except OSError as error:
                    self._lost(len(lines) - at, error)
                    break
                self.lines += 1
                self._told = ""
            if closing:
                self._shut()
                return

    def _write(self, line: bytes) -> None:
        written = os.write(self._descriptor, line)
        while written < len(line):  # a disk that is nearly full takes a part
            written += os.write(self._descriptor, line[written:])

    def _lost(self, count: int, error: OSError) -> None:
        self.dropped += count
        why = error.strerror or str(error)
        if why != self._told:
            self._told = why
            log.error("the audit log loses lines, scheduling goes on: %s: %s", self._path, why)
        self._shut()

    def _follow(self) -> None:
        """Open the file anew if another one has its name, or none has."""
        if self._path == STDOUT:
            return
        try:
            there = Path(self._path).stat()
        except FileNotFoundError:
            there = None
        if self._descriptor < 0 or there is None or self._identity != (there.st_dev, there.st_ino):
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
