"""The whole engine under whatever order of events, while exceptions strike anywhere behind its barriers."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from tests.scheduling.engine_machine import EngineMachine
from tests.scheduling.striking import ERRORS, Striker, functions
from topo_scheduler.scheduling.engine import Engine

pytestmark = pytest.mark.unrecorded

ENTRIES = (
    "step",
    "explain",
    "nodes_applied",
    "pods_applied",
    "pod_deleted",
    "groups_applied",
    "group_deleted",
    "owner_changed",
    "bind_finished",
    "rehearsed",
    "eviction_finished",
)
LONGEST_PAUSE_SECONDS = 600
MOST_PAUSES = 100
"""Objects are read again some at a time."""
NAMES = sorted(functions())


class Striking(EngineMachine):
    """A cluster whose engines are struck."""

    def __init__(self) -> None:
        self.strikers: dict[int, Striker] = {}
        self.seed, self.gap, self.engines = 0, 0, 0
        super().__init__()

    def new_engine(self) -> Engine:
        engine = super().new_engine()
        striker = self.strikers[id(engine)] = Striker()
        if self.gap:  # an engine and its twin are struck alike
            striker.keep_striking(f"{self.seed} {self.engines // 2}", self.gap)
        self.engines += 1
        for name in ENTRIES:
            setattr(engine, name, self.burning(striker, getattr(engine, name)))
        return engine

    def burning(self, striker: Striker, method: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            with striker.burning():
                return method(*args, **kwargs)

        return called

    @rule(name=st.sampled_from(NAMES), call=st.integers(1, 4), error=st.sampled_from(ERRORS))
    def strike(self, name: str, call: int, error: Callable[[], Exception]) -> None:
        """A function raises at one of its next calls."""
        for engine in (self.engine, self.twin):
            self.strikers[id(engine)].arm(name, call, error)

    @initialize(seed=st.integers(0, 2**32 - 1), gap=st.integers(10, 300))
    def keep_striking(self, seed: int, gap: int) -> None:
        """Whichever functions are called raise, one after the other."""
        self.gap, self.seed = gap, seed
        for number, striker in enumerate(self.strikers.values()):
            striker.keep_striking(f"{seed} {number // 2}", gap)

    @rule()
    def explained(self) -> None:
        """What waits is explained."""
        said = self.engine.explain(self.now, lambda: 0.0, 1.0)
        assert said == self.twin.explain(self.now, lambda: 0.0, 1.0)

    def teardown(self) -> None:
        self.gap = 0
        for striker in self.strikers.values():
            striker.stop()
        unread = (self.engine.arrivals.unread, self.engine._unread_nodes, self.engine._unread_nominations)
        for _ in range(MOST_PAUSES):
            if any(unread):
                self.step(LONGEST_PAUSE_SECONDS)
                self.everything_is_answered()  # no answer takes as long as such a pause
        assert not any(unread), "what raised is not read again"
        super().teardown()


TestStriking = Striking.TestCase
TestStriking.settings = settings(
    max_examples=30, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
