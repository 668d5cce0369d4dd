"""Close GPUs by resource claims: pods get the close devices, and preempt others if close ones come free."""

from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.helpers import make_pod
from tests.scheduling.device_driver import asking
from tests.scheduling.ending_victims import preempt as preempt_with
from tests.scheduling.extended_driver import ExtendedDriver
from tests.scheduling.linked_gpus import are_linked, cluster, numbers_of, running
from topo_scheduler.api.objects import Pod


def linked(name: str = "urgent", gpus: int = 2) -> Pod:
    return make_pod(name, gpus=gpus, priority=10, annotations={"gpu-locality": "nvlink"})


def linked_by_claim(d: ExtendedDriver, gpus: int = 2) -> Pod:
    return d.pod("urgent", asking(gpus), priority=10, annotations={"gpu-locality": "nvlink"})


def preempt(d: ExtendedDriver, pod: Pod) -> list[str]:
    """Let a pod preempt others, which end with their claims; it must then have a place."""
    return preempt_with(d, pod, lambda name: d.drop_claim(f"{name}-claim"))


def test_a_pod_gets_the_devices_that_are_linked() -> None:
    """The first free devices are 0 and 5, without a link between them."""
    d = cluster("n")
    running(d, "other", (1, 2, 3, 4))
    pod = linked()
    assert d.run(pod)
    assert are_linked(sorted(numbers_of(d, pod)))


@pytest.mark.parametrize("by_claim", [False, True])
def test_the_victim_is_the_pod_whose_device_is_linked_with_a_free_one(by_claim: bool) -> None:
    d = cluster("n")
    for gpu in range(1, 8):
        running(d, f"p{gpu}", (gpu,))
    pod = linked_by_claim(d) if by_claim else linked()
    assert preempt(d, pod) in (["p1"], ["p2"], ["p3"], ["p4"])
    assert are_linked(sorted(numbers_of(d, pod)))


@settings(max_examples=40, deadline=None)
@given(
    sets=st.lists(st.sets(st.integers(0, 7), min_size=1, max_size=3), min_size=2, max_size=5),
    priorities=st.lists(st.sampled_from([0, 5, 20]), min_size=5, max_size=5),
    size=st.integers(2, 3),
    by_claim=st.booleans(),
)
def test_victims_free_linked_devices_or_no_pod_goes(
    sets: list[set[int]], priorities: list[int], size: int, by_claim: bool
) -> None:
    d = cluster("n")
    held: dict[str, set[int]] = {}
    low: dict[str, int] = {}
    for number, gpus in enumerate(sets):
        gpus = gpus.difference(*held.values())
        if gpus:
            pod = running(d, f"p{number}", sorted(gpus), priority=priorities[number])
            held[pod.metadata.name] = gpus
            if pod.spec.priority < 10:
                low[pod.metadata.name] = pod.spec.priority

    def has_room(without: Sequence[str]) -> bool:
        free = set(range(8)).difference(*(gpus for name, gpus in held.items() if name not in without))
        return any(map(are_linked, combinations(sorted(free), size)))

    pod = linked_by_claim(d, size) if by_claim else linked(gpus=size)
    victims = preempt(d, pod)
    enough = [c for n in range(1, len(low) + 1) for c in combinations(low, n) if has_room(c)]
    assert bool(victims) == (not has_room(()) and bool(enough))
    if victims:
        event("preempted")
        assert max(low[name] for name in victims) == min(max(low[name] for name in names) for names in enough)
        assert not any(has_room([other for other in victims if other != name]) for name in victims)
    if pod.spec.node_name:
        assert are_linked(sorted(numbers_of(d, pod)))
