"""Records the calls of an engine, so that they can be replayed."""

import logging
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from topo_scheduler import __version__
from topo_scheduler.api.printable import printable_json
from topo_scheduler.observability.segment_writer import SegmentWriter
from topo_scheduler.recording import checkpoint
from topo_scheduler.recording.calls import encode_arguments, encoder
from topo_scheduler.recording.lines import CHECKPOINT, CONTINUED, TERM, Header, RecordLine, encode_lineage
from topo_scheduler.recording.observed_engine import ObservedCall, ObservedEngine
from topo_scheduler.recording.plugin_replay import encode_answer, notes_of
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.scheduling.intake.understand import Lineage

log = logging.getLogger(__name__)

PAUSE_FACTOR: Final = 100
"""Minimum pause after a checkpoint, as a multiple of its duration. A segment of a quarter of the limit overrides it."""
MAX_LINEAGES: Final = 16_384
"""Chains of owners that are cached, so that each is written once."""


class Recorder:
    """A listener that encodes each call at once. The thread of the writer compresses and writes."""

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

    def engine_made(self, engine: Engine) -> None:
        """Start a term, and a segment with it."""
        assert isinstance(engine, ObservedEngine)
        self._engine, self._term, self._calls = engine, uuid.uuid4().hex, 0
        self._begin(TERM, None)

    def call_starts(self, name: str, arguments: Sequence[Any]) -> None:
        """Encode the arguments before the call, because the engine may change them."""
        if not self.writer.failed:
            self._arguments = encode_arguments(name, arguments)

    def call_ended(self, call: ObservedCall) -> None:
        """Pass the line of a call to the writer."""
        if self.writer.failed:
            return
        line = RecordLine(call.name, msgspec.Raw(self._arguments), clock=call.clock, raised=call.raised)
        if call.owners:
            line.owners = [self._number(lineage, line.lineages) for _, lineage in call.owners]
        if call.answers:
            line.answers = [msgspec.Raw(encode_answer(answer)) for answer in call.answers]
        line.out = encode_out(call.out)
        self.writer.put(printable_json(encoder.encode(line)))
        self._calls += 1
        if self.writer.full and self._may_checkpoint():
            self.checkpoint()

    def listener_failed(self, error: Exception) -> None:
        """Stop the record, because this listener failed and calls would be missing."""
        self.writer.stop(f"{type(error).__name__}: {error}")

    def checkpoint(self) -> None:
        """Begin another segment, from which a replay can begin."""
        self._begin(*self._state())

    def ends(self) -> None:
        """Write that the term is over. Without that line a reader assumes that the scheduler was killed."""
        if self._engine is not None and not self.writer.failed:
            self.writer.put(encoder.encode(RecordLine(end=True)))
            self._engine = None

    # ------------------------------------------------------------ inside

    def _may_checkpoint(self) -> bool:
        """Whether to delay decisions for a checkpoint now: preferably without pending workloads, and not too often."""
        if self.writer.huge:
            return True
        if time.monotonic() < self._not_before:
            return False
        if self._engine is None or not self._engine.pending_work:
            return True
        return self.writer.overfull and not self._engine.searching

    def _state(self) -> tuple[str, bytes | None]:
        """Return the start of the next segment, and the engine's state, or None if it can't be encoded."""
        assert self._engine is not None
        began = time.perf_counter()
        try:
            state = checkpoint.dump(self._engine, self._engine.notifier.resolve, "notifier")
        except checkpoint.CheckpointError as error:
            number = self.writer.next_number
            log.error("segment %d of the record has no checkpoint, a replay needs those before it: %s", number, error)
            return CONTINUED, None
        seconds = time.perf_counter() - began
        self._not_before = time.monotonic() + PAUSE_FACTOR * seconds
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
            epoch=self._engine.notifier.epoch,
            config=self._engine.config,
            plugins=notes_of(self._engine.extensions),
        )
        self.writer.begin(printable_json(encoder.encode(header)), state)

    def _number(self, lineage: Lineage | None, new_lineages: list[msgspec.Raw]) -> int | None:
        """Return a lineage's number in this segment. Many pods share a lineage, which is written once."""
        if lineage is None:
            return None
        # The key uses identity, which is cheap. The dict holds the objects, so that no other object gets the same ID.
        key = (*map(id, lineage.owners), lineage.complaint, lineage.gone, lineage.doubt)
        numbered = self._lineages.get(key)
        if numbered is None:
            if len(self._lineages) >= MAX_LINEAGES:
                self._lineages.clear()  # lineages in use will be written again
            numbered = self._lineages[key] = self._numbered, lineage
            self._numbered += 1
            new_lineages.append(msgspec.Raw(encode_lineage(lineage)))
        return numbered[0]


def encode_out(out: Sequence[Any]) -> list[tuple[str, msgspec.Raw]]:
    """Return instructions by kind, as JSON."""
    return [(type(instruction).__name__, msgspec.Raw(encoder.encode(instruction))) for instruction in out]
