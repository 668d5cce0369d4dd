"""From the start of a process, and from the end of a leader, to the next bind: measured as `tests.failover` does.

Both with the default times of leader election on a real API server. The first start is not counted: it may compile.
"""

from collections.abc import Sequence
from typing import Final

from tests.failover.scene import scene
from tests.failover.times import crash, first_start
from topo_scheduler.api.process import LeaderElection

from .objects import Json

LEAVES: Final = 62
IN_LEAF: Final = 16
ROUNDS: Final = 3


async def takeover(leaves: int = LEAVES, rounds: int = ROUNDS) -> Json:
    """Start processes where there is no Lease, then kill leaders that have a standby."""
    election = LeaderElection()
    async with scene(election, {"s1": [IN_LEAF] * leaves}) as it:
        await first_start(it)
        starts = [await first_start(it) for _ in range(rounds)]
        crashes = [await crash(it) for _ in range(rounds)]
        problems = it.zombies() + it.cluster.recorder.problems
    return {
        "nodes": IN_LEAF * leaves,
        "rounds": rounds,
        "lease_duration_s": election.lease_duration,
        "first_bind": _spread(starts),
        "after_sigkill": _spread(crashes),
        "after_sigkill_beyond_lease": _spread([seconds - election.lease_duration for seconds in crashes]),
        "broken_rules": len(problems),
        "first_broken_rules": problems[:3],
    }


def _spread(seconds: Sequence[float]) -> Json:
    return {"min_s": round(min(seconds), 2), "max_s": round(max(seconds), 2)}
