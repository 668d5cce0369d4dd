"""What users make many of has a limit of memory for each kind in a namespace, and a hard one for all together."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from topo_scheduler.state.tenant_memory import MAX_WARNED_NAMESPACES, TenantMemory

TOTAL_BYTES = 100
KIND_BYTES = (60, 40)

steps = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.sampled_from("abcde"),
        st.integers(0, 5),
        st.integers(0, 45) | st.none(),
    ),
    max_size=60,
)
"""Kind, namespace, key and bytes of objects that appear or change; None for one that is deleted."""


@given(steps)
def test_no_limit_is_ever_exceeded_and_a_namespace_within_an_equal_share_loses_nothing(
    steps: list[tuple[int, str, int, int | None]],
) -> None:
    memory = TenantMemory(TOTAL_BYTES)
    kinds = [memory.kind(limit) for limit in KIND_BYTES]
    counted: dict[tuple[int, str, int], int] = {}
    for number, namespace, key, size in steps:
        before = Counter[str]()
        if size is None:
            kinds[number].drop(namespace, key)
            counted.pop((number, namespace, key), None)
        else:
            wanted = dict(counted) | {(number, namespace, key): size}
            for (_, name, _), taken in wanted.items():
                before[name] += taken
            if kinds[number].put(namespace, key, size):
                counted[number, namespace, key] = size
            else:
                counted.pop((number, namespace, key), None)
        lost = [(kind, *item) for kind in (0, 1) for item in kinds[kind].take_lost()]
        for kind, name, item in lost:
            assert before[name] > TOTAL_BYTES / len(+before), "it was within an equal share"
            assert isinstance(item, int)
            del counted[kind, name, item]
        assert sum(counted.values()) == memory.taken_bytes <= TOTAL_BYTES
        for kind, limit in enumerate(KIND_BYTES):
            for name in "abcde":
                taken_bytes = sum(taken for (k, n, _), taken in counted.items() if (k, n) == (kind, name))
                assert taken_bytes == kinds[kind].bytes_of(name) <= limit


def test_the_newest_objects_of_the_largest_namespace_lose_their_room_also_to_other_kinds() -> None:
    memory = TenantMemory(TOTAL_BYTES)
    first, second = memory.kind(90), memory.kind(90)
    assert all(first.put("large", number, 20) for number in range(4))
    assert first.put("large", 0, 25), "a changed object keeps its place"
    assert second.put("small", "x", 40)
    assert first.take_lost() == [("large", 3), ("large", 2)]
    assert not second.take_lost()
    assert memory.overflowed
    assert not first.put("large", 4, 20), "it is the newest of the largest itself"
    assert not first.take_lost()
    assert ("large", 4) not in first


def test_thousands_of_objects_may_lose_their_room_at_once_and_no_namespace_more_than_the_others() -> None:
    memory = TenantMemory(10_000)
    kind = memory.kind(10_000)
    for name in "abcde":
        assert all(kind.put(name, number, 1) for number in range(2_000))
    assert kind.put("f", "x", 1_666)
    assert len(kind.take_lost()) == 1_666
    assert {kind.bytes_of(name) for name in "abcde"} <= {1_666, 1_667}
    assert memory.taken_bytes == 10_000


def test_an_object_without_room_counts_once_there_is_some() -> None:
    kind = TenantMemory(TOTAL_BYTES).kind(50)
    assert kind.put("a", "x", 50)
    assert not kind.put("a", "y", 1)
    assert kind.put("a", "x", 30), "smaller is always possible"
    assert kind.put("a", "y", 20)
    assert kind.put("a", "y", 0)
    assert kind.bytes_of("a") == 30


def test_a_namespace_is_warned_once_until_it_has_half_its_limit_again() -> None:
    kind = TenantMemory(1_000).kind(100)
    kind.put("a", "x", 60)
    kind.put("a", "y", 40)
    assert [kind.deserves_warning("a") for _ in range(3)] == [True, False, False]
    kind.drop("a", "y")
    assert not kind.deserves_warning("a")
    kind.drop("a", "x")
    assert kind.deserves_warning("a")
    for number in range(2 * MAX_WARNED_NAMESPACES):
        kind.deserves_warning(f"n{number}")
    assert len(kind._warned) <= MAX_WARNED_NAMESPACES
