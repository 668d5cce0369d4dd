"""The order of the queue: priority, the smaller share, age; and no workload waits for ever."""

import random
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from topo_scheduler.scheduling.queueing.fair_queue import (
    MAX_COMPARED_LEVELS,
    MIN_KEPT_LEVELS,
    MIN_KEPT_NAMESPACES,
    MISS_OPERATIONS,
    MISSES_BEFORE_TURNS,
    OVERDUE_MISSES,
    PLACEMENTS_BY_SHARE,
    EqualShares,
    FairnessLimits,
    FairWorkloadQueue,
    Order,
)
from topo_scheduler.scheduling.queueing.passed_over import MAX_PASSED_OVER_SECONDS
from topo_scheduler.scheduling.queueing.queue import Queue

NEVER = FairnessLimits(overdue_after=1e12)
ATTEMPT_SECONDS = 1 / 16


class Held:
    """Shares that a test decides."""

    def __init__(self, **shares: int) -> None:
        self.shares = shares
        self.changed: set[str] | None = set()

    def share(self, namespace: str) -> int:
        return self.shares.get(namespace, 0)

    def take_changed(self) -> Iterable[str] | None:
        changed, self.changed = self.changed, set()
        return changed

    def set(self, namespace: str, share: int) -> None:
        self.shares[namespace] = share
        if self.changed is not None:
            self.changed.add(namespace)


class Line(RuleBasedStateMachine):
    """Against a list that is sorted again each time."""

    def __init__(self) -> None:
        super().__init__()
        self.held = Held()
        self.turns = FairWorkloadQueue(self.held, NEVER)
        self.line: dict[str, Order] = {}
        self.number = 0

    @rule(
        priority=st.integers(0, 2),
        created=st.integers(0, 3),
        namespace=st.sampled_from("abc"),
        id_=st.integers(0, 12),
    )
    def put(self, priority: int, created: int, namespace: str, id_: int) -> None:
        order = Order(priority, created, str(id_), namespace)
        self.turns.put(order)
        self.line[order.id] = order

    @rule(id_=st.integers(0, 12))
    def drop(self, id_: int) -> None:
        self.turns.drop(str(id_))
        self.line.pop(str(id_), None)

    @rule(namespace=st.sampled_from("abc"), share=st.integers(0, 3))
    def share_changes(self, namespace: str, share: int) -> None:
        self.held.set(namespace, share)

    @rule(shares=st.lists(st.integers(0, 3), min_size=3, max_size=3))
    def capacity_changes(self, shares: list[int]) -> None:
        self.held.shares = dict(zip("abc", shares, strict=True))
        self.held.changed = None

    @rule(grows=st.integers(0, 2))
    def take(self, grows: int) -> None:
        expected = min(
            self.line.values(),
            key=lambda order: (-order.priority, self.held.share(order.namespace), order.created, order.id),
            default=None,
        )
        taken = self.turns.take(0)
        assert taken == (expected.id if expected else None)
        if expected:
            del self.line[expected.id]
            self.turns.tried(placed=True)
            self.held.set(expected.namespace, self.held.share(expected.namespace) + grows)

    @invariant()
    def it_is_known_whether_anybody_is_ready(self) -> None:
        assert self.turns.any_ready == bool(self.line)
        timed = [*self.turns._passed_over.since, *self.turns._passed_over.newly_ready]
        assert sorted(timed) == sorted({order.namespace for order in self.line.values()})
        assert self.turns.next_due() is None


TestLine = Line.TestCase
TestLine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


class Limited(RuleBasedStateMachine):
    """With tokens and time: a namespace that has none left is passed over, and only then."""

    RATE, BURST = 0.5, 2

    def __init__(self) -> None:
        super().__init__()
        self.turns = FairWorkloadQueue(Held(), FairnessLimits(1e12, self.RATE, self.BURST))
        self.now = 0.0
        self.line: dict[str, Order] = {}
        self.tokens = dict.fromkeys("ab", float(self.BURST))
        self.number = 0

    @rule(priority=st.integers(0, 1), namespace=st.sampled_from("ab"))
    def put(self, priority: int, namespace: str) -> None:
        self.number += 1
        order = Order(priority, self.number, f"{self.number:04}", namespace)
        self.turns.put(order)
        self.line[order.id] = order

    @rule(seconds=st.integers(0, 3))
    def wait(self, seconds: int) -> None:
        self.now += seconds
        for namespace in self.tokens:
            self.tokens[namespace] = min(self.BURST, self.tokens[namespace] + seconds * self.RATE)

    @rule()
    def take(self) -> None:
        able = [order for order in self.line.values() if self.tokens[order.namespace] >= 1]
        expected = min(able, key=lambda order: (-order.priority, order.created), default=None)
        taken = self.turns.take(self.now)
        assert taken == (expected.id if expected else None)
        if expected:
            del self.line[expected.id]
            self.tokens[expected.namespace] -= 1

    @precondition(lambda self: self.line and all(self.tokens[order.namespace] < 1 for order in self.line.values()))
    @rule()
    def nobody_is_ready_until_what_is_due_is_due(self) -> None:
        assert self.turns.take(self.now) is None
        assert not self.turns.any_ready
        due = self.turns.next_due()
        assert due is not None
        least = min(1 - self.tokens[order.namespace] for order in self.line.values())
        assert due == self.now + least / self.RATE


TestLimited = Limited.TestCase
TestLimited.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def names(turns: FairWorkloadQueue, count: int, now: float = 0, *, placed: bool = True) -> list[str]:
    ids = []
    for _ in range(count):
        ids.append(turns.take(now) or "")
        turns.tried(placed=placed)
    return ids


def test_a_share_that_falls_is_noticed() -> None:
    held = Held(a=5, b=3)
    turns = FairWorkloadQueue(held, NEVER)
    for order in (Order(0, 0, "a1", "a"), Order(0, 1, "b1", "b"), Order(0, 2, "b2", "b")):
        turns.put(order)
    assert names(turns, 1) == ["b1"]
    held.set("a", 1)
    assert names(turns, 2) == ["a1", "b2"]


def test_priority_comes_before_any_share() -> None:
    turns = FairWorkloadQueue(Held(a=9, b=0), NEVER)
    turns.put(Order(0, 0, "b", "b"))
    turns.put(Order(1, 9, "a", "a"))
    assert names(turns, 2) == ["a", "b"]


def test_the_overdue_go_first_by_age_and_leave_some_places_to_the_share() -> None:
    turns = FairWorkloadQueue(Held(big=9, small=0), FairnessLimits(overdue_after=100))
    for number in range(4):
        turns.put(Order(0, number, f"big{number}", "big", since=number))
        turns.put(Order(0, 50 + number, f"small{number}", "small", since=150))
    assert names(turns, 8, now=200) == [
        "big0", "small0", "small1", "small2", "big1", "small3", "big2", "big3",
    ]  # fmt: skip
    assert PLACEMENTS_BY_SHARE == 3


def test_a_workload_that_is_overdue_but_finds_no_place_does_not_cost_the_next_one_its_turn() -> None:
    turns = FairWorkloadQueue(Held(big=9, small=0), FairnessLimits(overdue_after=100))
    for number in range(30):
        turns.put(Order(0, number, f"big{number:02}", "big"))
    turns.put(Order(0, 99, "small", "small", since=150))
    for number in range(29):
        assert turns.take(200) == f"big{number:02}"
        turns.tried(placed=False)
    assert names(turns, 2, now=200) == ["big29", "small"]


def test_many_overdue_that_find_no_place_leave_every_second_attempt_to_others() -> None:
    """They are ready again before the last of them was tried, as in a busy cluster."""
    turns = FairWorkloadQueue(Held(hostile=0, victim=9), FairnessLimits(overdue_after=100))
    for number in range(2000):
        turns.put(Order(0, number, f"hostile{number:04}", "hostile"))
    for number in range(20):
        turns.put(Order(0, 5000 + number, f"victim{number:02}", "victim", since=5000))
    placed_after = []
    for attempt in range(2000):
        id_ = turns.take(5001)
        assert id_ is not None
        placed = id_.startswith("victim")
        turns.tried(placed=placed, operations=2 * MISS_OPERATIONS)
        if placed:
            placed_after.append(attempt)
        else:
            turns.put(Order(0, int(id_.removeprefix("hostile")), id_, "hostile"))
    assert len(placed_after) == 20, "none of them waits until no other is ready"
    assert placed_after[0] <= OVERDUE_MISSES
    assert max(after - before for before, after in pairwise(placed_after)) <= 2 * MISSES_BEFORE_TURNS


def test_an_overdue_workload_that_fits_comes_after_those_before_it_however_many() -> None:
    turns = FairWorkloadQueue(Held(old=0, new=9), FairnessLimits(overdue_after=100))
    for number in range(300):
        turns.put(Order(0, number, f"old{number:03}", "old", since=number / 1000))
        turns.put(Order(0, 5000 + number, f"new{number:03}", "new", since=5000))
    order = names(turns, 500, now=5001, placed=False)
    at = order.index("old299")
    assert at <= OVERDUE_MISSES + 2 * 200


def test_times_far_ahead_that_are_void_are_forgotten() -> None:
    """The first entry is valid, so none behind it is reached: gangs that relax in days, and are tried often."""
    queue = Queue()
    queue.mark_unschedulable(Order(0, 0, "quiet"), 1e6)
    for number in range(1000):
        queue.mark_unschedulable(Order(0, 0, "busy"), 2e6 + number)
        queue.wake("busy")
        assert queue.pop(number) == "busy"
        queue.tried(placed=False)
    assert len(queue._due) < 100
    queue.mark_unschedulable(Order(0, 0, "busy"), 3e6)
    assert queue.next_due() == 1e6


@pytest.mark.parametrize("others", [1, 5])
def test_attempts_without_a_place_do_not_keep_the_turn(others: int) -> None:
    """Neither the namespace with 10,000 of them, nor several such: all of them hold nothing, and b holds most."""
    turns = FairWorkloadQueue(Held(b=999), NEVER)
    for number in range(10_000):
        turns.put(Order(0, number, f"x{number}", f"a{number % others}"))
    turns.put(Order(0, 1e6, "b", "b"))
    taken = names(turns, MISSES_BEFORE_TURNS + others + 1, placed=False)
    assert "b" in taken


def order_of_attempts(count: int, fits: Callable[[str, int], bool], operations: int = 0) -> list[str]:
    """Return whose turn each attempt is: x for namespace a, b for b, which holds most. Both have 100 workloads.

    ``fits`` says whether a workload is placed, by whose it is and by the number of the attempt.
    """
    turns = FairWorkloadQueue(Held(b=999), NEVER)
    for number in range(100):
        turns.put(Order(0, number, f"x{number}", "a"))
        turns.put(Order(0, number, f"b{number}", "b"))
    order = []
    for attempt in range(count):
        id_ = turns.take(0)
        assert id_ is not None
        order.append(id_[0])
        turns.tried(placed=fits(id_[0], attempt), operations=operations)
    return order


def test_attempts_that_cost_much_end_the_turn_at_once() -> None:
    order = order_of_attempts(40, lambda first, _: first == "b", operations=MISSES_BEFORE_TURNS * MISS_OPERATIONS)
    assert order == ["x", "b"] * 20, "one of theirs for one of ours, not ten"


@pytest.mark.parametrize("first_fits", [False, True])
def test_turns_go_on_until_the_namespace_with_the_smallest_share_has_a_placement(*, first_fits: bool) -> None:
    """The others place all that they have meanwhile: each such placement would else be followed by ten attempts."""
    order = order_of_attempts(
        MISSES_BEFORE_TURNS + 12,
        lambda first, attempt: first == "b" or (first_fits and attempt == MISSES_BEFORE_TURNS + 1),
    )
    after = ["x"] * 10 if first_fits else ["b", "x"] * 5
    assert order == ["x"] * MISSES_BEFORE_TURNS + ["b", "x"] + after


def test_an_attempt_that_costs_little_counts_as_one() -> None:
    order = order_of_attempts(MISSES_BEFORE_TURNS + 1, lambda *_: False, operations=MISS_OPERATIONS - 1)
    assert order == ["x"] * MISSES_BEFORE_TURNS + ["b"]


def test_a_new_wave_of_attempts_begins_with_the_smallest_share() -> None:
    turns = FairWorkloadQueue(Held(a=1, b=2), NEVER)
    for _ in range(3):
        for number in range(20):
            turns.put(Order(0, number, f"b{number}", "b"))
        turns.put(Order(0, 99, "a", "a"))
        assert names(turns, 21, placed=False)[0] == "a"


def test_of_many_namespaces_each_keeps_to_its_rate_and_the_idle_are_forgotten() -> None:
    turns = FairWorkloadQueue(Held(), FairnessLimits(rate=1.0, burst=2))
    for number in range(2 * MIN_KEPT_NAMESPACES):
        turns.put(Order(0, number, f"x{number}", f"n{number}", since=number))
        assert turns.take(number) == f"x{number}"
    assert len(turns._tokens) <= MIN_KEPT_NAMESPACES + 1
    busy = f"n{2 * MIN_KEPT_NAMESPACES - 1}"
    for number in range(2):
        turns.put(Order(0, number, f"more{number}", busy, since=2 * MIN_KEPT_NAMESPACES))
    assert turns.take(2 * MIN_KEPT_NAMESPACES - 0.9) == "more0"
    assert turns.take(2 * MIN_KEPT_NAMESPACES - 0.9) is None, "two at once, and one a second"


def test_nothing_is_left_behind() -> None:
    held = Held()
    turns = FairWorkloadQueue(held, FairnessLimits(rate=1000.0, burst=5))
    now = 0.0
    turns.put(Order(0, 0, "stays", "quiet", since=1e9))
    for number in range(20_000):
        now += 1
        held.set("quiet", 10**6 - number)
        turns.put(Order(1, number, str(number), f"n{number % 7}", since=now))
        if number % 3:
            turns.drop(str(number))
        else:
            assert turns.take(now) is not None
    for level in turns._levels.values():
        assert len(level.by_share) + len(level.by_turn) + len(level.by_wait) < 200
        assert sum(len(line) for line in level.lines.values()) < 200
    assert turns.take(now) == "stays"


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_pod_is_overtaken_without_end(data: st.DataObject) -> None:
    """One place at a time becomes free, for a large or a small pod. Newcomers with a smaller share keep coming."""
    rng = random.Random(data.draw(st.integers(0, 10**6)))
    held = Held(old=1000, new=0, other=10)
    queue = Queue(held, FairnessLimits(overdue_after=50))
    waiting: dict[str, Order] = {}

    def comes(id_: str, namespace: str, now: float) -> None:
        order = Order(0, now, id_, namespace, since=now)
        waiting[id_] = order
        queue.activate(order)

    stuck = data.draw(st.integers(0, 15))
    for number in range(stuck):
        comes(f"large-{number}", "old", 0)
    for number in range(5):
        comes(f"old-{number}", "old", 1 + number)
    overtaken = 0
    for now in range(20, 200):
        comes(f"new-{now}", rng.choice(["new", "new", "other"]), now)
        for order in list(waiting.values()):
            queue.activate(order)
        place_for_one = True
        while (id_ := queue.pop(now)) is not None:
            fits = place_for_one and not id_.startswith("large")
            queue.tried(placed=fits)
            if fits:
                place_for_one = False
                del waiting[id_]
                overtaken += now >= 60 and id_.startswith(("new", "other"))
        if not any(id_.startswith("old") for id_ in waiting):
            break
    assert not any(id_.startswith("old") for id_ in waiting)
    assert overtaken <= PLACEMENTS_BY_SHARE * 6


def attempts_behind(
    others: int,
    fits: Callable[[str], bool],
    *,
    seconds: float = ATTEMPT_SECONDS,
    count: int = 100,
    levels: tuple[int, ...] = (1000, 0),
    operations: int = 0,
    placed: int = 1,
    shares: Held | None = None,
) -> list[str]:
    """Return the namespaces that are tried, with so many seconds between two attempts.

    Namespace a has 1,000 workloads of the first priority, the others ``others`` each of the next ones. An attempt of a
    takes ``operations``. One that fits places so many pods.
    """
    queue = FairWorkloadQueue(shares or EqualShares(), NEVER)
    for namespace, priority in zip("abc", levels, strict=False):
        for number in range(1000 if namespace == "a" else others):
            queue.put(Order(priority, number, f"{namespace}{number}", namespace))
    order, now = [], 0.0
    for _ in range(count):
        id_ = queue.take(now)
        if id_ is None:
            break
        order.append(id_[0])
        queue.tried(placed=placed * fits(id_), operations=operations if id_[0] == "a" else 0)
        now += seconds
    return order


def test_attempts_in_vain_of_a_higher_priority_keep_others_waiting_for_half_a_second_only() -> None:
    order = attempts_behind(30, lambda id_: id_[0] == "b")
    first = order.index("b")
    assert first == MAX_PASSED_OVER_SECONDS / ATTEMPT_SECONDS
    assert order[first : first + 60] == ["b", "a"] * 30, "every second attempt, until none of theirs is ready"


def test_placements_of_a_higher_priority_go_first_however_long_they_take() -> None:
    order = attempts_behind(30, lambda _: True, count=1030)
    assert order == ["a"] * 1000 + ["b"] * 30


EACH_TURN: Final = int(MAX_PASSED_OVER_SECONDS / ATTEMPT_SECONDS)
"""Attempts that take as long as a namespace may be passed over."""


def test_placements_that_take_many_operations_keep_others_of_their_priority_waiting_for_half_a_second_only() -> None:
    """Whatever the shares: the pods of a hold next to nothing."""
    shares = Held(a=0, b=9)
    costly = attempts_behind(30, lambda _: True, levels=(0, 0), operations=MISS_OPERATIONS + 1, shares=shares)
    first = costly.index("b")
    assert first == EACH_TURN
    assert costly[first : first + 60] == ["b", "a"] * 30
    ordinary = attempts_behind(30, lambda _: True, levels=(0, 0), operations=MISS_OPERATIONS, shares=shares)
    assert "b" not in ordinary, "they place as fast as they come"


def test_placements_that_take_many_operations_let_lower_priorities_have_one_attempt_each_half_second() -> None:
    """More would take room that fits the higher priority, and be evicted for it then."""
    costly = attempts_behind(30, lambda _: True, operations=MISS_OPERATIONS + 1, count=10 * EACH_TURN)
    assert "".join(costly).startswith(("a" * EACH_TURN + "b") * 8)
    ordinary = attempts_behind(30, lambda _: True, operations=MISS_OPERATIONS)
    assert "b" not in ordinary


def test_an_attempt_may_take_as_many_operations_for_each_pod_that_it_places() -> None:
    for operations, lower in (8 * MISS_OPERATIONS, False), (8 * MISS_OPERATIONS + 1, True):
        order = attempts_behind(30, lambda _: True, operations=operations, placed=8)
        assert ("b" in order) is lower


def test_attempts_in_vain_between_costly_placements_let_lower_priorities_have_every_second_attempt() -> None:
    def fits(id_: str) -> bool:
        return id_[0] == "b" or int(id_[1:]) % 2 == 0

    order = attempts_behind(30, fits, operations=MISS_OPERATIONS + 1, count=120)
    assert order.count("b") == 30


def test_each_of_those_passed_over_has_an_attempt_each_half_second_while_placements_take_many_operations() -> None:
    """Namespaces a and b have such workloads, of higher priority than those of c."""
    queue, order = FairWorkloadQueue(EqualShares(), NEVER), list[str]()
    for number in range(100):
        for namespace, priority in ("a", 1000), ("b", 10), ("c", 0):
            queue.put(Order(priority, number, f"{namespace}{number}", namespace))
    for step in range(60):
        id_ = str(queue.take(step * ATTEMPT_SECONDS))
        order.append(id_[0])
        queue.tried(placed=1, operations=0 if id_[0] == "c" else MISS_OPERATIONS + 1)
    assert "".join(order).lstrip("a").startswith("bacaaaaaa" * 5)


def test_a_placement_now_and_then_does_not_keep_others_waiting() -> None:
    order = attempts_behind(30, lambda id_: id_[0] == "b" or int(id_[1:]) % 2 == 0, count=120)
    assert order.index("b") <= 2 * MAX_PASSED_OVER_SECONDS / ATTEMPT_SECONDS + 1
    assert order.count("b") == 30, "one for each attempt in vain"


def test_attempts_in_vain_that_take_no_time_go_by_priority() -> None:
    order = attempts_behind(30, lambda id_: id_[0] == "b", seconds=0.0, count=1030)
    assert order == ["a"] * 1000 + ["b"] * 30


def test_those_passed_over_go_by_priority_while_they_are_placed() -> None:
    order = attempts_behind(20, lambda id_: id_[0] != "a", levels=(1000, 10, 0))
    assert [name for name in order if name != "a"] == ["b"] * 20 + ["c"] * 20


def test_those_passed_over_that_find_no_place_precede_others_once_for_each_placement_of_theirs() -> None:
    order = attempts_behind(50, lambda id_: id_[0] == "c", levels=(1000, 10, 0))
    assert "".join(order).lstrip("a").startswith("baca" * 20)


def test_a_workload_placed_at_a_lower_priority_does_not_keep_those_above_waiting() -> None:
    """One attempt of b in ten finds a place."""
    order = attempts_behind(50, lambda id_: id_[0] == "c" or id_ == "b10", levels=(1000, 10, 0))
    others = [name for name in order if name != "a"]
    assert others[:20] == ["b", "c"] * 10
    assert others[20:23] == ["b", "b", "c"], "one that is placed keeps its turn"


def test_a_namespace_that_finds_no_place_either_takes_every_second_attempt_at_most() -> None:
    order = attempts_behind(50, lambda _: False)
    assert order.count("b") == (100 - MAX_PASSED_OVER_SECONDS / ATTEMPT_SECONDS) / 2


def test_attempts_that_take_longer_than_that_alternate_from_the_third_on() -> None:
    """One pause proves no jam."""
    order = attempts_behind(30, lambda id_: id_[0] == "b", seconds=2 * MAX_PASSED_OVER_SECONDS)
    assert order[:61] == ["a", *["a", "b"] * 30]


def test_a_pause_after_an_attempt_without_a_placement_is_no_jam() -> None:
    queue = FairWorkloadQueue(EqualShares(), NEVER)
    for number in range(9):
        for namespace, priority in ("high", 1000), ("low", 0):
            queue.put(Order(priority, number, f"{namespace}{number}", namespace))
    assert names(queue, 1, now=0.0, placed=False) == ["high0"]
    assert names(queue, 8, now=60.0, placed=True) == [f"high{number}" for number in range(1, 9)]


def test_of_those_that_are_ready_the_highest_priority_goes_first_though_another_was_passed_over() -> None:
    """That one opens the way to those that became ready only now, and above it."""
    queue = FairWorkloadQueue(EqualShares(), NEVER)
    for number in range(100):
        queue.put(Order(1000, number, f"jam{number}", "jam"))
        queue.put(Order(1, number, f"low{number}", "low"))
    for step in range(8):
        assert str(queue.take(step * ATTEMPT_SECONDS)).startswith("jam")
        queue.tried(placed=False)
    for number in range(8):
        queue.put(Order(500, number, f"high{number}", "high"))
    for number in range(100, 108):
        queue.put(Order(500, number, f"jam{number}", "jam"))
    order = []
    for step in range(60):
        order.append(str(id_ := queue.take((8 + step) * ATTEMPT_SECONDS)))
        queue.tried(placed=not str(id_).startswith("jam") or int(str(id_)[3:]) >= 100)
    others = [id_ for id_ in order if not id_.startswith("jam") or int(id_[3:]) >= 100]
    assert others[:16] == [*(f"high{n}" for n in range(8)), *(f"jam{n}" for n in range(100, 108))]
    assert others[16:] and all(id_.startswith("low") for id_ in others[16:])


def test_attempts_of_those_passed_over_that_last_leave_the_others_as_much_time() -> None:
    """Each takes as long as four attempts of the others."""
    queue, order, now = FairWorkloadQueue(EqualShares(), NEVER), list[str](), 0.0
    for number in range(1000):
        queue.put(Order(1000, number, f"a{number}", "a"))
        queue.put(Order(0, number, f"b{number}", "b"))
    for _ in range(100):
        id_ = str(queue.take(now))
        order.append(id_[0])
        queue.tried(placed=False)
        now += ATTEMPT_SECONDS if id_[0] == "a" else 4 * ATTEMPT_SECONDS
    first = order.index("b")
    assert order[first : first + 15] == ["b", *["a"] * 4] * 3


def test_a_changed_workload_stays_passed_over_in_the_queue_too() -> None:
    queue = Queue(EqualShares(), NEVER)
    for number in range(100):
        queue.activate(Order(1000, number, f"a{number}", "a"))
    queue.activate(Order(0, 0, "b0", "b"))
    order = []
    for step in range(30):
        order.append(queue.pop(step * ATTEMPT_SECONDS))
        queue.tried(placed=False)
        if "b0" not in order:
            queue.activate(Order(0, step + 1, "b0", "b"))
    assert order.index("b0") == MAX_PASSED_OVER_SECONDS / ATTEMPT_SECONDS


def test_a_namespace_is_passed_over_since_it_has_ready_workloads() -> None:
    queue = FairWorkloadQueue(EqualShares(), NEVER)
    queue.put(Order(0, 0, "b0", "b"))
    queue.drop("b0")
    for number in range(10):
        queue.put(Order(1000, number, f"a{number}", "a"))
    for now in (0.0, 10.0):
        assert str(queue.take(now)).startswith("a")
        queue.tried(placed=False)
    queue.put(Order(0, 0, "b0", "b"))
    for now in (10.0, 10.25):
        assert str(queue.take(now)).startswith("a")
        queue.tried(placed=False)
    queue.put(Order(0, 1, "b0", "b"))  # a change of the workload does not restart the wait
    assert queue.take(10.0 + MAX_PASSED_OVER_SECONDS) == "b0"
    assert set(queue._passed_over.since) == {"a"}
    for number in range(10):
        queue.drop(f"a{number}")
    assert not queue._passed_over.since


def test_a_namespace_without_tokens_is_not_passed_over_for_others() -> None:
    queue = FairWorkloadQueue(EqualShares(), FairnessLimits(1e12, rate=0.5, burst=2))
    for number in range(9):
        for namespace, priority in ("ahead", 1000), ("limited", 0):
            queue.put(Order(priority, number, f"{namespace}{number}", namespace))
    assert names(queue, 4, now=0.0, placed=False) == ["ahead0", "ahead1", "limited0", "limited1"]
    assert names(queue, 2, now=2.0, placed=False) == ["ahead2", "limited2"]
    queue.configure(NEVER)
    assert names(queue, 2, now=10.0, placed=False) == ["ahead3", "ahead4"]
    assert names(queue, 2, now=10.25, placed=False) == ["ahead5", "ahead6"]
    assert names(queue, 2, now=10.5, placed=False) == ["limited3", "ahead7"]


def test_a_namespace_stays_passed_over_while_it_is_skipped_for_the_sake_of_others() -> None:
    queue, order = FairWorkloadQueue(EqualShares(), NEVER), list[str]()
    for number in range(100):
        queue.put(Order(1000, number, f"a{number}", "a"))
        queue.put(Order(0, number, f"b{number}", "b"))
    for step in range(40):
        now = step * ATTEMPT_SECONDS
        queue.hold(["b"] if step % 4 == 0 else [], now + 1.0)
        order.append(str(queue.take(now))[0])
        queue.tried(placed=order[-1] == "b")
    assert order.index("b") <= MAX_PASSED_OVER_SECONDS / ATTEMPT_SECONDS + 1


def test_a_namespace_that_is_skipped_for_the_sake_of_others_still_waits_for_its_tokens() -> None:
    queue = FairWorkloadQueue(EqualShares(), FairnessLimits(1e12, rate=0.5, burst=1))
    for number in range(3):
        queue.put(Order(0, number, f"limited{number}", "limited"))
    assert names(queue, 1, now=0.0, placed=True) == ["limited0"]
    queue.hold(["limited"], 10.0)
    queue.hold(["limited"], 11.0)
    assert queue.take(1.0) is None
    queue.hold([], 11.0)
    assert queue.take(1.0) is None and queue.next_due() == 2.0
    queue.hold(["limited"], 1.5)  # for less time than it waits anyway
    queue.hold([], 11.0)
    assert queue.take(1.5) is None
    assert names(queue, 1, now=2.0, placed=True) == ["limited1"]
    queue.hold(["limited"], 20.0)
    queue.hold([], 20.0)
    assert queue.take(3.0) is None and queue.take(4.0) == "limited2"


@pytest.mark.parametrize("levels_between", [0, MAX_COMPARED_LEVELS + 50])
def test_a_namespace_with_a_hopeless_workload_of_its_own_in_the_jam_is_passed_over_too(levels_between: int) -> None:
    """Both have such workloads, which events make ready again all the time. Levels between have none any more."""
    queue = FairWorkloadQueue(EqualShares(), NEVER)
    for number in range(levels_between):
        queue.put(Order(1 + number, 0.0, f"z{number}", "z"))
    for number in range(levels_between):
        queue.drop(f"z{number}")
    hopeless = [Order(1000, number, f"x{number}", "x") for number in range(300)] + [Order(1000, 0, "y-high", "y")]
    queue.put(Order(0, 1.0, "y-low", "y"))
    order: list[str] = []
    for number in range(400):
        if number % 6 == 0:
            for each in hopeless:
                queue.put(each)
        id_ = queue.take(number * ATTEMPT_SECONDS)
        assert id_ is not None
        order.append(id_)
        queue.tried(placed=id_ == "y-low")
        if id_ == "y-low":
            break
    assert len(order) <= MAX_PASSED_OVER_SECONDS / ATTEMPT_SECONDS + 4


def test_a_namespace_whose_pods_are_placed_has_every_second_turn_however_many_others_find_no_place() -> None:
    queue = FairWorkloadQueue(EqualShares(), NEVER)
    for number in range(100):
        queue.put(Order(0, number, f"low-{number}", "low"))
        for other in range(16):
            queue.put(Order(1000, number, f"{other}-{number}", f"hostile-{other}"))
    order: list[str] = []
    for number in range(300):
        id_ = queue.take(number * ATTEMPT_SECONDS)
        assert id_ is not None
        order.append(id_)
        queue.tried(placed=id_.startswith("low"))
    first = next(number for number, id_ in enumerate(order) if id_.startswith("low"))
    after = [id_.startswith("low") for id_ in order[first : first + 80]]
    assert sum(after) >= 20, "every second of every second attempt"


def test_levels_without_workloads_are_dropped() -> None:
    queue = FairWorkloadQueue(EqualShares(), NEVER)
    for priority in range(4000):
        queue.put(Order(priority, 0.0, "w", "ns"))
    assert len(queue._levels) <= 2 * MIN_KEPT_LEVELS and len(queue._ranked) == len(queue._levels)
    assert queue.take(0.0) == "w"
