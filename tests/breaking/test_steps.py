"""A task that finds nothing to do pauses, even while the engine says that something is due now."""

from typing import Any

import pytest

from topo_scheduler.recovery.core.machine import Recovery
from topo_scheduler.scheduling.engine import Engine

from .running import virtually
from .world import cluster


@pytest.mark.parametrize("kind", [Engine, Recovery])
@virtually
async def test_what_stays_due_is_looked_at_a_thousand_times_a_second_at_most(
    kind: type[Engine] | type[Recovery], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is due through seconds since the epoch may be due an instant before there is anything to do."""
    steps: list[float] = []
    step = kind.step

    def counted(machine: Any, now: float, *rest: Any) -> Any:
        steps.append(now)
        return step(machine, now, *rest)

    async with cluster({"s1/l1": 2}) as world:
        world.start()
        await world.leading()
        monkeypatch.setattr(kind, "step", counted)
        monkeypatch.setattr(kind, "next_due", lambda machine: steps[-1] if steps else 0.0)
        await world.run(30.0)  # also what is waited for already passes
        before = len(steps)
        await world.run(1.0)
        assert 1 <= len(steps) - before <= 1010
