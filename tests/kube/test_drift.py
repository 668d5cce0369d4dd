"""The clock of a term against the dates of answers: only a lasting difference that all answers show counts."""

from email.utils import formatdate
from types import SimpleNamespace
from typing import Any, cast

import pytest

from topo_scheduler.kube.connection.server_clock import ServerClock
from topo_scheduler.runtime.server_time import DRIFTED_ANSWERS, Drift, server_time

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
        server.heard(formatdate(BEGAN + time + seconds, usegmt=True), time)
        seen = drift.seconds()
    assert seen == pytest.approx(expected, abs=1.0)


@pytest.mark.parametrize(
    ("delay", "ahead", "uses_server"),
    [(3.0, 3.0, False), (3.0, 4.5, False), (3.0, 60.0, True), (0.1, 3.0, True), (3.0, -3.0, True), (0.1, 1.0, False)],
    ids=["slow", "slow and 1.5 s ahead", "slow and wrong", "wrong", "slow and behind", "right"],
)
async def test_a_slow_answer_is_no_wrong_clock(
    delay: float, ahead: float, uses_server: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The API server wrote its date at once, and its answer took ``delay`` seconds; or it took that to write it."""
    time = 100.0
    server = ServerClock(lambda: time)
    asked = server.asked()
    time += delay
    server.heard(formatdate(BEGAN + time - ahead, usegmt=True), asked)
    clock = await server_time(cast(Any, SimpleNamespace(server_clock=server)), lambda: time, lambda: BEGAN + time)
    assert ("the clock of this machine is" in caplog.text) == uses_server
    assert clock() == pytest.approx(BEGAN + time - (ahead if uses_server else 0.0), abs=1.0)
