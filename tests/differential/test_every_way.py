"""Gangs with several constraints at once, judged by kube-scheduler's own plugins, member by member.

Every order and every way in which its filters would let the members of a gang run, one after the other, is followed.
We place the gang if one of these ways ends with all members in no more leaves than the best of them. What we chose is
one of these ways.
"""

from collections.abc import Iterator
from typing import Final

import pytest

from tests.scheduling.driver import Driver
from tests.scheduling.every_way import Case, Held, Json, drawn, seated_too, used, varied
from tests.scheduling.hostname_spread import PREFERRED

from .oracle import Oracle

CASES: Final = 250
MOST_STATES: Final = 120
"""Partial ways that are followed of a case; in larger ones only what was chosen is judged."""


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    with Oracle() as running:
        yield running


class Judge:
    """Follows a case by what the plugins say, and compares it with what the exhaustive search says."""

    def __init__(self, oracle: Oracle, case: Case) -> None:
        self._oracle = oracle
        self._case = case
        self._nodes, self._others = case.nodes(), case.others()
        self._known: dict[Held, list[tuple[int, int]]] = {}

    def next(self, held: Held) -> list[tuple[int, int]]:
        """Return the members that may run next, as kind and node."""
        if held not in self._known:
            lacking = [at for at, kind in enumerate(self._case.kinds) if sum(held[at]) < kind.count]
            pending = [self._case.member(kind, f"next-{kind}") for kind in lacking]
            pods = [*self._others, *self._running(held)]
            answer = self._oracle.answer(
                {"nodes": self._nodes, "pods": pods, "pending": pending, "namespaces": self._case.namespaces()}
            )
            steps = []
            for kind in lacking:
                nodes = sorted(int(name[1:]) for name in answer.feasible[f"default/next-{kind}"])
                assert nodes == self._case.feasible(held, kind), f"the exhaustive search of {held}, kind {kind}"
                steps += [(kind, at) for at in nodes]
            self._known[held] = steps
        return self._known[held]

    def ends(self) -> set[Held] | None:
        """Return all ways in which every member could come to run, None where they are too many."""
        seen, left, ends = {self._case.nothing}, [self._case.nothing], set()
        while left:
            held = left.pop()
            if len(self._known) > MOST_STATES:
                return None
            if sum(map(sum, held)) == sum(kind.count for kind in self._case.kinds):
                ends.add(held)
                continue
            for after in (seated_too(held, *step) for step in self.next(held)):
                if after not in seen:
                    seen.add(after)
                    left.append(after)
        return ends

    def reaches(self, wanted: Held) -> bool:
        """Return whether members can come to run so, in some order."""
        seen, left = {self._case.nothing}, [self._case.nothing]
        while left:
            held = left.pop()
            if held == wanted:
                return True
            for kind, at in self.next(held):
                after = seated_too(held, kind, at)
                if after not in seen and after[kind][at] <= wanted[kind][at]:
                    seen.add(after)
                    left.append(after)
        return False

    def _running(self, held: Held) -> list[Json]:
        pods = []
        for kind, row in enumerate(held):
            for at, count in enumerate(row):
                for number in range(count):
                    pod = self._case.member(kind, f"held-{kind}-{at}-{number}")
                    spec = {**pod["spec"], "nodeName": f"n{at}"}
                    pods.append({**pod, "spec": spec, "status": {"phase": "Running"}})
        return pods


@pytest.mark.real
@pytest.mark.timeout(600)
@pytest.mark.parametrize("more", [False, True], ids=["one namespace", "other namespaces and empty selectors"])
def test_gangs_with_several_constraints_are_placed_where_the_plugins_let_all_members_run(
    oracle: Oracle, more: bool
) -> None:
    placed = followed = 0
    for seed in range(CASES):
        case = varied(drawn(seed, 6, 5), seed) if more else drawn(seed, 6, 5)
        judge = Judge(oracle, case)
        chosen = case.decided(Driver(config=PREFERRED))
        assert chosen is None or judge.reaches(chosen), f"{seed}: what was chosen"
        ends = judge.ends()
        if ends is None:
            continue
        followed += 1
        nearest = min((case.place(used(end)) for end in ends), default=None)
        wanted = nearest if case.empty.best(10_000) is not None else None
        assert (None if chosen is None else case.place(used(chosen))) == wanted, seed
        placed += chosen is not None
    assert followed >= CASES / 2
    assert placed >= CASES / 8
