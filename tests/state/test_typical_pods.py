"""Typical pods: the most popular kinds, counted from the pods there are."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from topo_scheduler.state.nodes.resources import CPU, GPU, GPU_SHARE, MEMORY
from topo_scheduler.state.statistics.typical_pods import (
    MAX_KINDS,
    MILLIONTHS,
    PodKind,
    PodKinds,
    ShareWorth,
    in_millionths,
    kind_of,
    moved,
    popular,
    typical_of,
)

kinds = st.builds(PodKind, st.integers(0, 3), st.integers(0, 2), st.just(0), st.sampled_from([(), ("A",)]))


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.none() | kinds), max_size=40))
def test_a_count_that_followed_every_event_equals_one_made_at_the_end(
    events: list[tuple[str, PodKind | None]],
) -> None:
    followed, alive = PodKinds(), dict[str, PodKind]()
    for uid, kind in events:
        if kind is None:
            followed.drop(uid)
            alive.pop(uid, None)
        else:
            followed.put(uid, kind)
            alive[uid] = kind
    rebuilt = PodKinds()
    for uid, kind in reversed(alive.items()):
        rebuilt.put(uid, kind)
    assert followed.counts == rebuilt.counts == Counter(alive.values())
    assert popular(followed.counts) == popular(rebuilt.counts)
    assert len(followed) == len(alive)


@given(st.dictionaries(kinds, st.integers(1, 1000), max_size=12))
def test_the_popular_cover_nearly_all_and_no_more_than_needed(counts: dict[PodKind, int]) -> None:
    cover, total = popular(counts), sum(counts.values())
    chosen = [kind for kind, _ in cover]
    assert sum(counts[kind] for kind in chosen) * 100 >= 95 * total
    if cover:
        assert sum(counts[kind] for kind in chosen[:-1]) * 100 < 95 * total
        assert MILLIONTHS - len(cover) <= sum(weight for _, weight in cover) <= MILLIONTHS
    assert [counts[kind] for kind in chosen] == sorted((counts[kind] for kind in chosen), reverse=True)
    assert popular(dict(reversed(counts.items()))) == cover, "whatever was counted first"


def test_how_much_moved() -> None:
    old, new = in_millionths([(PodKind(1), 3), (PodKind(2), 1)]), in_millionths([(PodKind(2), 1), (PodKind(3), 1)])
    assert moved(old, old) == 0
    assert moved((), old) == moved(old, ()) == MILLIONTHS
    assert moved(old, new) == 750_000 == moved(new, old)


def test_there_is_a_limit_to_how_many_are_typical() -> None:
    assert len(popular({PodKind(number): 1 for number in range(1000)})) == MAX_KINDS
    assert popular({}) == ()


def test_a_kind_is_what_fragmentation_depends_on() -> None:
    assert kind_of({CPU: 500, MEMORY: 7, GPU: 2}, ("B", "A")) == PodKind(500, 2, 0, ("A", "B"))
    assert kind_of({CPU: 500, GPU_SHARE: 250}) == PodKind(500, 0, 250)
    assert kind_of({CPU: 500}, ("A",)) == PodKind(500), "models matter to pods with GPUs"


def test_models_become_columns() -> None:
    typical = typical_of(
        in_millionths([(PodKind(1000, 1, 0, ("A", "Z")), 3), (PodKind(0, 0, 500), 1)]), ["B", "A"], ShareWorth.nothing()
    )
    assert typical.pods.tolist() == [[1000, 1, 0, 750_000], [0, 0, 500, 250_000]]
    assert typical.access.tolist() == [[False, False, True], [True, True, True]], "unknown models first"
