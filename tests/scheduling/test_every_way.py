"""Gangs with several constraints at once are placed wherever any way exists, as near as can be.

``python -m tests.scheduling.test_every_way FIRST LAST NODES MEMBERS`` compares more, and prints the seeds that differ;
with ``varied`` behind it gangs with other namespaces, empty selectors and node selectors.
"""

import sys
from collections import Counter
from dataclasses import replace
from typing import Final

import pytest

from tests.scheduling.driver import Driver
from tests.scheduling.every_way import HOST, LEAF, Case, Kind, Machine, Resident, TooManyWaysError, drawn, used, varied
from tests.scheduling.hostname_spread import PREFERRED

MOST_WAYS: Final = 6_000
"""Partial ways that are followed of one case; those with more are left out, and counted."""


def compared(case: Case) -> str:
    """Return how the engine differs from the best of all ways, empty where it does not.

    Raises:
        TooManyWaysError: there are too many.
    """
    # What not even the empty cluster could hold is refused, though the pods that are there might make it possible.
    best = case.best(MOST_WAYS) if case.empty.best(MOST_WAYS) is not None else None
    held = case.decided(Driver(config=PREFERRED))
    if held is None:
        return "" if best is None else "not placed"
    place = case.place(used(held))
    if best is None or not case.reaches(held):
        return "placed where none is"
    return "" if place == best else "in more leaves" if place > best else "nearer than all ways"


def counted(
    seeds: range, most_nodes: int, most_members: int, *, more: bool = False
) -> tuple[Counter[str], dict[int, str]]:
    """Return how many cases there are of each outcome, and the seeds that differ."""
    counts: Counter[str] = Counter()
    different = {}
    for seed in seeds:
        try:
            case = drawn(seed, most_nodes, most_members)
            problem = compared(varied(case, seed) if more else case)
        except TooManyWaysError:
            counts["left out"] += 1
            continue
        counts["cases"] += 1
        if problem:
            counts[problem] += 1
            different[seed] = problem
    return counts, different


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("seeds", "most_nodes", "most_members", "more"),
    [
        (range(1_600, 1_650), 8, 6, False),
        (range(2_100, 2_250), 8, 6, False),
        (range(2_800, 2_820), 8, 6, False),
        (range(10_600, 10_660), 12, 12, False),
        (range(430, 540), 8, 6, True),
        (range(1_580, 1_600), 8, 6, True),
    ],
)
def test_gangs_are_placed_as_near_as_any_way_allows(
    seeds: range, most_nodes: int, most_members: int, more: bool
) -> None:
    counts, different = counted(seeds, most_nodes, most_members, more=more)
    assert not different
    assert counts["cases"] >= 0.9 * len(seeds)


def test_a_member_that_avoids_others_is_seated_before_those_that_follow_it() -> None:
    # Both kinds may only follow pods of their own; the one with its node to itself must come first, wherever it is.
    avoiding = Kind(1, 2, "web", near=((LEAF, "web"),), away=((HOST, "web"),))
    following = Kind(3, 1, "web", near=((HOST, "web"),))
    machines = (Machine("s1/l1", ""), Machine("s1/l1", "", residents=(Resident("web", "old"),)))
    for kinds in ((avoiding, following), (following, avoiding)):
        held = Case(machines, kinds).decided(Driver(config=PREFERRED))
        assert held is not None


def test_nodes_that_pods_there_close_to_other_members_are_taken_first() -> None:
    # Two members need a node without others of their gang and without what runs there as `db`: three nodes are so.
    avoiding = Kind(2, 1, "web", away=((HOST, "web"), (HOST, "db")))
    large = Kind(3, 2, "db")
    free, closed = (
        Machine("s1/l1", "", residents=(Resident("other"),)),
        Machine("s1/l1", "", residents=(Resident("db"),)),
    )
    machines = (free, free, free, closed, replace(closed, residents=(Resident("db"), Resident("other"))))
    held = Case(machines, (avoiding, large)).decided(Driver(config=PREFERRED))
    assert held is not None
    assert held[1][3:] == (1, 1)


if __name__ == "__main__":
    first, last, nodes, members = map(int, sys.argv[1:5])
    counts, different = counted(range(first, last), nodes, members, more=sys.argv[5:] == ["varied"])
    print(dict(counts), different)
