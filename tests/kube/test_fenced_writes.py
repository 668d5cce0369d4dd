"""What is not sent because the lease ends is one line in the log, and no event about any pod."""

import logging

import pytest

from tests.scheduling.device_driver import asking, driver
from topo_scheduler.api.reasons import Reason
from topo_scheduler.runtime.fenced_writes import QUIET_SECONDS, FencedWrites
from topo_scheduler.scheduling.instructions import LEASE_ENDS


def test_a_burst_of_writes_that_are_not_sent_logs_one_line(caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    writes = FencedWrites(lambda: now[0])
    assert [writes.level(fenced=True) for _ in range(3)] == 3 * [logging.DEBUG]
    assert writes.level(fenced=False) == logging.WARNING
    assert len(caplog.records) == 1
    now[0] += QUIET_SECONDS
    writes.level(fenced=True)
    assert len(caplog.records) == 2


def test_pods_whose_claims_are_not_written_then_get_no_event() -> None:
    d = driver()
    d.problem = LEASE_ENDS
    pods = d.gang(2, asking(8))
    d.run(*pods)
    assert not d.allocated()
    assert d.told(reason=Reason.BIND_FAILED) == []
    d.problem = ""
    d.settle(10)
    assert len({pod.spec.node_name for pod in pods} - {""}) == 2
