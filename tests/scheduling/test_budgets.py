"""Searches charge what they do: a workload that costs too much is stopped in the middle, and the others are placed."""

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.helpers import make_node, make_pod
from tests.scheduling.driver import Driver, fabric, gang
from topo_scheduler.api.objects import Container, Pod, PodSpec, ResourceRequirements
from topo_scheduler.api.reasons import Reason
from topo_scheduler.api.selectors import (
    Affinity,
    LabelSelector,
    PodAffinity,
    PodAffinityTerm,
    TopologySpreadConstraint,
)
from topo_scheduler.scheduling import barrier as limits
from topo_scheduler.scheduling.barrier import ATTEMPT_OPERATIONS, MIN_OPERATIONS, Barrier
from topo_scheduler.scheduling.instructions import CountFailure
from topo_scheduler.scheduling.placing.model.placement_query import NO_LIMITS
from topo_scheduler.scheduling.preemption.regions import Region
from topo_scheduler.scheduling.preemption.spreading import spread_cheapest
from topo_scheduler.state.operation_budget import (
    ROWS_PER_OPERATION,
    OperationBudget,
    OverBudgetError,
    charge,
    charge_rows,
    limited,
)
from topo_scheduler.state.pods import caps

LONG_SECONDS = 60.0
"""What no test here may take: without budgets these run for minutes to for ever."""


def different(size: int, gpus: Sequence[int] = (1,)) -> list[Pod]:
    """A gang of pods none of which asks what another does."""
    annotations = {"gang-name": "many", "gang-size": str(size)}
    return [
        make_pod(f"many-{n}", gpus=gpus[n % len(gpus)], cpu=f"{100 + n}m", annotations=annotations, created=n)
        for n in range(size)
    ]


def tied(name: str, affinity: Affinity | None, spread: list[TopologySpreadConstraint]) -> Pod:
    limits: dict[str, Any] = {"nvidia.com/gpu": 1}
    spec = PodSpec(containers=[Container("main", ResourceRequirements(limits, limits))])
    spec.affinity, spec.topology_spread_constraints = affinity, spread
    return make_pod(name, spec=spec, labels={"app": name})


def counted(d: Driver) -> set[tuple[str, str]]:
    return {(instruction.phase, instruction.kind) for instruction in d.said if isinstance(instruction, CountFailure)}


def placed_beside(d: Driver, *evil: Pod) -> None:
    """An ordinary gang of another namespace is placed in the same step as what costs too much."""
    good = gang(2, name="good")
    for pod in good:
        pod.metadata.namespace = "victim"
    began = time.monotonic()
    d.apply(*evil, *good)
    d.settle()
    assert time.monotonic() - began < LONG_SECONDS
    assert len(d.where(*good)) == 2


@pytest.mark.parametrize("size", [12, 40, 140, 1000])
@pytest.mark.parametrize("full", [False, True])
def test_gangs_of_many_classes_are_placed_or_unschedulable(size: int, full: bool) -> None:
    nodes = fabric({f"s{s}/l{leaf}": 8 for s in (1, 2) for leaf in (1, 2, 3)})
    d = Driver(nodes)
    if full:  # half of each node is taken: the quick way finds nothing
        d.apply(*(make_pod(f"busy-{n.metadata.name}", gpus=5, node=n.metadata.name, scheduler="other") for n in nodes))
    many = different(size, (1, 2, 3))
    began = time.monotonic()
    d.run(*many)
    assert time.monotonic() - began < LONG_SECONDS
    assert len(d.where(*many)) in (0, size)
    d.forget()
    after = [make_pod(f"after-{n}", gpus=1, namespace="victim") for n in range(2)]
    d.run(*after)
    assert len(d.where(*after)) == 2 or d.where(*many)


@pytest.mark.unrecorded
@pytest.mark.parametrize("kind", ["anti-affinity", "spread", "affinity"])
def test_thousands_of_terms_are_stopped_and_the_others_are_placed(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(limits, "ATTEMPT_OPERATIONS", 200_000)
    # Caps refuse such a pod before any search; the budget holds where they don't.
    for name in ("MAX_TERMS", "MAX_SPREAD_CONSTRAINTS", "MAX_LABELS", "MAX_REQUIREMENTS"):
        monkeypatch.setattr(caps, name, 10_000)
    d = Driver([make_node(f"n{n}", f"s1/l{n % 8}", labels={f"k{n % 7}": "x"}) for n in range(400)])
    busy = [make_pod(f"busy-{n}", gpus=1, node=f"n{n}", scheduler="other", labels={"app": f"a{n}"}) for n in range(200)]
    d.apply(*busy)
    terms = [
        PodAffinityTerm(LabelSelector({"app": f"b{n}"}), topology_key="kubernetes.io/hostname") for n in range(5000)
    ]
    spread = [
        TopologySpreadConstraint("kubernetes.io/hostname", "DoNotSchedule", 1, label_selector=term.label_selector)
        for term in terms
    ]
    affinity = Affinity(
        pod_anti_affinity=PodAffinity(required=terms) if kind == "anti-affinity" else None,
        pod_affinity=PodAffinity(required=terms) if kind == "affinity" else None,
    )
    evil = tied("evil", None if kind == "spread" else affinity, spread if kind == "spread" else [])
    placed_beside(d, evil)
    assert not d.where(evil)
    assert counted(d) == {("decision", "operations")}
    (message,) = d.told(evil, Reason.OVER_BUDGET)
    assert "more than 200,000 operations" in message
    assert "fewer affinity terms and spread constraints" in message
    assert "The scheduler retries in 10 s." in message


def test_a_stopped_attempt_depends_on_operations_and_not_on_the_clock() -> None:
    """Two engines of which one has a clock that races say the same."""
    said = []
    for rate in (0.0, 1e-6):
        d = Driver(fabric({"s1/l1": 8}))
        ticks = iter(range(10**9))
        d.clock = lambda ticks=ticks, rate=rate: next(ticks) * rate  # type: ignore[misc]
        d.run(*different(60))
        said.append([type(instruction).__name__ for instruction in d.said])
    assert said[0] == said[1]


def test_a_clock_that_runs_away_ends_an_attempt_that_counts_too_little() -> None:
    budget = OperationBudget(10**9, 5.0, iter(range(0, 10**6, 3)).__next__)
    with pytest.raises(OverBudgetError, match="more than 5 s") as raised, limited(budget):
        for _ in range(10**6):
            charge(1000)
    assert raised.value.limit == "time"


def test_allocations_are_refused_before_they_are_made() -> None:
    budget = OperationBudget(1000)
    with pytest.raises(OverBudgetError, match="MiB at once") as raised:
        budget.allocate(1 << 40)
    assert raised.value.limit == "memory"
    budget.allocate(1 << 16)
    assert budget.spent == 64


@pytest.mark.parametrize(("leaves", "nodes"), [(1, 5000), (200, 1)])
def test_tables_of_victims_are_refused_before_they_are_made(leaves: int, nodes: int) -> None:
    """Costs of each number of 4,000 members on each node, or in each leaf, take 150 MiB or more."""
    members = 4000
    rows = leaves * nodes
    region = Region(np.arange(rows), np.arange(0, rows + 1, nodes), leaves)
    table = [[0] for _ in range(rows)]
    with pytest.raises(OverBudgetError, match="MiB at once") as raised, limited(OperationBudget(100_000)):
        spread_cheapest(region, table, members, NO_LIMITS, 1)
    assert raised.value.limit == "memory"


def test_passes_over_arrays_cost_what_they_are_long() -> None:
    budget = OperationBudget(10**9)
    with limited(budget):
        charge_rows(1000 * ROWS_PER_OPERATION, 3)
    assert budget.spent == 3 * (10 + 1000)


def test_without_a_budget_everything_is_free() -> None:
    charge(10**12)
    with limited(OperationBudget(1)), limited(None):
        charge(10**12)


def test_a_namespace_that_exceeds_its_budget_gets_less_for_a_while_and_others_do_not() -> None:
    barrier = Barrier()
    error = OverBudgetError("operations", "too much")

    def left(namespace: str, now: float) -> int:
        return barrier.budget(namespace, now, None).operations

    assert left("evil", 0) == ATTEMPT_OPERATIONS
    barrier.exceeded("evil", error, 0)
    assert left("evil", 1) == ATTEMPT_OPERATIONS // 4
    for _ in range(100):
        barrier.exceeded("evil", error, 1)
    assert left("evil", 1) == MIN_OPERATIONS
    assert left("other", 1) == ATTEMPT_OPERATIONS
    assert left("evil", 1 + 30) <= left("evil", 1 + 180) <= left("evil", 1 + 240) == ATTEMPT_OPERATIONS
    barrier.exceeded("evil", ValueError(), 1000)
    assert left("evil", 1000) == ATTEMPT_OPERATIONS, "a fault is ours, not the namespace's"


@pytest.mark.parametrize("keys", [("kubernetes.io/hostname", "zone"), ("kubernetes.io/hostname",), ("zone",)], ids=str)
def test_a_large_gang_that_is_spread_over_zones_and_nodes_is_placed_within_its_budget(keys: tuple[str, ...]) -> None:
    names = [f"n{n}" for n in range(1_000)]
    labels = [{"kubernetes.io/hostname": name, "zone": f"z{n % 5}"} for n, name in enumerate(names)]
    d = Driver([make_node(name, f"s1/l{n // 16}", labels=labels[n]) for n, name in enumerate(names)])
    pods = gang(192, gpus=1)
    for pod in pods:
        pod.metadata.labels["app"] = "spread"
        pod.spec.topology_spread_constraints = [
            TopologySpreadConstraint(key, "DoNotSchedule", 1, label_selector=LabelSelector({"app": "spread"}))
            for key in keys
        ]
    d.run(*pods)
    where = d.where(*pods)
    assert len(where) == len(pods)
    used = Counter(tuple(labels[names.index(node)][key] for key in keys[-1:]) for node in where.values())
    assert max(used.values()) - (0 if keys[-1] != "zone" else min(used.values())) <= 1
    assert d.engine.attempting.spent < ATTEMPT_OPERATIONS / 4
