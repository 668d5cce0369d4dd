"""Two replicas as processes of their own on a real API server: one is stopped, killed or ended, the other follows.

The long form, with the times of the manifests, is `python -m tests.failover`.
"""

import pytest

from topo_scheduler.api.process import LeaderElection

from .audit import Write, zombies
from .scene import scene
from .times import crash, orderly_end
from .zombies import cycles

SHORT = LeaderElection(lease_duration=4.0, renew_deadline=3.0, retry_period=0.5)
SLACK_SECONDS = 6.0
"""What lists and imports may take beside the lease, on a machine that does other things too."""


def test_a_write_after_another_one_took_the_lease_is_found() -> None:
    def write(credential: str, done: float, what: str) -> Write:
        return Write(credential, done, done, what, "default/x")

    a = [write("a", 1, "create leases"), write("a", 2, "create pods/binding"), write("a", 3, "update leases")]
    b = [write("b", 10, "update leases"), write("b", 11, "create pods/binding")]
    assert zombies([*a, *b]) == []
    late = write("a", 12, "create pods/binding")
    assert zombies([*a, *b, late, write("a", 13, "create events"), write("b", 14, "patch pods/status")]) == [late]
    assert zombies([*a, *b, write("a", 20, "update leases"), write("a", 21, "create pods/eviction")]) == []


@pytest.mark.real
@pytest.mark.timeout(3600)
async def test_a_leader_that_is_woken_after_another_has_followed_writes_nothing() -> None:
    async with scene(SHORT, {"s1": [8]}) as it:
        found = await cycles(it, 1, stop_seconds=8.0)
        assert found.takeovers == 1, it.logs()
        assert found.zombies == []
        assert found.overbooked == []
        assert await crash(it) < SHORT.lease_duration + SLACK_SECONDS, it.logs()
        assert await orderly_end(it) < SLACK_SECONDS, it.logs()
        assert it.zombies() == []
