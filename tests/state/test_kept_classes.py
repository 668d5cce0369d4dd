"""Large classes of bound members have a budget of memory, and beyond it the oldest of that namespace are forgotten."""

import gc
import tracemalloc
from functools import partial

import pytest

from topo_scheduler.api.selectors import NodeAffinity, NodeSelectorTerm, PreferredTerm, Requirement
from topo_scheduler.state.pods import kept_classes as module
from topo_scheduler.state.pods.classes import PodClass
from topo_scheduler.state.pods.constraints import PodPreferences
from topo_scheduler.state.pods.kept_classes import KeptClasses, class_bytes
from topo_scheduler.state.pods.profiles import CountedTerm
from topo_scheduler.state.pods.selectors import Clause, Selector
from topo_scheduler.state.pods.workloads import Member
from topo_scheduler.state.tenant_memory import TenantMemory

LARGE_BYTES = 231_000
"""About what `class_bytes` says of one class of these tests."""


@pytest.fixture(autouse=True)
def _low_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CLASS_BYTES_OF_NAMESPACE", 4 * LARGE_BYTES)


def large_class(number: int) -> PodClass:
    near = tuple(
        (1, CountedTerm(Selector((Clause("app", "In", values),)), frozenset({"n"}), f"key-{number}-{term}"))
        for term in range(60)
        if (values := frozenset(f"value-{number}-{term}-{value}" for value in range(16)))
    )
    return PodClass(((0, 8),), preferences=PodPreferences("n", near))


def member_of(number: int, cls: PodClass, namespace: str = "hostile") -> Member:
    return Member(f"{namespace}-{number}", namespace, f"p{number}", cls, 0, 0.0, 0.0)


def known(members: list[Member]) -> list[int]:
    return [number for number, member in enumerate(members) if member.cls.amounts]


def test_the_size_of_a_large_class_is_about_what_it_takes() -> None:
    build = partial(large_class, 1)
    build()
    gc.collect()
    tracemalloc.start()
    cls = build()
    measured = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert 0.9 * LARGE_BYTES < class_bytes(cls) < 1.0 * LARGE_BYTES
    assert 0.6 * class_bytes(cls) < measured < class_bytes(cls)


def test_the_oldest_of_a_namespace_are_forgotten_and_others_lose_nothing() -> None:
    kept = KeptClasses(TenantMemory(6 * LARGE_BYTES))
    neighbour = member_of(0, large_class(99), "other")
    kept.bound(neighbour)
    members = [member_of(number, large_class(number)) for number in range(10)]
    for member in members:
        kept.bound(member)
    assert known(members) == [6, 7, 8, 9]
    assert neighbour.cls.amounts


def test_equal_classes_count_once_and_are_one_object() -> None:
    kept = KeptClasses(TenantMemory(6 * LARGE_BYTES))
    members = [member_of(number, large_class(1)) for number in range(20)]
    for member in members:
        kept.bound(member)
    assert known(members) == list(range(20))
    assert len({id(member.cls) for member in members}) == 1


def test_pods_that_are_gone_give_their_room_back() -> None:
    kept = KeptClasses(TenantMemory(6 * LARGE_BYTES))
    first = [member_of(number, large_class(number)) for number in range(3)]
    for member in first:
        kept.bound(member)
    kept.gone(first[1].uid)
    kept.gone("unknown")
    later = [member_of(number, large_class(number)) for number in range(3, 5)]
    for member in later:
        kept.bound(member)
    assert known(first + later) == [0, 1, 2, 3, 4]


def test_where_many_namespaces_have_large_classes_each_has_an_equal_share() -> None:
    kept = KeptClasses(TenantMemory(6 * LARGE_BYTES))
    namespaces = {name: [member_of(number, large_class(number), name) for number in range(4)] for name in "abc"}
    for members in namespaces.values():
        for member in members:
            kept.bound(member)
    assert [len(known(members)) for members in namespaces.values()] == [2, 2, 2]


def test_without_room_for_one_it_is_not_kept_but_kept_for_a_plan() -> None:
    kept = KeptClasses(TenantMemory(6 * LARGE_BYTES))
    for name in "abcdefgh":
        kept.bound(member_of(0, large_class(0), name))
    late, asked = member_of(1, large_class(1), "late"), member_of(2, large_class(2), "late")
    kept.bound(late)
    kept.read(asked)
    assert known([late, asked]) == [1]


def test_ordinary_classes_are_always_kept() -> None:
    kept = KeptClasses(TenantMemory(6 * LARGE_BYTES))
    term = PreferredTerm(1, NodeSelectorTerm((Requirement("zone", "In", ("a", "b")),)))
    plain = [PodClass(((0, number),), affinity=NodeAffinity(None, (term,))) for number in range(1, 200)]
    members = [member_of(number, cls) for number, cls in enumerate(plain)]
    for member in members:
        kept.bound(member)
    assert len(known(members)) == 199
    assert class_bytes(PodClass(((0, 8),))) == 0
