"""The clock of a term against the dates of answers: only a lasting difference that all answers show counts."""

from email.utils import formatdate
from types import SimpleNamespace
from typing import Any, cast

import pytest

from topo_scheduler.kube.connection.server_clock import ServerClock
from topo_scheduler.runtime.server_time import DRIFTED_ANSWERS, Drift

BEGAN = 1_700_000_000.0


@pytest.mark.parametrize(
    ("ahead", "expected"),
    [
        ([3600.0] * DRIFTED_ANSWERS, 3600.0),
        ([-60.0] * DRIFTED_ANSWERS, -60.0),
        ([0.0] * DRIFTED_ANSWERS, 0.0),
        ([5.0] * DRIFTED_ANSWERS, 0.0),
        ([60.0] * (DRIFTED_ANSWERS - 1), 0.0),
        ([60.0] * (DRIFTED_ANSWERS - 1) + [0.0], 0.0),
        ([60.0, 120.0] * DRIFTED_ANSWERS, 0.0),
        ([0.0] * 20 + [60.0] * DRIFTED_ANSWERS, 60.0),
    ],
    ids=["behind", "ahead", "right", "slow answers", "too few", "not lasting", "two servers", "the server was set"],
)
def test_a_term_has_drifted_if_all_of_the_last_answers_agree(ahead: list[float], expected: float) -> None:
    time = 0.0
    server = ServerClock(lambda: time)
    drift = Drift(cast(Any, SimpleNamespace(server_clock=server)), lambda: BEGAN + time)
    assert drift.seconds() == 0.0, "no answer yet"
    for seconds in ahead:
        time += 10.0
        server.heard(formatdate(BEGAN + time + seconds, usegmt=True))
        seen = drift.seconds()
    assert seen == pytest.approx(expected, abs=1.0)
