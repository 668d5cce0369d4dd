"""Gangs with bandwidth against every possible placement, on clusters small enough to try them all."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import make_node
from tests.scheduling.planning import Small, gang, pods
from topo_scheduler.api.links import Link
from topo_scheduler.scheduling.placing.model.placement_query import (
    GangTraffic,
    Placement,
    PlacementFailure,
    PlacementQuery,
)

SELF = ("default", "self")


@dataclass(frozen=True)
class Machine:
    """A node of one place. ``network`` what it carries in Gbit/s, 0 where that is not told."""

    name: str
    path: tuple[str, ...]
    free: bool
    network: int


@dataclass(frozen=True)
class Case:
    """A cluster, what its uplinks carry (Gbit/s by path), gangs that send there already, and the gang to place."""

    machines: Sequence[Machine]
    uplinks: Mapping[tuple[str, ...], int]
    others: Sequence[tuple[int, Sequence[int]]]
    members: int
    bandwidth: int


def needs(machines: Iterable[Machine], bandwidth: int) -> Counter[tuple[str, ...]]:
    """What a gang on these nodes takes of each link, as the words of the issue have it."""
    here = list(machines)
    taken: Counter[tuple[str, ...]] = Counter()
    for link in {machine.path[:depth] for machine in here for depth in range(1, len(machine.path) + 1)}:
        below = sum(machine.path[: len(link)] == link for machine in here)
        taken[link] = bandwidth * min(below, len(here) - below)
    for machine in here:
        taken[(*machine.path, machine.name)] = bandwidth * min(1, len(here) - 1)
    return taken


def carried(case: Case, chosen: Sequence[Machine], *, alone: bool = False) -> bool:
    """Whether links can carry the gang there: with what others send, or ``alone``."""
    capacity = dict(case.uplinks) | {(*m.path, m.name): m.network for m in case.machines if m.network}
    taken: Counter[tuple[str, ...]] = Counter()
    for bandwidth, numbers in () if alone else case.others:
        taken.update(needs([case.machines[n] for n in numbers], bandwidth))
    asked = needs(chosen, case.bandwidth)
    return all(asked[link] == 0 or taken[link] + asked[link] <= limit for link, limit in capacity.items())


def places(case: Case, machines: Sequence[Machine], depth: int, leaves: int) -> Iterator[Sequence[Machine]]:
    for chosen in combinations(machines, case.members):
        if (
            len({machine.path[:depth] for machine in chosen}) == 1
            and len({machine.path for machine in chosen}) <= leaves
        ):
            yield chosen


def best_rule(case: Case, depths: int) -> tuple[int, int] | None:
    """The deepest level, and there the fewest leaves, in which an empty cluster holds and carries the gang."""
    able = [m for m in case.machines if not m.network or m.network >= case.bandwidth]
    for depth in range(depths - 1, -1, -1):
        for leaves in range(1, len({m.path for m in able}) + 1):
            if any(carried(case, chosen, alone=True) for chosen in places(case, able, depth, leaves)):
                return depth, leaves
    return None


@st.composite
def cases(draw: st.DrawFn, spines: int) -> Case:
    sizes = draw(st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=4), min_size=spines, max_size=spines))
    machines = [
        Machine(
            f"s{s}l{leaf}n{n}",
            (f"s{s}", f"l{leaf}"),
            draw(st.integers(0, 3)) > 0,
            draw(st.sampled_from([0, 0, 1, 2, 4])),
        )
        for s, leaves in enumerate(sizes)
        for leaf, size in enumerate(leaves)
        for n in range(size)
    ]
    links = {m.path[:depth] for m in machines for depth in (1, 2)}
    uplinks = {link: draw(st.integers(1, 4)) for link in sorted(links) if draw(st.integers(0, 3))}
    numbers = st.lists(st.integers(0, len(machines) - 1), min_size=1, max_size=4, unique=True)
    others = draw(st.lists(st.tuples(st.integers(1, 2), numbers), max_size=2))
    members = draw(st.integers(1, min(6, len(machines))))
    return Case(machines, uplinks, others, members, draw(st.integers(1, 2)))


def small_of(case: Case) -> Small:
    small = Small(
        make_node(m.name, "/".join(m.path), bandwidth=f"{m.network}Gb" if m.network else "") for m in case.machines
    )
    small.world.links.configure([Link(domain="/".join(path), capacity=f"{gb}Gb") for path, gb in case.uplinks.items()])
    for machine in case.machines:
        if not machine.free:
            small.hold(machine.name, gpus=8)
    for number, (bandwidth, numbers) in enumerate(case.others):
        small.send(f"other-{number}", 1000 * bandwidth, *(case.machines[n].name for n in numbers))
    return small


def ask_of(case: Case, *, required: bool = True) -> PlacementQuery:
    ask = gang(case.members, required=required)
    cls = replace(pods(8), bandwidth=1000 * case.bandwidth)
    return replace(ask, groups=[(cls, case.members)], traffic=GangTraffic(SELF, 1000 * case.bandwidth))


def machines_of(small: Small, case: Case, placement: Placement) -> list[Machine]:
    by_name = {machine.name: machine for machine in case.machines}
    return [by_name[small.world.nodes.names[row]] for rows in placement.rows for row in rows]


@settings(deadline=None, max_examples=400)
@given(cases(1), st.booleans())
def test_below_one_spine_a_place_is_found_exactly_if_there_is_one(case: Case, required: bool) -> None:
    small = small_of(case)
    outcome = small.plan(ask_of(case, required=required))
    rule = best_rule(case, 2)
    free = [m for m in case.machines if m.free and (not m.network or m.network >= case.bandwidth)]
    if rule is None:
        assert isinstance(outcome, PlacementFailure)
        assert outcome.rule is None
        return
    depth, leaves = rule
    assert outcome.rule is not None
    if depth == 1 or leaves == 1:
        assert (outcome.rule.depth, outcome.rule.leaves) == (depth, leaves)
    max_leaves = leaves if required else len(case.machines)
    possible = [chosen for chosen in places(case, free, depth, max_leaves) if carried(case, chosen)]
    assert isinstance(outcome, Placement) == bool(possible), outcome
    if isinstance(outcome, Placement):
        chosen = machines_of(small, case, outcome)
        assert carried(case, chosen)
        assert not required or len({m.path for m in chosen}) <= leaves


@settings(deadline=None, max_examples=300)
@given(cases(2), st.booleans())
def test_over_several_spines_what_is_found_can_always_be_carried(case: Case, required: bool) -> None:
    small = small_of(case)
    outcome = small.plan(ask_of(case, required=required))
    if isinstance(outcome, Placement):
        assert carried(case, machines_of(small, case, outcome))
    elif outcome.rule is None:
        assert best_rule(case, 2) is None
