"""Searches beside decisions run inside the barrier, too: for victims, for nodes to hold, and for moves.

What they cost counts for whose turn it is, and a namespace whose searches exceed their budget gets less for a while.
"""

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from tests.helpers import make_pod, timestamp
from tests.scheduling.driver import Driver, configured, fabric, gang
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.reasons import Reason
from topo_scheduler.scheduling.barrier import (
    ATTEMPT_OPERATIONS,
    FIRST_PAUSE_SECONDS,
    FORGIVEN_SECONDS,
    LONGEST_PAUSE_SECONDS,
)
from topo_scheduler.scheduling.instructions import CountFailure, Preempt
from topo_scheduler.scheduling.moving.machine import Moving
from topo_scheduler.scheduling.preemption import search_turns, victim_search
from topo_scheduler.scheduling.preemption.plan import plan_preemption
from topo_scheduler.scheduling.queueing.expensive_attempts import ALLOWED_OPERATIONS, OPERATIONS_PER_SECOND
from topo_scheduler.scheduling.queueing.fair_queue import MISS_OPERATIONS, MISSES_BEFORE_TURNS
from topo_scheduler.scheduling.reserving.choosing import Choosing
from topo_scheduler.state.operation_budget import CLOCK_EVERY_OPERATIONS, OverBudgetError, charge

pytestmark = pytest.mark.unrecorded

ERRORS = [ValueError("struck"), RecursionError(), MemoryError(), OverBudgetError("operations", "it takes too many")]


def counted(d: Driver) -> list[tuple[str, str]]:
    return [(instruction.phase, instruction.kind) for instruction in d.said if isinstance(instruction, CountFailure)]


def kind(error: Exception) -> str:
    if isinstance(error, OverBudgetError):
        return error.limit
    return "memory" if isinstance(error, MemoryError) else "fault"


def full(nodes: int = 2) -> Driver:
    """Nodes on each of which a pod of priority 0 runs, for two hours."""
    d = Driver(fabric({"s1/l1": nodes}))
    d.engine.budgets_known()
    for number in range(1, nodes + 1):
        said = {"expected-duration": "2h"}
        low = make_pod(f"low-{number}", namespace="low", gpus=8, node=f"s1-l1-{number}", annotations=said)
        low.spec.scheduler_name, low.status.phase, low.status.start_time = "other", "Running", timestamp(0)
        d.apply(low)
    return d


def urgent(name: str, namespace: str, number: int = 0, created: float = 0) -> Pod:
    """A pod that only room of others would help; no two of different numbers ask alike."""
    return make_pod(name, namespace=namespace, gpus=8, cpu=f"{1000 + number}m", priority=10, created=created)


def raising(monkeypatch: pytest.MonkeyPatch, error: Exception, cpu: str) -> None:
    """Let searches for victims raise for pods that ask for so much CPU."""

    def strike(planner: Any, ask: Any, *arguments: Any) -> Any:
        if cpu in {str(amount) for cls, _ in ask.groups for _, amount in cls.amounts}:
            raise error
        return plan_preemption(planner, ask, *arguments)

    monkeypatch.setattr(victim_search, "plan_preemption", strike)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_search_for_victims_that_raises_pauses_and_others_have_theirs(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    d = full()
    raising(monkeypatch, error, "1007")
    evil, good = urgent("evil", "evil", 7), urgent("good", "victim", created=1)
    d.apply(evil, good)
    d.step()
    d.step(1)
    assert len(d.preempted()) == 1, "for the other"
    assert set(d.nominated()) == {"good"}
    (message,) = d.told(evil, Reason.FAILED_SCHEDULING)
    assert "In backoff: " in message
    assert "The scheduler retries when pods or nodes have changed, after 10 s at the earliest." in message
    assert counted(d) == [("preemption", kind(error))]
    d.apply(make_pod("change", namespace="low", cpu="1m", node="s1-l1-1", scheduler="other", phase="Running"))
    d.step(FIRST_PAUSE_SECONDS - 2)
    assert len(counted(d)) == 1, "not before its pause is over"
    d.step(2)
    if isinstance(error, OverBudgetError):
        assert len(counted(d)) == 1, "what its namespace has left is less than what was too little"
        d.step(FORGIVEN_SECONDS)
    assert len(counted(d)) == 2
    monkeypatch.undo()
    d.apply(make_pod("other", namespace="low", cpu="1m", node="s1-l1-1", scheduler="other", phase="Running"))
    d.step(LONGEST_PAUSE_SECONDS)
    assert "evil" in d.nominated(), "the search starts again"


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_search_for_nodes_to_hold_that_raises_stops_no_other(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    d = full()
    d.engine.configure(configured("{reservation: {gangs: 2, maxGPUSharePerNamespace: 1}}"))
    plan = Choosing.plan

    def strike(self: Choosing, workload: Any, *arguments: Any) -> Any:
        if workload.name == "evil":
            raise error
        return plan(self, workload, *arguments)

    monkeypatch.setattr(Choosing, "plan", strike)
    evil, good = gang(2, name="evil"), gang(2, name="good")
    d.apply(*evil, *good)
    for _ in range(40):
        d.step(1)
    assert [held.workload for held in d.engine.reserving.holds] == ["default/good"]
    assert set(counted(d)) == {("reservation", kind(error))}
    d.delete(*[pod for pod in d.pods.values() if pod.metadata.namespace == "low"])
    d.settle(1)
    assert len(d.where(*evil)) == 2 or len(d.where(*good)) == 2, "both are placed where there is room"


def test_a_look_for_moves_that_raises_stops_no_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    def strike(self: Moving, *arguments: Any) -> Any:
        raise ValueError("struck")

    monkeypatch.setattr(Moving, "due", strike)
    d = Driver(fabric({"s1/l1": 2}))
    assert d.run(make_pod("good", gpus=8))
    assert ("moves", "fault") in counted(d)


def test_an_explanation_that_takes_too_much_is_stopped_and_the_next_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    d = Driver(fabric({"s1/l1": 1}))
    explanation = d.engine.why._explanation

    def expensive(workload: Any, *arguments: Any) -> Iterator[Any]:
        if workload.name == "evil":
            charge(10**9)
        yield from explanation(workload, *arguments)

    monkeypatch.setattr(d.engine.why, "_explanation", expensive)
    evil, good = gang(2, name="evil"), gang(2, name="good")
    d.apply(*evil, *good)
    d.step()
    d.explain(1)
    assert counted(d) == [("explanation", "operations")]
    assert "What would help" in d.told(good[0])[-1]
    assert "What would help" not in d.told(evil[0])[-1]


# ---------------------------------------------------------------- what it costs


def costing(monkeypatch: pytest.MonkeyPatch, operations: int) -> None:
    """Let each search for victims cost so much, and find no victims."""

    def cost(*_: Any) -> None:
        charge(operations)

    monkeypatch.setattr(victim_search, "plan_preemption", cost)
    monkeypatch.setattr(search_turns, "PAUSE_SECONDS_PER_CANDIDATE", 0.0)


def test_searches_for_victims_count_for_whose_turn_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    d = full()
    costing(monkeypatch, MISSES_BEFORE_TURNS * MISS_OPERATIONS)
    d.apply(*(urgent(f"evil-{n}", "evil", n) for n in range(3 * MISSES_BEFORE_TURNS)))
    d.apply(urgent("good", "victim", 999, created=1))
    # Its namespace holds more, so by shares its turn would come last.
    d.apply(make_pod("holds", namespace="victim", cpu="8", node="s1-l1-1", scheduler="other", phase="Running"))
    d.step()
    names = [decision.name for decision in d.decisions()]
    assert names.index("victim/good") <= 2, "after one or two searches of the others"


def test_searches_for_victims_that_find_none_are_charged_to_their_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many pods it has: the others are tried meanwhile."""
    d = full()
    costing(monkeypatch, 300_000)
    d.apply(*(urgent(f"evil-{n}", "evil", n) for n in range(30)))
    for _ in range(20):
        d.step(1)
    names = [decision.name for decision in d.decisions()]
    assert len(names) <= (ALLOWED_OPERATIONS + 20 * OPERATIONS_PER_SECOND) / 300_000 + 1
    d.apply(urgent("good", "victim", 999, created=1))
    d.step(0.1)
    assert [decision.name for decision in d.decisions()][len(names) :] == ["victim/good"]


def test_a_namespace_whose_searches_exceed_their_budget_gets_less(monkeypatch: pytest.MonkeyPatch) -> None:
    d = full()
    costing(monkeypatch, 10**9)
    d.apply(urgent("evil", "evil"))
    d.step()
    assert counted(d) == [("preemption", "operations")]
    budget = d.engine.attempting.barrier.budget
    assert budget("evil", d.now, None).operations == ATTEMPT_OPERATIONS // 4
    assert (
        budget("evil", d.now, None, victim_search.SEARCH_OPERATIONS).operations == victim_search.SEARCH_OPERATIONS // 4
    )
    assert budget("victim", d.now, None).operations == ATTEMPT_OPERATIONS


def test_a_namespace_whose_attempts_exceed_their_budget_gets_less(monkeypatch: pytest.MonkeyPatch) -> None:
    d = Driver(fabric({"s1/l1": 2}))
    decide = d.engine.attempts.decide

    def expensive(workload: Any, *arguments: Any) -> Any:
        if workload.namespace == "evil":
            charge(10**9)
        return decide(workload, *arguments)

    monkeypatch.setattr(d.engine.attempts, "decide", expensive)
    good = make_pod("good", namespace="victim", gpus=8)
    d.run(make_pod("evil", namespace="evil", gpus=8), good)
    assert d.where(good)
    assert counted(d) == [("decision", "operations")]
    assert d.engine.attempting.barrier.budget("evil", d.now, None).operations == ATTEMPT_OPERATIONS // 4
    assert d.engine.attempting.barrier.budget("victim", d.now, None).operations == ATTEMPT_OPERATIONS


def slowly() -> None:
    """Charge less than any budget, while the clock reads 3 s later each time."""
    for _ in range(6):
        charge(CLOCK_EVERY_OPERATIONS)


def racing(d: Driver) -> Driver:
    ticks = count()
    d.clock = lambda: 3.0 * next(ticks)
    return d


def test_a_search_for_victims_that_takes_too_long_pauses_and_others_have_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    d = racing(full())

    def plan(planner: Any, ask: Any, *arguments: Any) -> Any:
        if "1007" in {str(amount) for cls, _ in ask.groups for _, amount in cls.amounts}:
            slowly()
        return plan_preemption(planner, ask, *arguments)

    monkeypatch.setattr(victim_search, "plan_preemption", plan)
    evil, good = urgent("evil", "evil", 7), urgent("good", "victim", created=1)
    d.apply(evil, good)
    for _ in range(3):
        d.step()
    assert counted(d) == [("preemption", "time")]
    assert "the search for a placement with preemption was stopped, it takes more than 5 s" in d.told(evil)[-1]
    assert set(d.nominated()) == {"good"}


def test_an_attempt_that_takes_too_long_ends_and_others_have_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    d = racing(Driver(fabric({"s1/l1": 2})))
    decide = d.engine.attempts.decide

    def lasting(workload: Any, *arguments: Any) -> Any:
        if workload.namespace == "evil":
            slowly()
        return decide(workload, *arguments)

    monkeypatch.setattr(d.engine.attempts, "decide", lasting)
    evil, good = make_pod("evil", namespace="evil", gpus=8), make_pod("good", namespace="victim", gpus=8)
    d.apply(evil, good)
    d.settle(3)
    assert counted(d) == [("decision", "time")]
    assert "the search for a placement was stopped, it takes more than 5 s" in d.told(evil)[-1]
    assert d.where(evil, good).keys() == {"good"}


def test_an_explanation_that_takes_too_long_is_stopped_and_the_next_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    d = Driver(fabric({"s1/l1": 1}))
    explanation = d.engine.why._explanation

    def lasting(workload: Any, *arguments: Any) -> Iterator[Any]:
        if workload.name == "evil":
            slowly()
        yield from explanation(workload, *arguments)

    monkeypatch.setattr(d.engine.why, "_explanation", lasting)
    evil, good = gang(2, name="evil"), gang(2, name="good")
    d.apply(*evil, *good)
    d.step()
    racing(d)
    for _ in range(9):
        d.explain(1)
    assert counted(d) == [("explanation", "time")]
    assert "What would help" in d.told(good[0])[-1]
    assert "What would help" not in d.told(evil[0])[-1]


def test_a_search_for_nodes_to_reserve_that_takes_too_long_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    d = full()
    d.engine.configure(configured("{reservation: {gangs: 2, maxGPUSharePerNamespace: 1}}"))
    plan = Choosing.plan

    def lasting(self: Choosing, workload: Any, *arguments: Any) -> Any:
        if workload.name == "evil":
            slowly()
        return plan(self, workload, *arguments)

    monkeypatch.setattr(Choosing, "plan", lasting)
    d.apply(*gang(2, name="evil"), *gang(2, name="good"))
    racing(d)
    for _ in range(80):
        d.step(1)
    assert [held.workload for held in d.engine.reserving.holds] == ["default/good"]
    assert set(counted(d)) == {("reservation", "time")}


def heavy_but_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches exceed any budget, but for those of a pod with 1000 milli-CPU, which need more than the least budget."""

    def plan(planner: Any, ask: Any, *arguments: Any) -> Any:
        asked = {amount for cls, _ in ask.groups for _, amount in cls.amounts}
        charge(100_000 if 1000 in asked else 2 * victim_search.SEARCH_OPERATIONS)
        return plan_preemption(planner, ask, *arguments)

    monkeypatch.setattr(victim_search, "plan_preemption", plan)


def test_a_search_that_exceeds_a_lowered_budget_is_repeated_though_nothing_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heavy_but_for_one(monkeypatch)
    d = full()
    d.apply(*(urgent(f"heavy{number}", "team", number) for number in range(1, 5)))
    d.step(1)
    good = urgent("good", "team", created=1)
    d.apply(good)
    for _ in range(80):
        d.step(1)
    assert any("The scheduler retries in " in message for message in d.told(good, Reason.FAILED_SCHEDULING))
    for _ in range(30):
        d.step(10)
    assert {instruction.preemptor.name for instruction in d.said if isinstance(instruction, Preempt)} == {"good"}
    assert counted(d).count(("preemption", "operations")) <= 11, "what was too little is not tried again"


def test_a_search_that_exceeds_a_lowered_budget_delays_none_of_other_namespaces_that_ask_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heavy_but_for_one(monkeypatch)
    d = full()
    d.apply(*(urgent(f"heavy{number}", "evil", number) for number in range(1, 5)))
    for _ in range(60):
        d.step(1)
    d.apply(urgent("same", "evil"))
    for _ in range(20):
        d.step(1)
    assert counted(d).count(("preemption", "operations")) == 5
    d.apply(urgent("victim", "victim", created=1))
    d.step(1)
    assert {instruction.preemptor.name for instruction in d.said if isinstance(instruction, Preempt)} == {"victim"}
