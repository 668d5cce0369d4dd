"""Repeats a record: an engine is told what another was told, and must answer the same, bit for bit."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from topo_scheduler.api.objects import Pod
from topo_scheduler.kube.storage import StorageSink, storage_sinks
from topo_scheduler.observability.segments import RecordError, read_checkpoint
from topo_scheduler.recording import checkpoint
from topo_scheduler.recording.calls import SIGNATURES, STORAGE_CALLS, call, decode_arguments
from topo_scheduler.recording.difference import first_difference
from topo_scheduler.recording.lines import CHECKPOINT, TERM, Header, RecordLine, decode_lineage
from topo_scheduler.recording.reading import Segment, damaged, read_segments
from topo_scheduler.recording.recorder import encode_out
from topo_scheduler.recording.stand_ins import decode_answer, extensions_of
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.scheduling.extensions.extension import PluginError
from topo_scheduler.scheduling.intake.understand import Lineage

T = TypeVar("T")
_DECIDED: Final = "Announce"


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a replay first differs. ``call`` its number in the segment, from 1; ``time`` in ISO 8601, or empty."""

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
    """What a replay found. ``notes`` what could not be repeated, or only in part."""

    decisions: int = 0
    calls: int = 0
    files: int = 0
    skipped: int = 0
    seconds: float = 0.0
    versions: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    first: Difference | None = None


class _Diverged(BaseException):
    """The engine asked for something the recorded one did not ask for, or not for something it did.

    Not an Exception, so that the barriers inside the engine let it pass.
    """

    def __init__(self, field: str, recorded: str, replayed: str) -> None:
        super().__init__(field)
        self.field, self.recorded, self.replayed = field, recorded, replayed


class _Answers:
    """What the engine asks for in the middle of a call, answered from the line of the call."""

    def __init__(self) -> None:
        self.lineages: list[Lineage] = []
        self._owners: Iterator[int | None] = iter(())
        self._plugins: Iterator[msgspec.Raw] = iter(())
        self._clock: Iterator[float] = iter(())

    def take(self, line: RecordLine) -> None:
        """From here on answer from this line."""
        self.lineages += [decode_lineage(raw) for raw in line.lineages]
        self._owners, self._plugins, self._clock = iter(line.owners), iter(line.answers), iter(line.clock)

    def check(self) -> None:
        """Raise `_Diverged` if something was not asked for."""
        for what, left in (("owners", self._owners), ("plugins", self._plugins), ("clock", self._clock)):
            if rest := sum(1 for _ in left):
                raise _Diverged(what, f"{rest} more asked for", "nothing")

    def resolve(self, pod: Pod) -> Lineage | None:
        """Return the owners of a pod."""
        number = _next(self._owners, "owners", f"asked for those of pod {pod.key}")
        return None if number is None else self.lineages[number]

    def clock(self) -> float:
        """Return a reading of the clock."""
        return _next(self._clock, "clock", "read once more")

    def call(self, plugin: str, point: str, work: object) -> Any:
        """Return what a plugin answered."""
        answer = decode_answer(_next(self._plugins, "plugins", f"{plugin} asked for its {point}"))
        if isinstance(answer, PluginError):
            raise answer
        return answer

    def begin(self) -> None:
        """Nothing is measured."""

    def pardon(self) -> None:
        """Nothing is remembered."""


def _next(left: Iterator[T], what: str, asked: str) -> T:
    for one in left:
        return one
    raise _Diverged(what, "nothing", asked)


class _Run:
    """One engine, from where it began."""

    def __init__(self, header: Header, state: bytes | None) -> None:
        self.header = header
        self._answers = _Answers()
        extensions = extensions_of(header.plugins, self._answers)
        self._resolve = self._answers.resolve
        if state is None:
            self.engine = Engine(header.config, self._resolve, extensions, header.epoch)
        else:
            self.engine = checkpoint.load(state, self._resolve, extensions)
        unlisted = dict(self.engine.world.around.storage.unlisted)
        self._sinks: dict[str, StorageSink[Any, Any]] = {
            sink.resource.plural: sink for sink in storage_sinks(self.engine.world.around.storage)
        }
        if state is not None:
            # To be made they declare everything unlisted; what is listed is part of the state.
            storage = self.engine.world.around.storage
            storage.unlisted.clear()
            storage.unlisted.update(unlisted)

    def begin_segment(self) -> None:
        """Forget what was numbered in the last one."""
        self._answers.lineages.clear()

    def repeat(self, line: RecordLine, arguments: list[Any]) -> tuple[str, str, str, str] | None:
        """Make a call; return workload, field, recorded and replayed value of the first difference."""
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
        except Exception as error:  # whatever it is, the recorded engine must have ended with the same
            raised = f"{type(error).__name__}: {error}"
        if raised != line.raised:
            return "", "raised", line.raised or "nothing", raised or "nothing"
        return first_difference(line.out, out)


def replay(directory: Path) -> Report:
    """Repeat all that can be repeated, up to the first difference.

    Raises:
        RecordError: a file that can't be used.
    """
    report, began = Report(), time.perf_counter()
    run: _Run | None = None
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


def _continue(run: _Run | None, last: Segment | None, segment: Segment, report: Report) -> _Run | None:
    """Return what a segment goes on with; None where it can't be repeated."""
    header, name = segment.header, segment.file.path.name
    if run is not None and last is not None:
        whole = last.reader.complete and header.segment == last.header.segment + 1
        if whole and header.term == last.header.term:
            run.begin_segment()
            return run
    if header.start == TERM:
        return _Run(header, None)
    if header.start != CHECKPOINT:
        report.notes.append(f"{name} is left out: what it goes on from is missing, and it has no checkpoint")
        return None
    if header.build != checkpoint.build():
        report.notes.append(
            f"{name} is left out: it begins in the middle of a term, and its checkpoint can be read only by the build"
            f" that wrote it ({header.version}, {header.build})"
        )
        return None
    try:
        return _Run(header, read_checkpoint(segment.file))
    except checkpoint.CheckpointError as error:
        remedy = "delete it with its segment, and the replay begins at the next"
        raise RecordError(segment.file.checkpoint, f"not a checkpoint of this build: {error}", remedy) from error


def _repeat(run: _Run, segment: Segment, report: Report) -> bool:
    """Repeat a segment; return False when something differed."""
    number, ended = 0, False
    for line in segment.calls():
        if line.end:
            ended = True
            continue
        number += 1
        try:
            arguments = decode_arguments(line.call, line.args)
        except (msgspec.MsgspecError, KeyError) as error:
            raise damaged(segment.reader, f"call {number}, {line.call}: {error}") from error
        found = run.repeat(line, arguments)
        if found is not None:
            report.first = Difference(
                segment.file.path.name,
                segment.header.term,
                number,
                line.call,
                _time(segment.header, line.call, arguments),
                *found,
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
    """Return when a call was made, empty where it was not told the time."""
    signature = SIGNATURES.get(name)
    if signature is None or "now" not in signature.arguments:
        return ""
    return datetime.fromtimestamp(arguments[signature.arguments.index("now")] + header.epoch, UTC).isoformat()
