"""Records for tests: engines that are driven and recorded, and files that are tampered with."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import zstandard

from tests.helpers import EPOCH
from tests.scheduling.driver import Driver, fabric, gang
from topo_scheduler.api.config import Configuration
from topo_scheduler.api.objects import Node
from topo_scheduler.observability.segment_writer import SegmentLimits, SegmentWriter
from topo_scheduler.observability.segments import SegmentReader
from topo_scheduler.recording.observed_engine import CallListener, ObservedEngine
from topo_scheduler.recording.recorder import Recorder
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.scheduling.extensions.extension import Plugin, PluginGuard
from topo_scheduler.scheduling.extensions.registry import Extensions

LARGE = SegmentLimits(1 << 30, 1 << 26, 3600)


class HeardDriver(Driver):
    """A driver whose engine is listened to."""

    def __init__(
        self,
        listeners: Sequence[CallListener],
        nodes: Iterable[Node] = (),
        config: Configuration | None = None,
        *,
        plugins: Sequence[Plugin] = (),
        guard: PluginGuard | None = None,
    ) -> None:
        self._listeners = listeners
        self._extensions = Extensions(guard)
        for plugin in plugins:
            self._extensions.register(plugin)
        # What else a driver sets, it sets behind the listeners' back.
        super().__init__(nodes, config, leaves_room=True)

    def _make_engine(self, config: Configuration) -> Engine:
        return ObservedEngine(config, self._resolve, self._extensions, EPOCH, self._listeners)


def record(directory: Path, work: Callable[[HeardDriver, Recorder], None], **made: Any) -> SegmentWriter:
    """Record what some work does to an engine; return the writer, closed."""
    writer = SegmentWriter(directory, made.pop("bounds", LARGE))
    recorder = Recorder(writer)
    try:
        work(HeardDriver([recorder], **made), recorder)
        recorder.ends()
    finally:
        writer.close()
    return writer


def three_gangs(d: HeardDriver, _: Recorder | None = None) -> None:
    """Two gangs that fit, then one that doesn't."""
    d.nodes(*fabric({"s1/l1": 4, "s1/l2": 4}))
    for number in range(3):
        d.now += 1
        d.apply(*gang(4, name=f"team-{number}"))
        d.settle()


def lines_of(path: Path) -> list[Any]:
    """Return a segment's lines."""
    return [json.loads(line) for line in SegmentReader(path)]


def rewrite(path: Path, lines: Iterable[Any]) -> None:
    """Write a segment again."""
    text = b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)
    path.write_bytes(zstandard.ZstdCompressor(write_checksum=True).compress(text))


def segment(directory: Path, number: int = 1) -> Path:
    """Return a segment's path."""
    return directory / f"{number:08d}.jsonl.zst"
