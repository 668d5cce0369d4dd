"""When a bound pod is expected to end."""

from math import inf

import pytest

from tests.helpers import EPOCH, make_pod, timestamp
from topo_scheduler.api.objects import Pod, PodCondition
from topo_scheduler.scheduling.intake.understand import waits_since
from topo_scheduler.state.pods.victim_info import occupant_of
from topo_scheduler.state.statistics.run_times import ended_of


def bound(deadline: int | None = None, expected: str = "") -> Pod:
    pod = make_pod("p", node="n", annotations={"expected-duration": expected} if expected else {})
    pod.status.start_time = timestamp(100)
    pod.spec.active_deadline_seconds = deadline
    return pod


@pytest.mark.parametrize(
    ("deadline", "expected", "after"),
    [
        (None, "", inf),
        (600, "", 600),
        (None, "1h30m", 5400),
        (600, "1h", 600),
        (7200, "1h", 3600),
        (None, "soon", inf),
        (0, "", inf),
        (2**63 - 1, "", inf),
        (2**63 - 1, "1h", 3600),
    ],
)
def test_from_its_start_by_the_shorter_of_deadline_and_expected_duration(
    deadline: int | None, expected: str, after: float
) -> None:
    assert occupant_of(bound(deadline, expected)).ends == EPOCH + 100 + after


def test_one_that_is_deleted_ends_when_its_grace_period_does() -> None:
    pod = bound(600)
    pod.metadata.deletion_timestamp = timestamp(160)
    assert occupant_of(pod).ends == EPOCH + 160


def test_without_a_start_nothing_is_expected() -> None:
    pod = bound(600)
    pod.status.start_time = pod.metadata.creation_timestamp = None
    assert occupant_of(pod).ends == inf


def test_a_time_that_no_calendar_has_is_ignored() -> None:
    """What others write into the status of pods comes as they wrote it, but in UTC."""
    pod = bound(600)
    pod.status.start_time = "10000-01-01T11:59:59Z"
    occupant = occupant_of(pod)
    assert not occupant.start_reported
    assert occupant.started == EPOCH
    pod.status.conditions = [PodCondition("PodScheduled", "False", "Unschedulable", "", "10000-01-01T11:59:59Z")]
    assert waits_since(pod, EPOCH, 7.0) == 7.0
    pod.status.phase = "Succeeded"
    assert ended_of(pod, EPOCH + 200) is None


@pytest.mark.parametrize(("created", "written", "since"), [(100, 130, 130), (100, -(10**8), 100), (100, 900, 200)])
def test_what_is_written_of_a_pod_does_not_let_it_wait_for_longer_than_it_exists(
    created: int, written: int, since: int
) -> None:
    pod = make_pod("a", created=created)
    pod.status.conditions = [PodCondition("PodScheduled", "False", "Unschedulable", "", timestamp(written))]
    assert waits_since(pod, EPOCH, 200.0) == since
