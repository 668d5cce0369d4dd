"""Gangs of one class, against every set of leaves there is."""

from collections import Counter, defaultdict

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from tests.scheduling.planning import ask_of, small_of
from tests.scheduling.reference import Machine, Option, Path, Reference, Want
from tests.scheduling.reference_clusters import clusters, clusters_of_one_spine, wants
from topo_scheduler.api.annotations import PlacementStrategy
from topo_scheduler.api.labels import UNLABELLED
from topo_scheduler.scheduling.placing.model.placement_query import Placement, PlacementFailure
from topo_scheduler.state.nodes.resources import CPU, GPU

cpu_wants = st.builds(Want, members=st.integers(1, 6), gpus=st.just(0), cpu=st.integers(1, 2), required=st.booleans())
strategies = st.sampled_from(PlacementStrategy)


@settings(deadline=None, max_examples=300)
@given(clusters(), st.one_of(wants, wants, cpu_wants), strategies)
def test_a_gang_is_placed_where_the_rule_says_or_not_at_all(
    machines: list[Machine], want: Want, strategy: PlacementStrategy
) -> None:
    # Levels that end in an unlabelled one can't be written as a path with their inner part only.
    reference = Reference(machines, want)
    small = small_of(machines, want)
    planned = small.plan(ask_of(want, strategy))
    rule, best = reference.rule(), reference.best()
    if not best:
        assert isinstance(planned, PlacementFailure), "there is no place"
        assert (planned.rule is None) == (rule is None)
        if rule is None:
            assert planned.sentence
        event("too large" if rule is None else "no room")
        return
    event(f"placed in {len(best[0].leaves)} leaves")
    assert isinstance(planned, Placement), f"{best[0]} would do"
    assert rule is not None
    assert (planned.rule.depth, planned.rule.leaves) == (rule.depth, rule.leaves)
    (rows,) = planned.rows
    placed = Counter(small.world.nodes.names[row] for row in rows)
    _check_members(reference, placed)
    _check_leaves(reference, placed, best, [small.world.layout.paths[leaf] for leaf in planned.leaves])
    positions = [int(small.world.layout.position[row]) for row in rows]
    assert positions == sorted(positions), "ranks follow the order of the fabric"


def _check_members(reference: Reference, placed: Counter[str]) -> None:
    """Every member has a node that may take it, and the limits in one leaf hold."""
    want = reference.want
    by_name = {machine.name: machine for machine in reference.machines}
    assert placed.total() == want.members
    for name, count in placed.items():
        assert count <= reference.on_machine(by_name[name])
    if want.gpus and not want.mixed:
        assert len({by_name[name].model for name in placed}) == 1
    nodes: defaultdict[Path, set[str]] = defaultdict(set)
    for name in placed:
        nodes[by_name[name].place].add(name)
    for names in nodes.values():
        assert not want.max_nodes or len(names) <= want.max_nodes
        assert not want.max_gpus or sum(placed[name] for name in names) * want.gpus <= want.max_gpus


def _check_leaves(reference: Reference, placed: Counter[str], best: list[Option], reported: list[Path]) -> None:
    """The leaves are among those between which only the score decides."""
    place = {leaf: at for at, leaf in enumerate(reference.leaves)}
    by_name = {machine.name: machine for machine in reference.machines}
    used = {by_name[name].place for name in placed}
    assert used <= set(reported)
    chosen = tuple(sorted(reported, key=place.__getitem__))
    assert chosen in {option.leaves for option in best}
    if len(used) == len(chosen):
        assert {place[leaf] for leaf in used} == {place[leaf] for leaf in chosen}


@settings(deadline=None, max_examples=100)
@given(clusters(), wants)
def test_inside_one_leaf_a_packed_gang_takes_the_fewest_nodes(machines: list[Machine], want: Want) -> None:
    small = small_of(machines, want)
    planned = small.plan(ask_of(want, PlacementStrategy.CONSOLIDATED))
    if isinstance(planned, PlacementFailure) or len(planned.leaves) > 1:
        return
    reference = Reference(machines, want)
    leaf = small.world.layout.paths[planned.leaves[0]]
    nodes = {small.world.nodes.names[row] for row in planned.rows[0]}
    model = next(machine.model for machine in machines if machine.name in nodes)
    keeps = None if want.mixed or not want.gpus else model
    assert len(nodes) == reference.fewest_nodes(leaf, keeps)


@settings(deadline=None, max_examples=100)
@given(clusters(), st.integers(0, 4))
def test_a_pod_alone_is_placed_where_it_fits(machines: list[Machine], gpus: int) -> None:
    want = Want(members=1, gpus=gpus, cpu=0 if gpus else 1, gang=False)
    small = small_of(machines, want)
    reference = Reference(machines, want)
    fitting = {machine.name for machine in machines if reference.on_machine(machine)}
    planned = small.plan(ask_of(want))
    if isinstance(planned, PlacementFailure):
        assert not fitting
    else:
        ((row,),) = planned.rows
        assert small.world.nodes.names[row] in fitting


# ---------------------------------------------------------------- the score


def _score(
    machines: list[Machine], want: Want, depth: int, leaves: tuple[Path, ...], strategy: PlacementStrategy, aligned: int
) -> int:
    """Return thousandths: 0.4 availability + 0.3 alignment + 0.2 utilisation + 0.1 history, in the issue's words."""

    def total(inside: list[Machine], *, used: bool) -> int:
        return sum((m.used_gpus if used else m.gpus) if want.gpus else (m.used_cpu if used else m.cpu) for m in inside)

    asked = want.members * (want.gpus or want.cpu)
    common = [m for m in machines if m.place[:depth] == leaves[0][:depth]]
    whole = max(1, total(common, used=False))
    availability = max(0, 1000 * (whole - total(common, used=True) - asked) // whole)
    alignment = sum(aligned * (UNLABELLED not in leaf) for leaf in leaves) // len(leaves)
    inside = [m for m in machines if m.place in leaves]
    capacity, before = max(1, total(inside, used=False)), total(inside, used=True)
    mean = 1000 * total(machines, used=True) // max(1, total(machines, used=False))
    utilization = {
        PlacementStrategy.CONSOLIDATED: 1000 * before // capacity,
        PlacementStrategy.DISTRIBUTED: 1000 - 1000 * before // capacity,
        PlacementStrategy.BALANCED: 1000 - abs(1000 * (before + asked) // capacity - mean),
    }[strategy]
    return (400 * availability + 300 * alignment + 200 * min(1000, max(0, utilization)) + 100 * 1000) // 1000


def _dealt(fits: list[int], members: int, strategy: PlacementStrategy) -> list[int]:
    """How many members each leaf of a set gets: packed, the one that holds least first; spread, one at a time."""
    dealt = [0] * len(fits)
    for _ in range(members):
        open_ = [at for at, fit in enumerate(fits) if dealt[at] < fit]
        if strategy is PlacementStrategy.DISTRIBUTED:
            at = min(open_, key=lambda at: (dealt[at], at))
        else:
            begun = [at for at in open_ if dealt[at]]
            at = begun[0] if begun else min(open_, key=lambda at: (fits[at], at))
        dealt[at] += 1
    return dealt


def _stranded(
    reference: Reference, option: Option, usual: list[tuple[int, int]], depth: int, strategy: PlacementStrategy
) -> int:
    """How many fewer of the usual gangs fit: in each leaf where one could hold such a gang, else in the domain."""
    machines, want = reference.machines, reference.want
    each = want.gpus or want.cpu

    def total(inside: list[Machine]) -> tuple[int, int]:
        has = sum((m.gpus if want.gpus else m.cpu) for m in inside)
        return has, has - sum((m.used_gpus if want.gpus else m.used_cpu) for m in inside)

    fits = [reference.in_leaf(leaf, option.model) for leaf in option.leaves]
    taken = [each * many for many in _dealt(fits, want.members, strategy)]
    leaves = [total([m for m in machines if m.place == leaf]) for leaf in option.leaves]
    _, around = total([m for m in machines if m.place[:depth] == option.leaves[0][:depth]])
    lost = 0
    for size, weight in usual:
        if any(has >= size for has, _ in leaves):
            fewer = sum(free // size - (free - less) // size for (_, free), less in zip(leaves, taken, strict=True))
        else:
            fewer = around // size - (around - each * want.members) // size
        lost += weight * fewer
    return lost


def _last_resort(reference: Reference, leaves: tuple[Path, ...], model: str | None) -> tuple[bool, list[int]]:
    """What decides between equals: first those that hold most of their window, then the order of the fabric."""
    place = {leaf: at for at, leaf in enumerate(reference.leaves)}
    first, *between, last = [place[leaf] for leaf in leaves] if len(leaves) > 1 else [0, 0]
    inside = sorted(range(first + 1, last), key=lambda at: (-reference.in_leaf(reference.leaves[at], model), at))
    return set(between) != set(inside[: len(between)]), [place[leaf] for leaf in leaves]


@pytest.mark.parametrize(
    ("strategy", "taken"), [(PlacementStrategy.CONSOLIDATED, "l1"), (PlacementStrategy.DISTRIBUTED, "l2")]
)
def test_in_a_wide_window_the_score_decides_which_leaves_between(strategy: PlacementStrategy, taken: str) -> None:
    """Both leaves in the middle hold one more pod: the one is nearly full, the other empty and small."""
    machines = [
        Machine(f"n{number}", ("s", f"l{number}"), gpus=gpus, cpu=4, used_gpus=used)
        for number, (gpus, used) in enumerate([(4, 1), (4, 3), (1, 0), (4, 1)])
    ]
    want = Want(members=7, gpus=1, required=False)
    assert small_of(machines, want).leaves(ask_of(want, strategy)) == ["s/l0", f"s/{taken}", "s/l3"]


def equal_between() -> list[Machine]:
    """Seven members of 2 GPUs need both outer leaves and one between: of equal score, and the second holds more."""
    free = {"l0": (4, 2), "l1": (2, 1, 1), "l2": (2, 2, 0), "l3": (4, 2)}
    places = [(leaf, gpus) for leaf, free_gpus in free.items() for gpus in free_gpus]
    return [Machine(f"n{at}", ("s", leaf), gpus=4, cpu=4, used_gpus=4 - gpus) for at, (leaf, gpus) in enumerate(places)]


def test_of_equals_in_a_wide_window_those_that_hold_most_are_taken() -> None:
    want = Want(members=7, gpus=2, required=False)
    assert small_of(equal_between(), want).leaves(ask_of(want)) == ["s/l0", "s/l2", "s/l3"]


usual_gangs = st.lists(st.sampled_from([1, 2, 3, 4, 6, 8, 12]), max_size=6)


@settings(deadline=None, max_examples=200)
@example(equal_between(), Want(members=7, gpus=2, required=False), PlacementStrategy.BALANCED, [])
@given(st.one_of(clusters(), clusters_of_one_spine()), st.one_of(wants, cpu_wants), strategies, usual_gangs)
def test_of_all_sets_of_leaves_the_best_by_the_whole_order_is_taken(
    machines: list[Machine], want: Want, strategy: PlacementStrategy, seen: list[int]
) -> None:
    reference = Reference(machines, want)
    rule, best = reference.rule(), reference.best()
    if rule is None or not best or len(reference.models()) > 1:
        return
    depth, leaves = -best[0].rank[1], best[0].rank[2]
    # Beyond the rule alignment counts less.
    aligned = (1000 * rule.leaves // leaves) >> max(0, rule.depth - depth)
    small = small_of(machines, want)
    gangs = small.world.history.gangs
    for size in seen:
        gangs.note(GPU if want.gpus else CPU, size)
    usual = gangs.sizes(GPU if want.gpus else CPU)
    placement = small.plan(ask_of(want, strategy))
    assert isinstance(placement, Placement)
    chosen = tuple(small.world.layout.paths[leaf] for leaf in placement.leaves)
    scores = {option.leaves: _score(machines, want, depth, option.leaves, strategy, aligned) for option in best}
    highest = max(scores.values())
    assert placement.score.total == scores[chosen] == highest
    ties = [option for option in best if scores[option.leaves] == highest]
    strands = {option.leaves: _stranded(reference, option, usual, depth, strategy) for option in ties}
    assert strands[chosen] == min(strands.values())
    last = [option.leaves for option in ties if strands[option.leaves] == strands[chosen]]
    assert chosen == min(last, key=lambda paths: _last_resort(reference, paths, best[0].model))
    event(f"{min(len(scores), 3)} to choose from, {min(len(ties), 3)} of one score, {min(len(last), 3)} alike")
    if leaves >= 3 and best[0].rank[3] >= leaves:
        event("a window wider than what is used")
