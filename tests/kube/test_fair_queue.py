"""What waits to be written: the oldest first, and of one namespace only its share at once."""

import random
from collections import Counter

import pytest

from topo_scheduler.kube.connection.fair_slots import HANGING_SLOTS, MARKED_SECONDS
from topo_scheduler.kube.writing.fair_queue import STALE_ENTRIES, FairQueue


def queue(each: int = 2) -> FairQueue[str, str]:
    return FairQueue(each)


def put(q: FairQueue[str, str], *keys: str, since: float = 0.0) -> None:
    """Put items that are named after their namespace: ``a1`` is of namespace ``a``."""
    for at, key in enumerate(keys):
        q.put(key, key[0], since + at, key)


def taken(q: FairQueue[str, str]) -> list[str]:
    """Take all that may be taken."""
    keys = []
    while q.oldest() is not None:
        keys.append(q.take()[0])
    return keys


def test_a_namespace_that_has_its_share_is_passed_over_until_one_is_done() -> None:
    q = queue()
    put(q, "a1", "a2", "a3", "a4", "b1")
    assert taken(q) == ["a1", "a2", "b1"]
    with pytest.raises(LookupError):
        q.take()
    q.done("b1")
    assert q.oldest() is None
    q.done("a2")
    assert q.oldest() == 2
    assert taken(q) == ["a3"]
    assert len(q) == q.count("a") == 1


def test_the_oldest_goes_first_whenever_it_was_put() -> None:
    q = queue(9)
    put(q, "a1", "b1", since=5)
    put(q, "a2", since=1)
    q.pop("b1")
    put(q, "b2", since=3)
    assert taken(q) == ["a2", "b2", "a1"]


def test_of_one_key_one_item_is_under_way_and_the_newest_waits() -> None:
    q = queue()
    put(q, "a1")
    assert taken(q) == ["a1"]
    q.put("a1", "a", 1, "newer")
    q.put("a1", "a", 2, "newest")
    assert (q.oldest(), q.get("a1"), len(q), q.keys()) == (None, "newest", 1, {"a1"})
    q.done("a1")
    assert q.take() == ("a1", "newest")
    q.put("a1", "a", 3, "never")
    q.pop("a1")
    q.done("a1")
    assert (q.oldest(), len(q), q.keys()) == (None, 0, set())


def test_what_is_dropped_is_the_oldest_of_the_namespace_that_has_most_though_it_has_its_share_under_way() -> None:
    q = queue(1)
    put(q, "b1", "a1", "a2", "a3")
    assert q.take() == ("b1", "b1") and q.take() == ("a1", "a1")
    put(q, "b2")
    assert [q.pop_of_most() for _ in range(4)] == ["a2", "a3", "b2", None]


def test_while_only_the_reserve_is_idle_namespaces_without_an_item_in_progress_go_first() -> None:
    q: FairQueue[str, str] = FairQueue(3, 2)
    put(q, "a1", "a2", "b1", "c1")
    assert q.take(4)[0] == "a1"
    assert q.take(3)[0] == "a2"
    q.done("a2")
    put(q, "a3", since=-1)
    assert q.oldest(3) == -1
    assert [q.take(2)[0], q.take(1)[0]] == ["b1", "c1"]
    assert q.oldest(2) is None and q.oldest(0) is None
    assert q.take(3)[0] == "a3"


def test_it_agrees_with_a_simple_one_and_keeps_nothing_of_what_is_gone() -> None:
    chance, now = random.Random(7), 0.0
    q: FairQueue[str, str] = FairQueue(3, 2)
    q._shares._clock = lambda: now
    waiting: dict[str, tuple[float, int]] = {}
    held: list[str] = []
    marked: dict[str, float] = {}
    for number in range(12_000):
        now += 0.1
        marked = {name: since for name, since in marked.items() if now - since < MARKED_SECONDS}
        key = f"{chance.choice('abcdef')}{chance.randrange(40)}"
        match chance.randrange(4):
            case 0 | 1:
                since = chance.randrange(1_000)
                q.put(key, key[0], since, key)
                waiting[key] = since, number
            case 2:
                assert q.pop(key) == (key if waiting.pop(key, None) else None)
            case _ if held:
                q.done(held.pop(chance.randrange(len(held))))
        if chance.random() < 0.002:
            q.hangs(key[0])
            marked[key[0]] = now
        idle = chance.choice([None, 3, 2, 1, 0])

        counts = Counter(item[0] for item in held)
        if idle is None or idle > 2:
            may_go = {name for name in "abcdef" if counts[name] < (HANGING_SLOTS if name in marked else 3)}
        else:
            may_go = {name for name in "abcdef" if idle and not counts[name] and name not in marked}
        free = [(order, item) for item, order in waiting.items() if item not in held and item[0] in may_go]
        assert q.oldest(idle) == (min(free)[0][0] if free else None)
        if free and chance.random() < 0.4:
            key, _ = q.take(idle)
            assert (waiting.pop(key), key) == min(free)
            held.append(key)
    for key in list(waiting):
        q.pop(key)
    for key in held:
        q.done(key)
    assert q.oldest() is None
    assert not (q._entries or q._behind or q._counts or q._under_way or q._shares._held or q._by_namespace)
    assert not (q._heads._offered or q._first_heads._offered)
    assert max(len(q._heads._heap), len(q._first_heads._heap)) <= STALE_ENTRIES


def test_what_is_replaced_again_and_again_behind_a_request_that_hangs_takes_no_memory() -> None:
    q = queue(1)
    put(q, "a1", "a2")
    q.take()
    for number in range(10_000):
        q.put("a3", "a", number, "a3")
    assert sum(map(len, q._by_namespace.values())) <= 2 * 2 + STALE_ENTRIES
