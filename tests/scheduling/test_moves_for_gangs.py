"""Which pods would have to move so that a gang has room: the fewest, each with a node to go to."""

from collections.abc import Iterator, Sequence
from itertools import combinations, product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers import controlled_by, make_node, make_pod
from tests.scheduling.driver import Driver, configured, fabric, gang
from tests.scheduling.repair_moves import REPAIR_ONLY, moves_by_pod, plan_moves, repair_driver, replicated_pod, run_on
from topo_scheduler.api.objects import BudgetSpec, BudgetStatus, DisruptionBudget, ObjectMeta, Pod
from topo_scheduler.api.reasons import Reason
from topo_scheduler.api.selectors import LabelSelector
from topo_scheduler.state.pods.workloads import Workload


def waiting(d: Driver, size: int = 2, gpus: int = 8) -> list[Pod]:
    pods = gang(size, name="large", gpus=gpus)
    d.apply(*pods)
    d.step()
    assert d.where(*pods) == {}
    return pods


# ---------------------------------------------------------------- the words


def test_one_pod_moves_where_one_is_enough_and_an_event_says_so() -> None:
    d = repair_driver({"s1/l1": 2, "s1/l2": 2})
    run_on(d, replicated_pod("a"), replicated_pod("b"), replicated_pod("c"), on=["s1-l1-1", "s1-l2-1", "s1-l2-2"])
    pods = waiting(d)
    d.step(59)
    assert not any("Moving" in text for text in d.told(pods[0]))
    d.step(1)
    assert d.told(pods[0], Reason.FAILED_SCHEDULING)[-1].endswith(
        "Moving 1 pod (default/a from s1-l1-1 to s1-l2-1) would make room in s1/l1."
    )
    d.forget()
    d.step(1000)
    assert d.told(pods[0]) == []


def test_it_is_off_by_default_and_the_plan_can_be_asked_for_all_the_same() -> None:
    d = repair_driver({"s1/l1": 2, "s1/l2": 2}, configured("{preemption: {enabled: false}}"))
    run_on(d, replicated_pod("a"), replicated_pod("b"), replicated_pod("c"), on=["s1-l1-1", "s1-l2-1", "s1-l2-2"])
    pods = waiting(d)
    d.step(1000)
    assert not any("Moving" in text for text in d.told(pods[0]))
    assert moves_by_pod(d, plan_moves(d, pods)) == {"a": ("s1-l1-1", "s1-l2-1")}


def test_nothing_is_changed_by_looking() -> None:
    d = repair_driver({"s1/l1": 2, "s1/l2": 2})
    run_on(d, replicated_pod("a"), replicated_pod("b"), replicated_pod("c"), on=["s1-l1-1", "s1-l2-1", "s1-l2-2"])
    pods = waiting(d)
    before = d.engine.world.nodes.requested.copy()
    assert plan_moves(d, pods)
    assert (d.engine.world.nodes.requested == before).all()


@pytest.mark.parametrize(
    "pod",
    [
        replicated_pod("bare", controlled=False),
        replicated_pod("pinned", movable="false"),
        replicated_pod("urgent", priority=5),
        make_pod("foreign", gpus=2, scheduler="other"),
        make_pod("daemon", gpus=2, owner=controlled_by("DaemonSet", "daemon")),
        make_pod("forged", gpus=2, owner=controlled_by("Pod", "forged")),
    ],
    ids=lambda pod: pod.metadata.name,
)
def test_a_pod_that_is_not_movable_stays(pod: Pod) -> None:
    d = repair_driver({"s1/l1": 2, "s1/l2": 2})
    pod.metadata.uid = f"{pod.metadata.name}-uid"
    pod.spec.node_name = ""
    run_on(d, pod, replicated_pod("b"), replicated_pod("c"), on=["s1-l1-1", "s1-l2-1", "s1-l2-2"])
    moves = moves_by_pod(d, plan_moves(d, waiting(d)))
    assert moves is not None
    assert sorted(moves) == ["b", "c"]


def test_a_disruption_budget_is_kept() -> None:
    for allowed, expected in ((0, ["b", "c"]), (1, ["a"])):
        d = repair_driver({"s1/l1": 2, "s1/l2": 2})
        meta = ObjectMeta(name="web", namespace="default", generation=1)
        selector = BudgetSpec(LabelSelector({"app": "a"}))
        d.engine.budgets_applied([DisruptionBudget(meta, selector, BudgetStatus(allowed, 1))])
        run_on(d, replicated_pod("a"), replicated_pod("b"), replicated_pod("c"), on=["s1-l1-1", "s1-l2-1", "s1-l2-2"])
        moves = moves_by_pod(d, plan_moves(d, waiting(d)))
        assert moves is not None
        assert sorted(moves) == expected


def test_before_the_budgets_are_known_no_pod_is_movable() -> None:
    d = Driver(fabric({"s1/l1": 2, "s1/l2": 2}), REPAIR_ONLY)
    run_on(d, replicated_pod("a"), replicated_pod("b"), replicated_pod("c"), on=["s1-l1-1", "s1-l2-1", "s1-l2-2"])
    assert plan_moves(d, waiting(d)) is None


def test_a_gang_moves_whole_or_stays() -> None:
    d = repair_driver({"s1/l1": 2, "s1/l2": 2, "s1/l3": 1})
    crew = gang(2, controlled=True, gpus=2, name="crew")
    run_on(d, *crew, on=["s1-l1-1", "s1-l1-2"])
    run_on(d, *[replicated_pod(f"b-{n}", 3) for n in range(4)], on=["s1-l2-1", "s1-l2-1", "s1-l2-2", "s1-l2-2"])
    moves = moves_by_pod(d, plan_moves(d, waiting(d)))
    assert moves is not None
    assert sorted(moves) == ["crew-0", "crew-1"]
    assert {to for _, to in moves.values()} == {"s1-l3-1"}


def test_a_gang_spares_what_it_has_beyond_its_minimum() -> None:
    d = repair_driver({"s1/l1": 2, "s1/l2": 2})
    crew = gang(3, controlled=True, gpus=2, name="crew")
    for pod in crew:
        pod.metadata.annotations["topology.scheduler/gang-size"] = "2"
    run_on(d, *crew, on=["s1-l1-1", "s1-l2-1", "s1-l2-2"])
    moves = moves_by_pod(d, plan_moves(d, waiting(d)))
    assert moves == {"crew-0": ("s1-l1-1", "s1-l2-1")} or (moves is not None and len(moves) == 1)


def test_a_pod_without_another_place_does_not_move() -> None:
    d = repair_driver({"s1/l1": 2, "s1/l2": 2})
    run_on(
        d, replicated_pod("a", 5), replicated_pod("b", 5), replicated_pod("c", 4), on=["s1-l1-1", "s1-l2-1", "s1-l2-2"]
    )
    assert plan_moves(d, waiting(d)) is None, "5 GPUs are free in no node once the gang has one leaf"


def test_no_more_pods_than_may_be_moved() -> None:
    d = repair_driver({"s1/l1": 2, "s1/l2": 2})
    run_on(d, *[replicated_pod(f"p-{n}", 1) for n in range(4)], on=["s1-l1-1", "s1-l1-2", "s1-l2-1", "s1-l2-2"])
    pods = waiting(d)
    assert plan_moves(d, pods, max_moves=1) is None
    moves = moves_by_pod(d, plan_moves(d, pods, max_moves=2))
    assert moves is not None
    assert len(moves) == 2


def test_a_plan_that_no_longer_holds_is_taken_back() -> None:
    d = repair_driver({"s1/l1": 2, "s1/l2": 2})
    blocked = replicated_pod("a")
    run_on(d, blocked, replicated_pod("b"), replicated_pod("c"), on=["s1-l1-1", "s1-l2-1", "s1-l2-2"])
    pods = waiting(d)
    d.step(60)
    assert "Moving" in d.told(pods[0])[-1]
    d.nodes(*[make_node(f"s1-l2-{n}", "s1/l2", unschedulable=True) for n in (1, 2)])
    d.step(60)
    assert "Moving" not in d.told(pods[0])[-1]


def test_many_pods_are_looked_at_domain_by_domain() -> None:
    leaves = {f"s1/l{n}": 4 for n in range(1, 9)}
    d = repair_driver(leaves)
    names = [node.metadata.name for node in fabric(leaves)]
    # Three pods in each leaf, but two in the fifth, and one node of room elsewhere.
    where = [name for name in names if not name.endswith("-4") and name != "s1-l5-3"]
    run_on(d, *[replicated_pod(f"p-{n}", 4) for n in range(len(where))], on=where)
    moves = moves_by_pod(d, plan_moves(d, waiting(d, size=4)))
    assert moves is not None
    assert {node for node, _ in moves.values()} == {"s1-l5-1", "s1-l5-2"}
    assert not any(to.startswith("s1-l5") for _, to in moves.values())


# ---------------------------------------------------------------- the fewest, by trying all


def seats(free: dict[str, int], wanted: Sequence[int]) -> bool:
    """Whether pods of so many GPUs can be seated on nodes."""
    for choice in product(free, repeat=len(wanted)):
        left = dict(free)
        for node, gpus in zip(choice, wanted, strict=True):
            left[node] -= gpus
        if min(left.values(), default=0) >= 0:
            return True
    return not wanted


def fewest(
    nodes: dict[str, str], held: Sequence[tuple[str, int]], size: int, gpus: int, limit: int
) -> Iterator[tuple[int, ...]]:
    """Yield the sets of the least size that make room for a gang in one leaf, wherever it goes there."""
    for count in range(1, limit + 1):
        sets = []
        for moved in combinations(range(len(held)), count):
            free = dict.fromkeys(nodes, 8)
            for number, (node, amount) in enumerate(held):
                if number not in moved:
                    free[node] -= amount
            for leaf in sorted(set(nodes.values())):
                inside = [node for node, at in nodes.items() if at == leaf]
                if any(
                    seats({node: free[node] - gpus * share.get(node, 0) for node in nodes}, [held[n][1] for n in moved])
                    for share in shares(inside, free, size, gpus)
                ):
                    sets.append(moved)
                    break
        if sets:
            yield from sets
            return


def shares(inside: Sequence[str], free: dict[str, int], size: int, gpus: int) -> Iterator[dict[str, int]]:
    """Yield every way to seat a gang on nodes."""
    if not inside:
        if not size:
            yield {}
        return
    first, *rest = inside
    for count in range(min(size, free[first] // gpus) + 1):
        for share in shares(rest, free, size - count, gpus):
            yield {first: count, **share}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    leaves=st.lists(st.integers(1, 3), min_size=2, max_size=3),
    pods=st.lists(st.tuples(st.integers(0, 8), st.sampled_from([1, 2, 3, 4, 6])), max_size=7),
    shape=st.sampled_from([(1, 8), (2, 8), (2, 4), (3, 4), (3, 8), (4, 2)]),
)
def test_the_fewest_pods_move_and_all_of_them_have_room(
    leaves: list[int], pods: list[tuple[int, int]], shape: tuple[int, int]
) -> None:
    d = repair_driver({f"s1/l{n}": count for n, count in enumerate(leaves, 1)})
    nodes = {f"s1-l{n}-{m}": f"s1/l{n}" for n, count in enumerate(leaves, 1) for m in range(1, count + 1)}
    free = dict.fromkeys(nodes, 8)
    held = []
    for at, gpus in pods:
        node = list(nodes)[at % len(nodes)]
        if free[node] >= gpus:
            free[node] -= gpus
            held.append((node, gpus))
    run_on(d, *[replicated_pod(f"p-{n}", gpus) for n, (_, gpus) in enumerate(held)], on=[node for node, _ in held])
    size, gpus = shape
    if size == 1 or max(leaves) * (8 // gpus) < size:
        return  # no gang, or one that is larger than a leaf
    members = gang(size, name="large", gpus=gpus)
    d.apply(*members)
    d.step()
    if d.where(*members) or d.flight:
        return
    plan = plan_moves(d, members)
    best = list(fewest(nodes, held, size, gpus, 8))
    if plan is None:
        # The gang goes where the planner wants it, which may leave less room to others than another place would.
        assert not best or _only_elsewhere(d, members)
        return
    assert best
    assert len(plan.moves) >= len(best[0])
    names = d.engine.world.nodes.names
    load = {node: 8 - free[node] for node in nodes}
    for move in plan.moves:
        amount = held[int(move.pod.occupant.name.removeprefix("p-"))][1]
        load[names[move.pod.row]] -= amount
        load[names[move.to]] += amount
    for row in (row for group in plan.placement.rows for row in group):
        load[names[row]] += gpus
    assert max(load.values()) <= 8
    assert len({nodes[names[row]] for group in plan.placement.rows for row in group}) == 1
    if gpus == 8:
        assert len(plan.moves) == len(best[0]), "whole nodes: there is one way to seat the gang"


def _only_elsewhere(d: Driver, members: Sequence[Pod]) -> bool:
    entry = d.engine.workloads.of_pod(members[0].metadata.uid)
    assert isinstance(entry, tuple)
    assert isinstance(entry[0], Workload)
    return entry[1].cls.gpus < 8


def test_moves_are_looked_for_at_the_level_to_which_it_has_relaxed() -> None:
    """No leaf can be freed, as one of its pods may not move; one node of each can."""
    d = repair_driver({"s1/a": 2, "s1/b": 2})
    run_on(
        d,
        replicated_pod("x"),
        replicated_pod("y", movable="false"),
        replicated_pod("z", movable="false"),
        on=["s1-a-2", "s1-a-1", "s1-b-1"],
    )
    pods = gang(2, name="large")
    for pod in pods:
        pod.metadata.annotations["topology.scheduler/relax-after"] = "10m"
    d.apply(*pods)
    d.step()
    d.step(300)
    assert not any("Moving" in text for text in d.told(pods[0]))
    d.settle(300)
    d.settle(60)
    assert d.told(pods[0])[-1].endswith("Moving 1 pod (default/x from s1-a-2 to s1-a-1) would make room in s1/a, s1/b.")
