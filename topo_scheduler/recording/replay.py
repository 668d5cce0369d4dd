"""Replays a record: a new engine gets the recorded calls, and its results must be the same, bit for bit."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from topo_scheduler.api.objects import Pod
from topo_scheduler.kube.reading.storage import ObjectStore, StoreSink, store_sinks
from topo_scheduler.observability.segments import RecordError, read_checkpoint
from topo_scheduler.recording import checkpoint
from topo_scheduler.recording.calls import SIGNATURES, STORAGE_CALLS, call, decode_arguments
from topo_scheduler.recording.difference import first_difference
from topo_scheduler.recording.lines import CHECKPOINT, TERM, Header, RecordLine, decode_lineage
from topo_scheduler.recording.plugin_replay import decode_answer, extensions_of
from topo_scheduler.recording.reading import Segment, damaged, read_segments
from topo_scheduler.recording.recorder import encode_out
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.scheduling.extensions.extension import PluginError
from topo_scheduler.scheduling.instructions import RecordDecision
from topo_scheduler.scheduling.intake.understand import Lineage

T = TypeVar("T")
_DECIDED: Final = RecordDecision.__name__


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference of a replay. ``call``: number in the segment, from 1. ``time``: ISO 8601, or empty."""

    segment: str
    term: str
    call: int
    name: str
    time: str
    workload: str
    field: str
    recorded: str
    replayed: str


@dataclass(slots=True)
class Report:
    """The result of a replay. ``notes``: segments that could not be replayed, or only in part."""

    decisions: int = 0
    calls: int = 0
    files: int = 0
    skipped: int = 0
    seconds: float = 0.0
    versions: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    first: Difference | None = None


class _Diverged(BaseException):
    """The queries of the engine during a call differ from those of the recorded engine.

    This is not an Exception, so that the barriers in the engine do not catch it.
    """

    def __init__(self, field: str, recorded: str, replayed: str) -> None:
        super().__init__(field)
        self.field, self.recorded, self.replayed = field, recorded, replayed


class _Answers:
    """Answers the queries of the engine during a call from the line of the call."""

    def __init__(self) -> None:
        self.lineages: list[Lineage] = []
        self._owners: Iterator[int | None] = iter(())
        self._plugins: Iterator[msgspec.Raw] = iter(())
        self._clock: Iterator[float] = iter(())

    def take(self, line: RecordLine) -> None:
        """Use the answers of this line from now on."""
        self.lineages += [decode_lineage(raw) for raw in line.lineages]
        self._owners, self._plugins, self._clock = iter(line.owners), iter(line.answers), iter(line.clock)

    def check(self) -> None:
        """Raise `_Diverged` if the engine did not use all recorded answers."""
        for source, remaining in (("owners", self._owners), ("plugins", self._plugins), ("clock", self._clock)):
            if count := sum(1 for _ in remaining):
                raise _Diverged(source, f"{count} more asked for", "nothing")

    def resolve(self, pod: Pod) -> Lineage | None:
        """Return the owners of a pod."""
        number = _next(self._owners, "owners", f"asked for those of pod {pod.key}")
        return None if number is None else self.lineages[number]

    def clock(self) -> float:
        """Return a reading of the clock."""
        return _next(self._clock, "clock", "read once more")

    def call(self, plugin: str, point: str, work: object) -> Any:
        """Return the recorded answer of a plugin."""
        answer = decode_answer(_next(self._plugins, "plugins", f"{plugin} asked for its {point}"))
        if isinstance(answer, PluginError):
            raise answer
        return answer

    def begin(self) -> None:
        """Do nothing: there is no time limit."""

    def pardon(self) -> None:
        """Do nothing: there is no record of failures."""


def _next(answers: Iterator[T], source: str, query: str) -> T:
    for answer in answers:
        return answer
    raise _Diverged(source, "nothing", query)


class _ReplayRun:
    """One engine, from its initial state."""

    def __init__(self, header: Header, state: bytes | None) -> None:
        self.header = header
        self._answers = _Answers()
        extensions = extensions_of(header.plugins, self._answers)
        self._resolve = self._answers.resolve
        if state is None:
            self.engine = Engine(header.config, self._resolve, extensions, header.epoch)
        else:
            self.engine = checkpoint.load(state, self._resolve, extensions)
        world = self.engine.world
        stores: tuple[ObjectStore, ...] = (world.around.storage, world.inventory, world.numa_zones)
        unlisted = [dict(store.unlisted) for store in stores]
        sinks = store_sinks(world.around.storage, world.inventory, numa_zones=world.numa_zones)
        self._sinks: dict[str, StoreSink[Any, Any]] = {sink.resource.plural: sink for sink in sinks}
        if state is not None:
            # New sinks mark all kinds as not listed, but the state has those that were listed.
            for store, before in zip(stores, unlisted, strict=True):
                store.unlisted.clear()
                store.unlisted.update(before)

    def begin_segment(self) -> None:
        """Forget the numbered lineages of the last segment."""
        self._answers.lineages.clear()

    def repeat(self, line: RecordLine, arguments: list[Any]) -> tuple[str, str, str, str] | None:
        """Make a call. Return workload, field, recorded and replayed value of the first difference, or None."""
        self._answers.take(line)
        raised, out = "", []
        try:
            if line.call in STORAGE_CALLS:
                sink = self._sinks[arguments[0]]
                getattr(sink, line.call.removeprefix("storage_"))(*arguments[1:])
            else:
                result = call(self.engine, line.call, arguments, self._answers.clock)
                out = encode_out(result) if isinstance(result, list) else []
            self._answers.check()
        except _Diverged as error:
            return "", error.field, error.recorded, error.replayed
        except Exception as error:  # the recorded call must have raised the same
            raised = f"{type(error).__name__}: {error}"
        if raised != line.raised:
            return "", "raised", line.raised or "nothing", raised or "nothing"
        return first_difference(line.out, out)


def replay(directory: Path) -> Report:
    """Replay all segments that can be replayed, up to the first difference.

    Raises:
        RecordError: a file can't be used.
    """
    report, began = Report(), time.perf_counter()
    run: _ReplayRun | None = None
    last: Segment | None = None
    for segment in read_segments(directory):
        header = segment.header
        if header.version not in report.versions:
            report.versions.append(header.version)
        run = _continue(run, last, segment, report)
        last = segment
        if run is None:
            report.skipped += 1
            continue
        report.files += 1
        if not _repeat(run, segment, report):
            break
    report.seconds = time.perf_counter() - began
    return report


def _continue(run: _ReplayRun | None, last: Segment | None, segment: Segment, report: Report) -> _ReplayRun | None:
    """Return the engine with which to replay a segment, or None if it can't be replayed."""
    header, name = segment.header, segment.file.path.name
    if run is not None and last is not None:
        follows = last.reader.complete and header.segment == last.header.segment + 1
        if follows and header.term == last.header.term:
            run.begin_segment()
            return run
    if header.start == TERM:
        return _ReplayRun(header, None)
    if header.start != CHECKPOINT:
        report.notes.append(f"{name} is skipped: the segment before it is missing, and it has no checkpoint")
        return None
    if header.build != checkpoint.build():
        report.notes.append(
            f"{name} is skipped: it begins in the middle of a term, and its checkpoint can be read only by the build"
            f" that wrote it ({header.version}, {header.build})"
        )
        return None
    try:
        return _ReplayRun(header, read_checkpoint(segment.file))
    except checkpoint.CheckpointError as error:
        remedy = "delete it with its segment, and the replay begins at the next"
        raise RecordError(segment.file.checkpoint, f"not a checkpoint of this build: {error}", remedy) from error


def _repeat(run: _ReplayRun, segment: Segment, report: Report) -> bool:
    """Replay a segment. Return whether all results are the same."""
    number, ended = 0, False
    for line in segment.calls():
        if line.end:
            ended = True
            continue
        number += 1
        try:
            arguments = decode_arguments(line.call, line.args)
        except KeyError as error:
            raise damaged(segment.reader, f"call {number}: there is no call named {error}") from error
        except msgspec.MsgspecError as error:
            raise damaged(segment.reader, f"call {number}, {line.call}: {error}") from error
        difference = run.repeat(line, arguments)
        if difference is not None:
            report.first = Difference(
                segment.file.path.name,
                segment.header.term,
                number,
                line.call,
                _time(segment.header, line.call, arguments),
                *difference,
            )
            return False
        report.calls += 1
        report.decisions += sum(kind == _DECIDED for kind, _ in line.out)
    if not segment.reader.complete and not ended:
        report.notes.append(
            f"{segment.file.path.name} ends in the middle, as when the scheduler runs or was killed: repeated up to"
            f" call {number}"
        )
    return True


def _time(header: Header, name: str, arguments: list[Any]) -> str:
    """Return the time of a call in ISO 8601, empty where its arguments have no time."""
    signature = SIGNATURES.get(name)
    if signature is None or "now" not in signature.arguments:
        return ""
    return datetime.fromtimestamp(arguments[signature.arguments.index("now")] + header.epoch, UTC).isoformat()
