"""A reference for gangs of different pods: it tries all ways to place them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, product

from hypothesis import event
from hypothesis import strategies as st

from tests.scheduling.planning import WEIGHTS, Small, pods
from tests.scheduling.reference import Machine, Path
from topo_scheduler.api.annotations import Enforcement
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

ClassCounts = Sequence[tuple[PodClass, int]]
pod_classes = st.sampled_from([pods(1), pods(2), pods(3, cpu=1), pods(0, cpu=1), pods(0, cpu=2)])


class ExhaustivePlacement:
    """All ways to place a gang of several classes, found by trying each node."""

    def __init__(
        self, machines: list[Machine], groups: ClassCounts, limits: tuple[int, int], *, any_model: bool
    ) -> None:
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
        for leaf_set in combinations(leaves, size):
            if len({leaf[:depth] for leaf in leaf_set}) == 1 and any(
                self.holds(leaf_set, model, empty=empty) for model in self.models
            ):
                yield leaf_set

    def _within(self, depth: int, max_leaves: int, *, empty: bool, labelled: bool) -> "BestLeafSets | None":
        at = {leaf: number for number, leaf in enumerate(self.leaves)}
        for size in range(1, min(max_leaves, len(self.leaves)) + 1):
            leaf_sets = list(self.sets(depth, size, empty=empty, labelled=labelled))
            if leaf_sets:
                width = min(at[leaf_set[-1]] - at[leaf_set[0]] for leaf_set in leaf_sets)
                return BestLeafSets(
                    depth,
                    size,
                    width,
                    [leaf_set for leaf_set in leaf_sets if at[leaf_set[-1]] - at[leaf_set[0]] == width],
                )
        return None

    def _lowest(self, *, empty: bool, labelled: bool) -> "BestLeafSets | None":
        for depth in range(self.depth - 1, -1, -1):
            if (best := self._within(depth, len(self.leaves), empty=empty, labelled=labelled)) is not None:
                return best
        return None

    def rule(self) -> "BestLeafSets | None":
        """The lowest level of which a domain holds the gang when empty, and the fewest leaves."""
        return next((best for labelled in (True, False) if (best := self._lowest(empty=True, labelled=labelled))), None)

    def now(self, rule: "BestLeafSets", *, required: bool) -> "BestLeafSets | None":
        """What may be taken now; unless it is required, further out if need be."""
        for labelled in (True, False):
            best = self._within(rule.depth, rule.size, empty=False, labelled=labelled)
            if best is None and not required:
                best = self._lowest(empty=False, labelled=labelled)
            if best is not None:
                return best
        return None

    def score(self, leaves: Sequence[Path], now: "BestLeafSets", rule: "BestLeafSets") -> int:
        """The score of some leaves, as docs/explanation/scoring.md has it, for gangs that are balanced."""
        by_gpus = any(cls.gpus for cls, _ in self.groups)
        asked = sum((cls.gpus if by_gpus else cls.amount(CPU)) * count for cls, count in self.groups)

        def sums(machines: Iterable[Machine]) -> tuple[int, int]:
            has = [(m.gpus, m.used_gpus) if by_gpus else (m.cpu, m.used_cpu) for m in machines]
            return sum(capacity for capacity, _ in has), sum(taken for _, taken in has)

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
class BestLeafSets:
    """The sets of leaves of one level that hold a gang, with the least count and distance of leaves."""

    depth: int
    size: int
    width: int
    sets: list[tuple[Path, ...]]


def compare_with_exhaustive(every: ExhaustivePlacement, small: Small, ask: PlacementQuery) -> None:
    """Check that the planner finds the best place that an exhaustive search finds."""
    rule = every.rule()
    now = every.now(rule, required=ask.enforcement is Enforcement.REQUIRED) if rule else None
    outcome = small.plan(ask)
    if rule is None or now is None:
        assert isinstance(outcome, PlacementFailure), "there is no place"
        assert (outcome.rule is None) == (rule is None)
        event("no place")
        return
    assert isinstance(outcome, Placement), f"{now} would do"
    assert (outcome.rule.depth, outcome.rule.leaves) == (rule.depth, rule.size)
    layout = small.world.layout
    assert check(small.world.around, layout, ask, outcome, SizeRuleLimits(ask.enforcement, *every.limits)) == ""
    paths = tuple(layout.paths[leaf] for leaf in outcome.leaves)
    assert paths in now.sets
    scores = {leaf_set: every.score(leaf_set, now, rule) for leaf_set in now.sets}
    assert outcome.score.total == scores[paths] == max(scores.values())
    assert paths == next(leaf_set for leaf_set in now.sets if scores[leaf_set] == scores[paths]), "of equals the first"
    event(f"{len(paths)} leaves, {min(3, len(now.sets))} sets or more")
