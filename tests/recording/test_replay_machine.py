"""Whatever happens to an engine, its record repeats it: the machine of the engine's own tests, replayed."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import invariant, rule

from tests.helpers import EPOCH
from tests.scheduling.engine_machine import EngineMachine
from topo_scheduler.api.groups import GroupApi
from topo_scheduler.observability.segment_writer import SegmentLimits, SegmentWriter
from topo_scheduler.recording.observed_engine import ObservedEngine
from topo_scheduler.recording.recorder import Recorder
from topo_scheduler.recording.replay import replay
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.state.pods.pod_groups import Serving

BOUNDS = SegmentLimits(1 << 30, 1 << 24, 3600)


class RecordedCluster(EngineMachine):
    """The twin is a plain engine: that both say the same shows that listening changes nothing."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.directory = Path(self.folder.name)
        self.writer = SegmentWriter(self.directory, BOUNDS)
        self.recorder = Recorder(self.writer)
        self.made = 0
        super().__init__()

    def new_engine(self) -> Engine:
        self.made += 1
        if self.made % 2 == 0:
            return super().new_engine()
        self.recorder.ends()
        engine = ObservedEngine(self.config, self.resolve, None, EPOCH, [self.recorder])
        engine.groups_served(GroupApi.NATIVE, Serving.LISTED, 0, 0)
        engine.groups_applied([group for group in self.groups.values() if group is not None], 0)
        engine.budgets_known()
        return engine

    @rule()
    def the_segment_is_full(self) -> None:
        self.recorder.checkpoint()

    @invariant()
    def every_pod_that_waits_has_a_place_in_the_queue(self) -> None:
        """Left out: it moves the engine on behind the recorder's back."""

    def check_rebuilt(self) -> None:
        """Instead: the record is replayed, from its start and from its last checkpoint."""
        self.recorder.ends()
        self.writer.close()
        assert not self.writer.failed
        whole = replay(self.directory)
        assert whole.first is None, whole.first
        assert whole.notes == []
        assert whole.calls + whole.files >= self.writer.lines
        for path in sorted(self.directory.glob("*.jsonl.zst"))[:-1]:
            path.unlink()
        rest = replay(self.directory)
        assert rest.first is None, rest.first
        assert rest.notes == []
        assert rest.files == 1

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self.folder.cleanup()


TestRecordedCluster = RecordedCluster.TestCase
TestRecordedCluster.settings = settings(
    max_examples=40, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
pytestmark = pytest.mark.timeout(300)
