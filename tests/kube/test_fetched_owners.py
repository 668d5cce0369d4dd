"""Owners that were read on demand are kept up to a number and an amount of memory; those that pods need always."""

from collections.abc import Callable

import pytest

from topo_scheduler.api.objects import OwnerReference
from topo_scheduler.kube.reading import fetched_owners as module
from topo_scheduler.kube.reading.fetched_owners import FetchedOwners
from topo_scheduler.kube.reading.owner_chains import Absent, ChainLink, key_of

LARGE = {f"topology.scheduler/a{number}": "x" * 4_000 for number in range(2)}


@pytest.fixture(autouse=True)
def _low_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FETCHED_BYTES", 100_000)
    monkeypatch.setattr(module, "MAX_FETCHED_OWNERS", 50)


def reference(number: int) -> OwnerReference:
    return OwnerReference("ray.io/v1", "RayCluster", f"ray-{number}", f"u{number}")


def link(number: int, annotations: dict[str, str]) -> ChainLink:
    return ChainLink("RayCluster", "ray.io/v1", "a", f"ray-{number}", f"u{number}", annotations, None)


def filled(
    annotations: dict[str, str], count: int = 200, needed: Callable[[str], bool] = lambda uid: False
) -> FetchedOwners:
    owners = FetchedOwners(needed)
    for number in range(count):
        owners.put("a", reference(number), link(number, annotations), float(number))
    return owners


def kept(owners: FetchedOwners) -> list[int]:
    return sorted(int(owner.reference.uid[1:]) for _, owner in owners.items())


def test_large_ones_are_kept_up_to_an_amount_of_memory_and_small_ones_up_to_a_number() -> None:
    assert 10 <= len(filled(LARGE)) <= 12
    assert 45 <= len(filled({})) <= 50


def test_the_least_recently_used_go_first() -> None:
    owners = filled(LARGE, 11)
    first = owners.get(key_of("a", reference(0)))
    assert first is not None
    first.used = 1_000.0
    owners.put("a", reference(11), link(11, LARGE), 11.0)
    owners.put("a", reference(12), link(12, LARGE), 12.0)
    assert {0, 12} <= set(kept(owners))
    assert 1 not in kept(owners)


def test_those_that_pods_need_are_kept_beyond_it_and_are_not_looked_at_each_time() -> None:
    asked = 0

    def needed(uid: str) -> bool:
        nonlocal asked
        asked += 1
        return uid != "u3"

    owners = filled(LARGE, needed=needed)
    assert kept(owners) == [number for number in range(200) if number != 3]
    assert asked < 200 * 20, "each of 200 would ask for all before it"


def test_an_owner_that_is_answered_again_or_dropped_counts_with_what_it_has_now() -> None:
    owners = filled(LARGE, 10)
    for number in range(10):
        owner = owners.get(key_of("a", reference(number)))
        assert owner is not None
        owners.update(owner, Absent("deleted", gone=True) if number % 2 else link(number, {}))
    for number in range(10, 20):
        owners.put("a", reference(number), link(number, LARGE), float(number))
    assert kept(owners) == list(range(20))
    for number in range(20):
        owners.pop(key_of("a", reference(number)))
    assert (len(owners), owners._bytes) == (0, 0)
