"""Half an hour with more hostile pods than in the long form, which is ``python -m tests.churn``; and that it sees."""

import asyncio
from typing import Any

import pytest

from tests.breaking.running import run as virtually
from tests.breaking.world import cluster
from tests.soak.churn import fabric
from topo_scheduler.simulation.apiserver import Delay, RequestInfo
from topo_scheduler.state.pods.workloads import Workload

from .day import run
from .watch import PASSED_OVER_SECONDS, Watch


@pytest.mark.timeout(600)
def test_half_an_hour_with_hostile_pods_has_no_violation() -> None:
    day = run(0.5, 130, 0.1, 1)
    assert not day.violations
    assert day.hostile_pods > 30
    assert len(day.waits) > 30


def test_a_workload_that_is_passed_over_is_seen() -> None:
    async def live() -> list[str]:
        async with cluster(fabric(100)) as world:
            process = world.start()
            await world.leading()
            watch = Watch(world)
            attempt = process.engine.attempting.attempt

            def ignoring(workload: Workload, *arguments: Any) -> int:
                return attempt(workload, *arguments) if workload.name != "ignored" else 0

            vars(process.engine.attempting)["attempt"] = ignoring
            world.gang("ignored", 2)
            world.gang("other", 2)
            await world.run(PASSED_OVER_SECONDS + 5)
            watch.look(process)
            watch.passed_over(process)
            return watch.violations

    violations: list[str] = []

    async def main() -> None:
        violations.extend(await live())

    virtually(main())
    assert len(violations) == 1 and "pending though there is room: {'ignored': 2}" in violations[0]


def test_a_gang_that_stays_partially_bound_and_a_leader_that_ends_are_seen() -> None:
    violations: list[str] = []

    async def main() -> None:
        async with cluster(fabric(100)) as world:
            process = world.start()
            await world.leading()
            watch = Watch(world)
            sent: list[str] = []

            def refused(info: RequestInfo) -> bool:
                sent.append(info.name)
                return info.name != sent[0]

            world.server.faults.add(Delay(10_000.0), verb="create", resource="pods/binding", where=refused)
            world.gang("half", 2)
            await world.run(2.0)
            await process.kill()
            await asyncio.sleep(30.0)
            watch.look(process)
            violations.extend(watch.violations)

    virtually(main())
    assert any("partially bound for" in violation for violation in violations)
    assert any("does not lead" in violation for violation in violations)
