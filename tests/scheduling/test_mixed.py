"""Gangs whose members ask for different things: placed as one, within the rules, or not at all."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, product

from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.helpers import make_node
from tests.scheduling.planning import WEIGHTS, Small, grid, pods, small_of
from tests.scheduling.reference import Machine, Path, Want
from tests.scheduling.test_planner_reference import clusters
from topo_scheduler.api.annotations import Enforcement, PlacementStrategy
from topo_scheduler.api.labels import UNLABELLED
from topo_scheduler.scheduling.placing.checks.validation import check
from topo_scheduler.scheduling.placing.model.placement_query import (
    Placement,
    PlacementFailure,
    PlacementQuery,
    SizeRuleLimits,
)
from topo_scheduler.state.nodes.resources import CPU
from topo_scheduler.state.pods.classes import PodClass

Groups = Sequence[tuple[PodClass, int]]


def mixed(
    groups: Groups, *, required: bool = True, running: Sequence[int] = (), any_model: bool = False
) -> PlacementQuery:
    enforcement = Enforcement.REQUIRED if required else Enforcement.PREFERRED
    return PlacementQuery(groups, gang=True, enforcement=enforcement, running=running, mixed_models=any_model)


def by_group(small: Small, ask: PlacementQuery) -> list[list[str]]:
    found = small.plan(ask)
    assert isinstance(found, Placement), found
    return [[small.world.nodes.names[row] for row in rows] for rows in found.rows]


LAUNCHER = pods(0, cpu=1000)
WORKER = pods(8)


def test_a_launcher_stands_in_the_leaf_of_its_workers() -> None:
    small = Small(grid(2, 2, 2))
    small.hold("s1l1n1", gpus=1)
    workers, (launcher,) = by_group(small, mixed([(WORKER, 2), (LAUNCHER, 1)]))
    assert len(set(workers)) == 2
    assert {name[:4] for name in workers} == {launcher[:4]}


def test_the_rule_counts_all_members() -> None:
    small = Small(grid(1, 3, 2))
    found = small.plan(mixed([(WORKER, 3), (pods(4), 2)]))
    assert isinstance(found, Placement)
    assert found.rule.leaves == len(found.leaves) == 2


def test_it_waits_for_its_leaves_and_takes_more_only_where_it_may() -> None:
    small = Small(grid(1, 3, 2))
    for leaf in (1, 2, 3):
        small.hold(f"s1l{leaf}n1", gpus=8)
    groups = [(WORKER, 1), (pods(4), 2)]
    assert isinstance(small.plan(mixed(groups)), PlacementFailure)
    found = small.plan(mixed(groups, required=False))
    assert isinstance(found, Placement)
    assert len(found.leaves) == 2


def test_larger_than_the_cluster() -> None:
    found = Small(grid(1, 2, 2)).plan(mixed([(WORKER, 4), (pods(1), 1)]))
    assert isinstance(found, PlacementFailure)
    assert "larger than the cluster" in found.sentence


def test_a_cluster_without_nodes_holds_nothing() -> None:
    assert isinstance(Small([]).plan(mixed([(WORKER, 1), (LAUNCHER, 1)])), PlacementFailure)


def test_one_model_for_all_that_ask_for_gpus() -> None:
    nodes = [make_node("x-a", "s/l", model="A", gpus=8), make_node("y-h", "s/l", model="H", gpus=8)]
    nodes += [make_node("z-h", "s/l", model="H", gpus=8), make_node("cpu", "s/l", gpus=0)]
    small = Small(nodes)
    eights, ones, (launcher,) = by_group(small, mixed([(pods(8), 1), (pods(1), 8), (LAUNCHER, 1)]))
    assert {name[2:] for name in (*eights, *ones)} == {"h"}
    assert launcher
    small.hold("z-h", gpus=8)
    assert isinstance(small.plan(mixed([(pods(8), 1), (pods(1), 8)])), PlacementFailure)
    assert isinstance(small.plan(mixed([(pods(8), 1), (pods(1), 8)], any_model=True)), Placement)


def test_one_model_even_where_only_one_of_the_classes_is_bound_to_it() -> None:
    # The large ones fit on H only; the small ones would fit on A as well, and must not go there.
    nodes = [make_node("a", "s/l", model="A", gpus=4), make_node("h", "s/l", model="H", gpus=8)]
    pinned = PodClass(pods(8).amounts, models=("H",))
    small = Small([*nodes, make_node("h2", "s/l", model="H", gpus=8)])
    eights, ones = by_group(small, mixed([(pinned, 1), (pods(4), 1)]))
    assert {*eights, *ones} == {"h", "h2"}
    small.hold("h2", gpus=8)
    assert isinstance(small.plan(mixed([(pinned, 1), (pods(4), 1)])), PlacementFailure)


def test_lost_members_come_back_near_those_that_run() -> None:
    small = Small(grid(3, 2, 2))
    for name in ("s2l1n1", "s2l1n2"):
        small.hold(name, gpus=8)
    ask = mixed([(WORKER, 1), (pods(2), 1)], running=small.rows("s2l1n1", "s2l1n2"))
    assert {name[:4] for group in by_group(small, ask) for name in group} == {"s2l2"}


# ---------------------------------------------------------------- whatever the cluster

classes = st.sampled_from([pods(1), pods(2), pods(3, cpu=1), pods(0, cpu=1), pods(0, cpu=2)])


@settings(deadline=None, max_examples=200)
@given(
    clusters(),
    st.lists(st.tuples(classes, st.integers(1, 3)), min_size=2, max_size=3, unique_by=lambda group: group[0]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([(0, 0), (0, 0), (1, 0), (2, 4)]),
)
def test_all_members_are_placed_within_the_rules_or_none_is(
    machines: list[Machine], groups: Groups, required: bool, any_model: bool, limits: tuple[int, int]
) -> None:
    max_nodes, max_gpus = limits
    small = small_of(machines, Want(1, 1, max_nodes=max_nodes, max_gpus=max_gpus))
    ask = mixed(groups, required=required, any_model=any_model)
    found = small.plan(ask)
    layout = small.world.layout
    if isinstance(found, PlacementFailure):
        event("no place")
        return
    event("placed")
    assert [len(rows) for rows in found.rows] == [count for _, count in groups]
    assert check(small.world.around, layout, ask, found, SizeRuleLimits(ask.enforcement, max_nodes, max_gpus)) == ""
    used: defaultdict[str, list[PodClass]] = defaultdict(list)
    for (cls, _), rows in zip(groups, found.rows, strict=True):
        for row in rows:
            used[small.world.nodes.names[row]].append(cls)
    by_name = {machine.name: machine for machine in machines}
    for name, held in used.items():
        machine = by_name[name]
        assert machine.usable
        assert sum(cls.gpus for cls in held) <= machine.gpus - machine.used_gpus
        assert sum(cls.amount(0) for cls in held) <= max(0, machine.cpu - machine.used_cpu)
    if not any_model:
        assert len({by_name[name].model for name, held in used.items() if any(cls.gpus for cls in held)}) <= 1
    for leaf in {machine.place for machine in machines}:
        names = [name for name in used if by_name[name].place == leaf]
        assert not max_nodes or len(names) <= max_nodes
        assert not max_gpus or sum(cls.gpus for name in names for cls in used[name]) <= max_gpus
    leaves = {by_name[name].place for name in used}
    if required:
        assert len(leaves) <= found.rule.leaves
        assert len({leaf[: found.rule.depth] for leaf in leaves}) == 1


# ---------------------------------------------------------------- against every way to place them


class Every:
    """All ways to place a gang of several classes, by trying them node by node."""

    def __init__(self, machines: list[Machine], groups: Groups, limits: tuple[int, int], *, any_model: bool) -> None:
        self.machines, self.groups, self.limits = machines, groups, limits
        with_gpus = any(cls.gpus for cls, _ in groups)
        self.models = [None] if any_model or not with_gpus else sorted({m.model for m in machines})
        self.leaves = sorted(
            {m.place for m in machines}, key=lambda path: [(name == UNLABELLED, name) for name in path]
        )
        self.depth = len(self.leaves[0])

    def holds(self, leaves: tuple[Path, ...], model: str | None, *, empty: bool) -> bool:
        """Whether these leaves hold the gang."""
        return self.holds_members(leaves, model, tuple(count for _, count in self.groups), empty=empty)

    def holds_members(
        self, leaves: tuple[Path, ...], model: str | None, members: tuple[int, ...], *, empty: bool
    ) -> bool:
        """Whether these leaves hold so many of each class."""
        max_nodes, max_gpus = self.limits
        inside = [m for leaf in leaves for m in self.machines if m.place == leaf and m.usable]

        @cache
        def place(at: int, left: tuple[int, ...], nodes: int, gpus: int) -> bool:
            if not any(left):
                return True
            if at == len(inside):
                return False
            machine = inside[at]
            if at and inside[at - 1].place != machine.place:
                nodes = gpus = 0
            for counts in product(*(range(count + 1) for count in left)):
                here = [(cls, count) for (cls, _), count in zip(self.groups, counts, strict=True) if count]
                taken = sum(cls.gpus * count for cls, count in here)
                cpu = sum(cls.amount(CPU) * count for cls, count in here)
                if taken > machine.gpus - (0 if empty else machine.used_gpus):
                    continue
                if cpu > machine.cpu - (0 if empty else machine.used_cpu) or (
                    taken and model not in (None, machine.model)
                ):
                    continue
                if here and ((max_nodes and nodes == max_nodes) or (max_gpus and gpus + taken > max_gpus)):
                    continue
                rest = tuple(count - less for count, less in zip(left, counts, strict=True))
                if place(at + 1, rest, nodes + bool(here), gpus + taken):
                    return True
            return False

        return place(0, members, 0, 0)

    def sets(self, depth: int, size: int, *, empty: bool, labelled: bool) -> Iterator[tuple[Path, ...]]:
        """The sets of so many leaves of one domain of a level that hold the gang."""
        leaves = [leaf for leaf in self.leaves if not labelled or UNLABELLED not in leaf]
        for some in combinations(leaves, size):
            if len({leaf[:depth] for leaf in some}) == 1 and any(
                self.holds(some, model, empty=empty) for model in self.models
            ):
                yield some

    def _within(self, depth: int, most: int, *, empty: bool, labelled: bool) -> "Best | None":
        at = {leaf: number for number, leaf in enumerate(self.leaves)}
        for size in range(1, min(most, len(self.leaves)) + 1):
            found = list(self.sets(depth, size, empty=empty, labelled=labelled))
            if found:
                width = min(at[some[-1]] - at[some[0]] for some in found)
                return Best(depth, size, width, [some for some in found if at[some[-1]] - at[some[0]] == width])
        return None

    def _lowest(self, *, empty: bool, labelled: bool) -> "Best | None":
        for depth in range(self.depth - 1, -1, -1):
            if (found := self._within(depth, len(self.leaves), empty=empty, labelled=labelled)) is not None:
                return found
        return None

    def rule(self) -> "Best | None":
        """The lowest level of which a domain holds the gang when empty, and the fewest leaves."""
        return next((one for some in (True, False) if (one := self._lowest(empty=True, labelled=some))), None)

    def now(self, rule: "Best", *, required: bool) -> "Best | None":
        """What may be taken now; where nobody says that it is required, further out if need be."""
        for labelled in (True, False):
            found = self._within(rule.depth, rule.size, empty=False, labelled=labelled)
            if found is None and not required:
                found = self._lowest(empty=False, labelled=labelled)
            if found is not None:
                return found
        return None

    def score(self, leaves: Sequence[Path], now: "Best", rule: "Best") -> int:
        """The score of some leaves, as docs/explanation/scoring.md has it, for gangs that are balanced."""
        by_gpus = any(cls.gpus for cls, _ in self.groups)
        asked = sum((cls.gpus if by_gpus else cls.amount(CPU)) * count for cls, count in self.groups)

        def sums(machines: Iterable[Machine]) -> tuple[int, int]:
            has = [(m.gpus, m.used_gpus) if by_gpus else (m.cpu, m.used_cpu) for m in machines]
            return sum(one for one, _ in has), sum(one for _, one in has)

        all_has, all_used = sums(self.machines)
        whole, whole_used = sums(m for m in self.machines if m.place[: now.depth] == leaves[0][: now.depth])
        has, used = sums(m for m in self.machines if m.place in leaves)
        alignment = (1000 * rule.size // now.size) >> max(0, rule.depth - now.depth)
        off = abs(1000 * (used + asked) // max(has, 1) - 1000 * all_used // max(1, all_has))
        parts = (
            max(0, 1000 * (whole - whole_used - asked) // max(whole, 1)),
            sum(alignment * (UNLABELLED not in leaf) for leaf in leaves) // len(leaves),
            min(1000, max(0, 1000 - off)),
            1000,
        )
        return sum(weight * part for weight, part in zip(WEIGHTS, parts, strict=True)) // sum(WEIGHTS)


@dataclass(frozen=True)
class Best:
    """A level, how many leaves, how far they are apart at least, and the sets of leaves of which that holds."""

    depth: int
    size: int
    width: int
    sets: list[tuple[Path, ...]]


def compare(every: Every, small: Small, ask: PlacementQuery) -> None:
    """Nothing is missed, and nothing that could be had is better by what is looked at before a usual gang's room."""
    rule = every.rule()
    now = every.now(rule, required=ask.enforcement is Enforcement.REQUIRED) if rule else None
    found = small.plan(ask)
    if rule is None or now is None:
        assert isinstance(found, PlacementFailure), "there is no place"
        assert (found.rule is None) == (rule is None)
        event("no place")
        return
    assert isinstance(found, Placement), f"{now} would do"
    assert (found.rule.depth, found.rule.leaves) == (rule.depth, rule.size)
    layout = small.world.layout
    assert check(small.world.around, layout, ask, found, SizeRuleLimits(ask.enforcement, *every.limits)) == ""
    paths = tuple(layout.paths[leaf] for leaf in found.leaves)
    assert paths in now.sets
    scores = {some: every.score(some, now, rule) for some in now.sets}
    assert found.score.total == scores[paths] == max(scores.values())
    assert paths == next(some for some in now.sets if scores[some] == scores[paths]), "of equals the first"
    event(f"{len(paths)} leaves, {min(3, len(now.sets))} sets or more")


@settings(deadline=None, max_examples=150)
@given(
    clusters(),
    st.lists(st.tuples(classes, st.integers(1, 4)), min_size=2, max_size=3, unique_by=lambda group: group[0]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([(0, 0), (0, 0), (1, 0), (2, 4)]),
)
def test_on_small_clusters_no_place_is_missed_and_none_is_better(
    machines: list[Machine], groups: Groups, required: bool, any_model: bool, limits: tuple[int, int]
) -> None:
    every = Every(machines, by_demand(groups), limits, any_model=any_model)
    small = small_of(machines, Want(1, 1, max_nodes=limits[0], max_gpus=limits[1]))
    compare(every, small, mixed(by_demand(groups), required=required, any_model=any_model))


def by_demand(groups: Groups) -> Groups:
    """As the engine hands groups over: the most demanding class first."""
    return sorted(groups, key=lambda group: (-group[0].gpus, -group[0].amount(CPU)))


@settings(deadline=None, max_examples=60)
@given(clusters(), st.lists(st.tuples(classes, st.integers(1, 2)), min_size=2, max_size=2, unique_by=lambda g: g[0]))
def test_on_an_empty_cluster_it_is_placed_or_too_large(machines: list[Machine], groups: Groups) -> None:
    small = small_of(
        [Machine(m.name, m.place, m.gpus, m.cpu, model=m.model, usable=m.usable) for m in machines], Want(1, 1)
    )
    found = small.plan(mixed(groups))
    assert isinstance(found, Placement) or "larger than the cluster" in found.sentence


def test_strategies_do_not_keep_it_from_being_placed() -> None:
    for strategy in PlacementStrategy:
        small = Small(grid(1, 2, 2))
        ask = PlacementQuery([(WORKER, 2), (LAUNCHER, 2)], gang=True, strategy=strategy)
        assert isinstance(small.plan(ask), Placement)
