"""Gangs with a spread constraint over hostnames, judged by kube-scheduler's own plugins, member by member.

Every order and every way in which its filters would let the members of a gang run, one after the other, is followed.
We place the gang if one of these ways ends with all members in no more leaves than the best of them. What we chose is
one of these ways.
"""

from collections import Counter
from collections.abc import Iterator
from functools import cache

import pytest

from tests.scheduling.driver import Driver
from tests.scheduling.hostname_spread import PREFERRED, Case, Json, Place, drawn

from .oracle import Oracle

ALIKE, MIXED = 300, 200
Held = tuple[int, ...]
"""Members of one GPU on each node, then those of two."""


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    with Oracle() as running:
        yield running


class Judge:
    """Follows a case by what the plugins say."""

    def __init__(self, oracle: Oracle, case: Case) -> None:
        self._oracle = oracle
        self._case = case
        self._nodes, self._others, self._members = case.nodes(), case.others(), case.members()
        self.feasible = cache(self._feasible)

    def ends(self) -> set[Held]:
        """Return all ways in which every member could come to run."""
        begin = (0,) * (2 * len(self._nodes))
        seen, left, ends = {begin}, [begin], set()
        while left:
            held = left.pop()
            lacking = self._lacking(held)
            if not any(lacking):
                ends.add(held)
            for size in (0, 1):
                for at in self.feasible(held, size) if lacking[size] else ():
                    after = list(held)
                    after[size * len(self._nodes) + at] += 1
                    if tuple(after) not in seen:
                        seen.add(tuple(after))
                        left.append(tuple(after))
        return ends

    def place(self, held: Held) -> Place:
        """Return how near a way is."""
        count = len(self._nodes)
        return self._case.place([at for at in range(count) if held[at] or held[count + at]])

    def held(self, where: dict[str, int]) -> Held:
        """Return the way that the engine chose."""
        placed = Counter((int(int(name[2:]) < self._case.big), at) for name, at in where.items())
        return tuple(placed[size, at] for size in (0, 1) for at in range(len(self._nodes)))

    def _lacking(self, held: Held) -> tuple[int, int]:
        count = len(self._nodes)
        return self._case.small - sum(held[:count]), self._case.big - sum(held[count:])

    def _feasible(self, held: Held, size: int) -> list[int]:
        """Return the nodes on which the filters let a member of one GPU, or of two, run next."""
        count, pods = len(self._nodes), list(self._others)
        for at in range(2 * count):
            names = (f"held-{at}-{number}" for number in range(held[at]))
            pods += [_running(self._member(at >= count), name, f"n{at % count}") for name in names]
        pending = self._member(bool(size))
        answer = self._oracle.answer({"nodes": self._nodes, "pods": pods, "pending": [pending]})
        return [int(name[1:]) for name in answer.feasible[f"default/{pending['metadata']['name']}"]]

    def _member(self, big: bool) -> Json:
        return self._members[0 if big else -1]


def _running(member: Json, name: str, node: str) -> Json:
    metadata = {**member["metadata"], "name": name, "uid": name}
    return {"metadata": metadata, "spec": {**member["spec"], "nodeName": node}, "status": {"phase": "Running"}}


@pytest.mark.real
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("count", "mixed"), [(ALIKE, False), (MIXED, True)], ids=["alike", "different"])
def test_gangs_are_placed_where_the_plugins_let_all_members_run(oracle: Oracle, count: int, mixed: bool) -> None:
    placed = 0
    for seed in range(count):
        case = drawn(seed, 6, 5, mixed=mixed)
        judge = Judge(oracle, case)
        ends = judge.ends()
        nearest = min(map(judge.place, ends), default=None)
        assert nearest == case.best(), f"{seed}: the plugins and the exhaustive search differ"
        where = case.decided(Driver(config=PREFERRED))
        if nearest is None or case.best(empty=True) is None:
            assert not where, seed
            continue
        assert judge.held(where) in ends, f"{seed}: what was chosen"
        assert judge.place(judge.held(where)) == nearest, seed
        placed += 1
    assert placed >= count / 4
