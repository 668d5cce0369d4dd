"""What the daemon logs as an internal error while a test runs."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_PACKAGES: Final = ("topo_scheduler.kube", "topo_scheduler.runtime")


class InternalErrors(logging.Handler):
    """Collects internal errors, until a process of the test is killed: what is left of it fails in many ways."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []
        self.killed = False

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the text of an internal error."""
        if record.exc_info and not self.killed and record.msg.startswith("internal error"):
            self.texts.append(f"{record.getMessage()}: {record.exc_info[1]!r}")


_collecting: list[InternalErrors] = []


@contextmanager
def internal_errors() -> Iterator[InternalErrors]:
    """Collect the internal errors that are logged meanwhile."""
    errors = InternalErrors()
    _collecting.append(errors)
    for package in _PACKAGES:
        logging.getLogger(package).addHandler(errors)
    try:
        yield errors
    finally:
        for package in _PACKAGES:
            logging.getLogger(package).removeHandler(errors)
        _collecting.remove(errors)


def process_killed() -> None:
    """Ignore internal errors from now on, as a process of the test is killed that lives on in this one."""
    for errors in _collecting:
        errors.killed = True
