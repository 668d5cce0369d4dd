"""Which pods would move for a pod that waits for a MIG slot: as few as a search of all sets and all slots finds."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.recovery.slot_world import SlotWorld, slices_of, slot_world
from tests.scheduling.partitioned_nodes import PLACES

Slot = tuple[str, str]
"""Node and device."""
MOST = 2


@dataclass(frozen=True)
class Case:
    """Running pods by device, those of them that may not move, and what the pending pod asks for."""

    nodes: int
    gpus: int
    placed: Mapping[str, str]
    stays: frozenset[str]
    wanted: str

    def world(self) -> SlotWorld:
        world = slot_world({}, self.nodes, gpus=self.gpus)
        for name, device in self.placed.items():
            annotations = {"movable": "false"} if name in self.stays else {}
            world.runs(name, device, annotations=annotations)
        world.asks("p", self.wanted)
        return world

    # ------------------------------------------------------------ the reference

    def all_slots(self, size: str) -> Iterator[Slot]:
        for node in range(1, self.nodes + 1):
            for gpu in range(self.gpus):
                for start in PLACES[size][2]:
                    yield f"s1-l1-{node}", f"gpu-{gpu}-{size}-{start}"

    def fewest(self) -> int | None:
        """Return the fewest moves after which all have a slot, None if two are not enough."""
        movable = sorted(set(self.placed) - self.stays)
        for count in range(MOST + 1):
            for chosen in combinations(movable, count):
                held = [tuple(device.split("/")) for name, device in self.placed.items() if name not in chosen]
                sizes = [self.wanted, *(size_of(self.placed[name]) for name in chosen)]
                if self.fit_together(sizes, held):  # type: ignore[arg-type]
                    return count
        return None

    def fit_together(self, sizes: list[str], held: list[Slot]) -> bool:
        if not fits(held):
            return False
        if not sizes:
            return True
        return any(self.fit_together(sizes[1:], [*held, slot]) for slot in self.all_slots(sizes[0]))


def size_of(device: str) -> str:
    return device.rpartition("/")[2].split("-")[2]


def fits(held: list[Slot]) -> bool:
    """Return whether slots overlap nowhere, and no GPU lacks compute slices."""
    taken: set[tuple[str, str, int]] = set()
    compute: dict[tuple[str, str], int] = {}
    for node, device in held:
        gpu = (node, device.split("-")[1])
        for part in slices_of(device):
            if (node, *part) in taken:
                return False
            taken.add((node, *part))
        compute[gpu] = compute.get(gpu, 0) + PLACES[size_of(device)][0]
    return all(count <= 7 for count in compute.values())


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw GPUs that are mostly full, and a pod that asks for more than the largest gap."""
    nodes, gpus = draw(st.sampled_from([(1, 1), (1, 2), (2, 1), (1, 3)]))
    held: list[Slot] = []
    every = Case(nodes, gpus, {}, frozenset(), "1g")
    for _ in range(draw(st.integers(2 * nodes * gpus, 5 * nodes * gpus))):
        slots = list(every.all_slots(draw(st.sampled_from(["1g", "1g", "1g", "2g", "3g"]))))
        slot = draw(st.sampled_from(slots))
        if fits([*held, slot]):
            held.append(slot)
    placed = {f"v{number}": "/".join(slot) for number, slot in enumerate(held)}
    stays = frozenset(name for name in placed if draw(st.integers(0, 5)) == 0)
    return Case(nodes, gpus, placed, stays, draw(st.sampled_from(["2g", "3g", "7g"])))


def found(case: Case) -> tuple[int | None, SlotWorld]:
    """Return how many pods the plan of the engine moves, None without a plan, 0 if the pod has a slot already."""
    world = case.world()
    world.d.step()
    for _ in range(8):
        world.now = world.d.now = world.now + 30
        world.d.step()
    if "p" in world.d.flight:
        return 0, world
    plans = world.view.planning.gang_plans()
    return (len(plans[0][1].moves) if plans else None), world


@pytest.mark.unrecorded
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(cases().filter(lambda case: case.fewest() != 0))
def test_a_plan_moves_the_fewest_pods_that_may_move_and_all_have_a_slot(case: Case) -> None:
    count, world = found(case)
    assert count == case.fewest()
    if not count:
        return
    ((_, plan),) = world.view.planning.gang_plans()
    names = world.d.engine.world.nodes.names
    moved = {move.pod.occupant.name for move in plan.moves}
    assert not moved & case.stays
    held: list[Slot] = [tuple(at.split("/")) for name, at in case.placed.items() if name not in moved]  # type: ignore[misc]
    for move in plan.moves:
        ((_, pool, device),) = move.devices
        assert pool == names[move.to] and size_of(device) == size_of(case.placed[move.pod.occupant.name])
        held.append((pool, device))
    ((_, pool, device),) = plan.devices
    assert pool == names[plan.placement.rows[0][0]] and size_of(device) == case.wanted
    assert fits([*held, (pool, device)])


def test_a_second_pod_makes_room_for_the_first() -> None:
    """The slot needs a to leave. It has another one only once b has left, whose only other one is on the third GPU."""
    placed = {
        "a": "s1-l1-1/gpu-0-3g-0",
        "b": "s1-l1-1/gpu-1-1g-1",
        "c": "s1-l1-1/gpu-1-3g-4",
        "d": "s1-l1-1/gpu-2-3g-0",
        "e": "s1-l1-1/gpu-2-2g-4",
    }
    case = Case(1, 3, placed, frozenset("cde"), "7g")
    assert case.fewest() == 2
    assert found(case)[0] == 2


@pytest.mark.parametrize("wanted", ["7g", "3g"])
def test_without_a_set_of_two_there_is_no_plan(wanted: str) -> None:
    placed = {f"v{number}": f"s1-l1-1/gpu-0-1g-{number}" for number in range(6)}
    case = Case(1, 1, placed, frozenset(), wanted)
    assert case.fewest() is None
    assert found(case)[0] is None
