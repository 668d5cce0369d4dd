"""Writes down what is heard at an engine, so that it can be replayed."""

import logging
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from topo_scheduler import __version__
from topo_scheduler.observability.segment_writer import SegmentWriter
from topo_scheduler.recording import checkpoint
from topo_scheduler.recording.calls import encode_arguments, encoder
from topo_scheduler.recording.ear import Heard, ObservedEngine
from topo_scheduler.recording.lines import CHECKPOINT, CONTINUED, TERM, Header, RecordLine, encode_lineage
from topo_scheduler.recording.stand_ins import encode_answer, notes_of
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.scheduling.intake.understand import Lineage

log = logging.getLogger(__name__)

PAUSES: Final = 100
"""How many times as long as a checkpoint took there is none after it, unless the directory would be too small."""
MOST_LINEAGES: Final = 16_384
"""Chains of owners that are remembered, so that each is written once."""


class Recorder:
    """A listener. Calls are encoded here and now; compressing and writing is done in the writer's thread."""

    def __init__(self, writer: SegmentWriter, clock: Callable[[], float] = time.time) -> None:
        self.writer = writer
        self._clock = clock
        self._engine: ObservedEngine | None = None
        self._term = ""
        self._calls = 0
        self._arguments = b""
        self._lineages: dict[tuple[object, ...], tuple[int, Lineage]] = {}
        self._numbered = 0
        self._not_before = 0.0

    # ------------------------------------------------------------ as a listener

    def begins(self, engine: Engine) -> None:
        """An engine was made: a term begins, and a segment with it."""
        assert isinstance(engine, ObservedEngine)
        self._engine, self._term, self._calls = engine, uuid.uuid4().hex, 0
        self._begin(TERM, None)

    def hears(self, name: str, arguments: Sequence[Any]) -> None:
        """Keep the arguments as they are now: the engine may change what it is given."""
        if not self.writer.failed:
            self._arguments = encode_arguments(name, arguments)

    def heard(self, heard: Heard) -> None:
        """Hand over the line of a call."""
        if self.writer.failed:
            return
        line = RecordLine(heard.name, msgspec.Raw(self._arguments), clock=heard.clock, raised=heard.raised)
        if heard.owners:
            line.owners = [self._number(lineage, line.lineages) for _, lineage in heard.owners]
        if heard.answers:
            line.answers = [msgspec.Raw(encode_answer(answer)) for answer in heard.answers]
        line.out = encode_out(heard.out)
        self.writer.put(encoder.encode(line))
        self._calls += 1
        if self.writer.full and self._may_pause():
            self.checkpoint()

    def broke(self, error: Exception) -> None:
        """It failed: what follows would be a hole."""
        self.writer.stop(f"{type(error).__name__}: {error}")

    def checkpoint(self) -> None:
        """Begin another segment, from which a replay can begin."""
        self._begin(*self._state())

    def ends(self) -> None:
        """The term is over: say so, or it would look as if it had been killed."""
        if self._engine is not None and not self.writer.failed:
            self.writer.put(encoder.encode(RecordLine(end=True)))
            self._engine = None

    # ------------------------------------------------------------ inside

    def _may_pause(self) -> bool:
        """Whether to hold up decisions for a checkpoint now: best while nobody waits for one, and not all the time."""
        if self.writer.huge:
            return True
        if time.monotonic() < self._not_before:
            return False
        if self._engine is None or not self._engine.pending_work:
            return True
        return self.writer.overfull and not self._engine.searching

    def _state(self) -> tuple[str, bytes | None]:
        """Return how the next segment starts, with the engine's state where it can be written."""
        assert self._engine is not None
        began = time.perf_counter()
        try:
            state = checkpoint.dump(self._engine, self._engine.ear.resolve, "ear")
        except checkpoint.CheckpointError as error:
            number = self.writer.next_number
            log.error("segment %d of the record has no checkpoint, a replay needs those before it: %s", number, error)
            return CONTINUED, None
        seconds = time.perf_counter() - began
        self._not_before = time.monotonic() + PAUSES * seconds
        log.info("checkpoint of the record", extra={"seconds": round(seconds, 3), "bytes": len(state)})
        return CHECKPOINT, state

    def _begin(self, start: str, state: bytes | None) -> None:
        assert self._engine is not None
        self._lineages.clear()
        self._numbered = 0
        header = Header(
            version=__version__,
            build=checkpoint.build(),
            segment=self.writer.next_number,
            term=self._term,
            start=start,
            first=self._calls,
            begun=self._clock(),
            epoch=self._engine.ear.epoch,
            config=self._engine.config,
            plugins=notes_of(self._engine.extensions),
        )
        self.writer.begin(encoder.encode(header), state)

    def _number(self, lineage: Lineage | None, fresh: list[msgspec.Raw]) -> int | None:
        """Return a lineage's number in this segment. The same owners are named by many pods, again and again."""
        if lineage is None:
            return None
        # By identity, which is cheap; held here, so that no other object gets the same.
        key = (*map(id, lineage.owners), lineage.complaint, lineage.gone, lineage.doubt)
        known = self._lineages.get(key)
        if known is None:
            if len(self._lineages) >= MOST_LINEAGES:
                self._lineages.clear()  # those still in use are written once more
            known = self._lineages[key] = self._numbered, lineage
            self._numbered += 1
            fresh.append(msgspec.Raw(encode_lineage(lineage)))
        return known[0]


def encode_out(out: Sequence[Any]) -> list[tuple[str, msgspec.Raw]]:
    """Return instructions by kind, as JSON."""
    return [(type(one).__name__, msgspec.Raw(encoder.encode(one))) for one in out]
