"""Any outages, faults and clock rates: never two leaders, and always one again."""

import asyncio
from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from topo_scheduler.simulation.apiserver import Delay, Disconnect, Refuse, Truncate
from topo_scheduler.simulation.apiserver.faults import Fault

from .lease_candidates import LEASES, Candidates, candidates, drifting_clock
from .virtual import run_virtually
from .world import eventually

FAULTS: dict[str, Fault] = {
    "500": Refuse(500),
    "409": Refuse(409),
    "lost": Disconnect(),
    "lost answer": Disconnect(applied=True),
    "half": Truncate(),
    "slow": Delay(4.0),
    "stuck": Delay(1e6),
}


@dataclass(frozen=True)
class Trouble:
    """Something happens to one candidate, and some time passes."""

    candidate: int
    what: str
    times: int
    seconds: float


troubles = st.builds(
    Trouble,
    st.integers(0, 2),
    st.sampled_from(["away", "back", "delete", "stop", *FAULTS]),
    st.integers(1, 4),
    st.sampled_from([0.0, 0.5, 1.9, 3.0, 7.0, 11.0, 16.0]),
)


async def scenario(history: list[Trouble], rates: list[float]) -> None:
    async with candidates() as t:
        for number, rate in enumerate(rates):
            await t.add(f"c{number}", clock=drifting_clock(rate, number * 1_000.0))
        for trouble in history:
            await happen(t, trouble)
            await asyncio.sleep(trouble.seconds)
        for candidate in t.candidates:
            candidate.server.faults.clear()
            await candidate.server.come_back()
        await eventually(lambda: sum(candidate.active for candidate in t.candidates) == 1, within=40)
        await asyncio.sleep(30)
        assert sum(candidate.active for candidate in t.candidates) == 1


async def happen(t: Candidates, trouble: Trouble) -> None:
    candidate = t.candidates[trouble.candidate]
    match trouble.what:
        case "away":
            await candidate.server.go_away()
        case "back":
            await candidate.server.come_back()
        case "delete":
            if t.store.find(LEASES, "topo", "kube-system") and t.holder:
                t.store.delete(LEASES, "topo", "kube-system")
        case "stop":
            for task in t._tasks[trouble.candidate : trouble.candidate + 1]:
                task.cancel()
                await asyncio.wait({task})
                t._tasks[trouble.candidate] = t.start(candidate)
                t._tasks.pop()
        case fault:
            candidate.server.faults.add(FAULTS[fault], resource="leases", times=trouble.times)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(troubles, max_size=14), st.lists(st.sampled_from([0.96, 1.0, 1.04]), min_size=3, max_size=3))
def test_never_two_and_always_one_again(history: list[Trouble], rates: list[float]) -> None:
    run_virtually(scenario(history, rates))
