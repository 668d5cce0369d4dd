"""Two replicas as processes of their own on a real API server: one is stopped, killed or ended, the other follows.

The long form, with the times of the manifests, is `python -m tests.failover`.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.e2e.api import Json
from topo_scheduler.api.process import LeaderElection

from .audit import BINDING, CREDENTIAL, NOMINATION, Write, bound_at, lease_holder, writes, zombies
from .scene import scene
from .times import crash, orderly_end
from .work import CONFIG, KINDS
from .zombies import cycles

SHORT = LeaderElection(lease_duration=4.0, renew_deadline=3.0, retry_period=0.5)
STOP_SECONDS = 45.0
"""For which the leader is stopped. Meanwhile others lead, and are killed in turn."""
CRASHES = 3
PROMISED_SECONDS = 2.0
"""What a takeover may take beside the lease: the fastest of the `CRASHES` must keep it."""
SLACK_SECONDS = 6.0
"""What each may take beside the lease, on a machine that does other things too."""


def test_a_write_after_another_one_took_the_lease_is_found() -> None:
    def write(credential: str, done: float, what: str) -> Write:
        return Write(credential, done, done, what, "default/x")

    a = [write("a", 1, "create leases"), write("a", 2, "create pods/binding"), write("a", 3, "update leases")]
    b = [write("b", 10, "update leases"), write("b", 11, "create pods/binding")]
    assert zombies([*a, *b]) == []
    late = write("a", 12, "create pods/binding")
    assert zombies([*a, *b, late, write("a", 13, "create events"), write("b", 14, "patch pods/status")]) == [late]
    assert zombies([*a, *b, write("a", 20, "update leases"), write("a", 21, "create pods/eviction")]) == []
    assert [lease_holder(log) for log in ([], a, [*a, *b], [*b, late])] == ["", "a", "b", "b"]


def _event(subresource: str, patch: Mapping[str, object] | None = None) -> Json:
    when = "2026-01-01T00:00:01.500000Z"
    event: Json = {
        "stage": "ResponseComplete",
        "verb": "patch" if subresource == "status" else "create",
        "objectRef": {"resource": "pods", "subresource": subresource, "namespace": "default", "name": "p"},
        "responseStatus": {"code": 201},
        "user": {"extra": {CREDENTIAL: ["replica-1"]}},
        "stageTimestamp": when,
        "requestReceivedTimestamp": when,
    }
    return event if patch is None else {**event, "requestObject": {"status": patch}}


def test_binds_and_nominations_are_read_from_the_audit_log(tmp_path: Path) -> None:
    events = [_event("status", {"nominatedNodeName": "n1"}), _event("status", {"conditions": []}), _event("binding")]
    lines = "".join(json.dumps(event) + "\n" for event in events)
    (tmp_path / "audit.log").write_text(f'{lines}{{"stage": "Respo')
    log = writes(tmp_path)
    assert [write.what for write in log] == [NOMINATION, "patch pods/status", BINDING]
    assert {*KINDS} >= {write.what for write in log}
    second = datetime(2026, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC).timestamp()
    assert (bound_at(log, "p"), bound_at(log, "q")) == (second, None)


@pytest.mark.real
@pytest.mark.timeout(3600)
async def test_a_leader_that_is_woken_after_others_have_followed_writes_nothing() -> None:
    async with scene(SHORT, {"s1": [8]}, config=CONFIG) as it:
        seconds: list[float] = []

        async def takeovers() -> None:
            seconds.extend([await crash(it) for _ in range(CRASHES)])

        outcome = await cycles(it, 1, STOP_SECONDS, takeovers)
        assert outcome.takeovers == 1, it.logs()
        assert outcome.zombies == []
        assert outcome.overbooked == []
        seconds.sort()
        print(f"from SIGKILL to the next bind: {', '.join(f'{duration:.2f} s' for duration in seconds)}")
        assert seconds[0] < SHORT.lease_duration + PROMISED_SECONDS, (seconds, it.logs())
        assert seconds[-1] < SHORT.lease_duration + SLACK_SECONDS, (seconds, it.logs())
        assert await orderly_end(it) < SLACK_SECONDS, it.logs()
        assert it.zombies() == []
