"""Keeps what tests do to engines: recorded while the unit tests run, replayed without the compiler.

``TOPO_KEEP_RECORDS=DIR pytest ...`` records the first engines of each test. ``python -m tests.recording.kept DIR``
replays them, and ``TOPO_REPLAY_RECORDS=DIR pytest ...`` leaves out the tests that have a record there. Both with
``NUMBA_DISABLE_JIT=1``: the kernels are plain Python then, and must decide the same, bit for bit.

A test that changes an engine otherwise than by its calls can't be replayed. It is marked ``unrecorded``.
"""

import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Final, cast

import zstandard

from topo_scheduler.api.config import Configuration
from topo_scheduler.observability.segment_writer import SegmentWriter
from topo_scheduler.observability.segments import RecordError, segment_file
from topo_scheduler.recording.observed_engine import ObservedEngine
from topo_scheduler.recording.recorder import Recorder
from topo_scheduler.recording.replay import Report, replay
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.scheduling.extensions.registry import Extensions
from topo_scheduler.scheduling.intake.arrivals import Resolve

KEEP: Final = "TOPO_KEEP_RECORDS"
REPLAY: Final = "TOPO_REPLAY_RECORDS"
ENGINES_PER_TEST: Final = 40
"""A property makes hundreds of engines, of which the first ones are kept."""
LINES_PER_ENGINE: Final = 20_000
"""A test with a longer history is not kept."""


class _Lines:
    """Stands in for a `SegmentWriter`: a thread and a lock for each of thousands of engines would be too slow."""

    full = overfull = huge = False
    next_number = 1

    def __init__(self) -> None:
        self.failed = ""
        self.lines: list[bytes] = []

    def begin(self, header: bytes, checkpoint: bytes | None = None) -> None:
        """Take the header."""
        self.lines.append(header)

    def put(self, line: bytes) -> None:
        """Take a line."""
        self.lines.append(line)
        if len(self.lines) > LINES_PER_ENGINE:
            self.stop("longer than a kept record may be")

    def stop(self, reason: str) -> None:
        """Take no more lines."""
        self.failed = reason
        self.lines.clear()

    def write(self, directory: Path) -> None:
        """Write what was taken as one segment."""
        directory.mkdir(parents=True)
        text = b"\n".join(self.lines) + b"\n"
        segment_file(directory, 1).path.write_bytes(zstandard.ZstdCompressor(write_checksum=True).compress(text))


_open: list[tuple[Recorder, _Lines]] = []
_suspended = False


def make_engine(config: Configuration, resolve: Resolve, extensions: Extensions | None, epoch: float) -> Engine:
    """Return an engine, which is recorded if records are kept."""
    if KEEP not in os.environ or _suspended or len(_open) >= ENGINES_PER_TEST:
        return Engine(config, resolve, extensions, epoch)
    lines = _Lines()
    recorder = Recorder(cast("SegmentWriter", lines))
    _open.append((recorder, lines))
    return ObservedEngine(config, resolve, extensions, epoch, [recorder])


def begin_test(*, suspended: bool) -> None:
    """Forget the engines of the last test. ``suspended``: this test's engines are not kept."""
    global _suspended
    _open.clear()
    _suspended = suspended


def end_test(name: str) -> None:
    """Write the records of a test's engines."""
    if not _open:
        return
    for recorder, _ in _open:
        recorder.ends()
    histories = [lines for _, lines in _open]
    _open.clear()
    if any(lines.failed for lines in histories):
        return
    test = _directory(os.environ[KEEP], name)
    for number, lines in enumerate(histories):
        lines.write(test / str(number))
    (test / "test").write_text(name)


def is_replayed(name: str) -> bool:
    """Return whether a test has a record that is replayed instead."""
    return REPLAY in os.environ and (_directory(os.environ[REPLAY], name) / "test").exists()


def _directory(records: str, test: str) -> Path:
    return Path(records) / hashlib.blake2b(test.encode(), digest_size=8).hexdigest()


# ------------------------------------------------------------ replay


def _replay_test(test: Path) -> tuple[str, int, int, str]:
    """Return the test, its calls and decisions, and the first difference or an empty text."""
    calls = decisions = 0
    name = (test / "test").read_text()
    for directory in sorted(path for path in test.iterdir() if path.is_dir()):
        try:
            report = replay(directory)
        except RecordError as error:
            return name, calls, decisions, f"{directory}: {error}"
        calls, decisions = calls + report.calls, decisions + report.decisions
        if text := _complaint(report):
            return name, calls, decisions, f"{directory}: {text}"
    return name, calls, decisions, ""


def _complaint(report: Report) -> str:
    if report.first is not None:
        return str(report.first)
    return "; ".join(report.notes) or ("nothing was replayed" if report.skipped else "")


def _results(tests: Sequence[Path]) -> Iterator[tuple[str, int, int, str]]:
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("forkserver")) as pool:
        yield from pool.map(_replay_test, tests, chunksize=8)


def main(directory: Path) -> int:
    """Replay all records. Exit code 1 if one differs or there is none, after a line for each that differs."""
    tests = sorted(path.parent for path in directory.glob("*/test"))
    calls = decisions = different = 0
    for name, made, decided, text in _results(tests):
        calls, decisions = calls + made, decisions + decided
        if text:
            different += 1
            print(f"{name}\n    {text}")
    print(f"{len(tests)} tests, {calls} calls, {decisions} decisions replayed; {different} tests differ")
    return 1 if different or not decisions else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
