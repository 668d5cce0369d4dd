"""Plans of moves for MIG instances, beside every placement of the instances that move."""

import random
from collections.abc import Iterator
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topo_scheduler.scheduling.devices.mig_moves import MigInstance, MigPlan, plan_moves, split
from topo_scheduler.scheduling.devices.mig_slots import MigSlots, SplitGpu, contradictions
from topo_scheduler.state.devices.mig import GIB, MigGeometry, MigProfile, geometry_of
from topo_scheduler.state.operation_budget import OperationBudget, OverBudgetError, limited

Cluster = list[list[MigInstance]]


def _geometry(model: str, gigabytes: int) -> MigGeometry:
    geometry = geometry_of(model, gigabytes * GIB)
    assert geometry is not None
    return geometry


H100 = _geometry("NVIDIA H100 80GB HBM3", 80)
A30 = _geometry("NVIDIA A30", 24)


def _profile(geometry: MigGeometry, name: str) -> MigProfile:
    profile = geometry.profile(name)
    assert profile is not None
    return profile


def _gpu(*instances: tuple[str, int]) -> list[MigInstance]:
    return [MigInstance(_profile(H100, name), start) for name, start in instances]


def _placements(slots: MigSlots, states: list[SplitGpu], profiles: list[MigProfile]) -> Iterator[None]:
    """Yield once for every way to place the profiles."""
    if not profiles:
        yield None
        return
    for index, state in enumerate(states):
        for start in slots.starts(state, profiles[0]):
            placed = [*states[:index], state.with_instance(profiles[0], start), *states[index + 1 :]]
            yield from _placements(slots, placed, profiles[1:])


def _fewest_moves(slots: MigSlots, gpus: Cluster, profile: MigProfile) -> int | None:
    """Return the fewest instances that must move, by every set of them and every placement; None beyond two."""
    movable = [(gpu, number) for gpu, held in enumerate(gpus) for number, one in enumerate(held) if one.movable]
    for count in range(3):
        for moving in combinations(movable, count):
            states = [
                split([one for number, one in enumerate(held) if (gpu, number) not in moving])
                for gpu, held in enumerate(gpus)
            ]
            profiles = [profile, *(gpus[gpu][number].profile for gpu, number in moving)]
            if next(_placements(slots, states, profiles), 0) is None:
                return count
    return None


def _after(gpus: Cluster, plan: MigPlan, profile: MigProfile) -> Cluster:
    """Return the instances after a plan, with the new one."""
    moving = {(move.gpu, move.number): move.to for move in plan.moves}
    after = [[one for number, one in enumerate(held) if (gpu, number) not in moving] for gpu, held in enumerate(gpus)]
    for (gpu, number), to in moving.items():
        assert gpus[gpu][number].movable
        after[to.gpu].append(MigInstance(gpus[gpu][number].profile, to.start))
    after[plan.slot.gpu].append(MigInstance(profile, plan.slot.start))
    return after


@st.composite
def _cases(draw: st.DrawFn) -> tuple[MigGeometry, Cluster, MigProfile]:
    """Draw GPUs that are rather full, of which some instances can't move, and a profile."""
    geometry = draw(st.sampled_from([H100, A30]))
    slots = MigSlots(geometry, {})
    gpus: Cluster = []
    for _ in range(draw(st.integers(1, 3))):
        held: list[MigInstance] = []
        for _ in range(draw(st.integers(1, 4))):
            options = [(p, start) for p in geometry.profiles[:-1] for start in slots.starts(split(held), p)]
            if options:
                profile, start = draw(st.sampled_from(options))
                held.append(MigInstance(profile, start, movable=draw(st.integers(0, 4)) > 0))
        gpus.append(held)
    return geometry, gpus, draw(st.sampled_from(geometry.profiles))


@given(_cases(), st.integers(0, 2))
def test_a_plan_has_the_fewest_moves_that_make_room(
    case: tuple[MigGeometry, Cluster, MigProfile], max_moves: int
) -> None:
    geometry, gpus, profile = case
    slots = MigSlots(geometry, {})
    fewest = _fewest_moves(slots, gpus, profile)
    plan = plan_moves(slots, gpus, profile, max_moves)
    if fewest is None or fewest > max_moves:
        assert plan is None
        return
    assert plan is not None and len(plan.moves) == fewest
    for held in _after(gpus, plan, profile):
        assert not contradictions(geometry, [(one.profile.name, one.start) for one in held])


def test_plans_of_two_moves_have_no_shorter_one_and_are_found() -> None:
    """GPUs after arrivals and departures, so that many profiles need two moves: at least 20 of the cases."""
    rng = random.Random(3)
    slots, two = MigSlots(H100, {}), 0
    for _ in range(150):
        gpus: Cluster = [[], []]
        for held in gpus:
            for _ in range(8):
                options = [(p, start) for p in H100.profiles[:5] for start in slots.starts(split(held), p)]
                if options:
                    held.append(MigInstance(*rng.choice(options)))
            held[:] = [one for one in held if rng.random() < 0.5]
        profile = rng.choice(H100.profiles[3:])
        fewest, plan = _fewest_moves(slots, gpus, profile), plan_moves(slots, gpus, profile)
        assert (len(plan.moves) if plan else None) == fewest
        two += fewest == 2
    assert two >= 20


def test_a_profile_that_fits_needs_no_move() -> None:
    plan = plan_moves(MigSlots(H100, {}), [_gpu(("1g.10gb", 0)), []], _profile(H100, "7g.80gb"))
    assert plan is not None and plan.slot.gpu == 1 and not plan.moves


def test_the_smallest_instance_moves() -> None:
    """Without one of them, either GPU is whole: the one with 1g moves fewer memory slices than the one with 2g."""
    gpus = [_gpu(("2g.20gb", 0)), _gpu(("1g.10gb", 6)), _gpu(("3g.40gb", 0))]
    plan = plan_moves(MigSlots(H100, {}), gpus, _profile(H100, "7g.80gb"))
    assert plan is not None and plan.slot.gpu == 1
    assert [(move.gpu, move.number) for move in plan.moves] == [(1, 0)]


def test_an_instance_makes_room_for_another() -> None:
    """The 3g must leave for the 7g, and has room on the other GPU only if a 1g there moves to the other half."""
    fixed = MigInstance(_profile(H100, "1g.10gb"), 5, movable=False)
    gpus = [_gpu(("3g.40gb", 0)), [*_gpu(("1g.10gb", 1)), fixed]]
    slots, whole = MigSlots(H100, {}), _profile(H100, "7g.80gb")
    plan = plan_moves(slots, gpus, whole)
    assert plan is not None and plan.slot.gpu == 0
    assert sorted((move.gpu, move.number) for move in plan.moves) == [(0, 0), (1, 0)]
    assert plan_moves(slots, gpus, whole, max_moves=1) is None


def test_two_instances_leave_one_gpu() -> None:
    fixed = MigInstance(_profile(H100, "3g.40gb"), 0, movable=False)
    gpus = [_gpu(("1g.10gb", 0), ("2g.20gb", 2)), [fixed]]
    slots, whole = MigSlots(H100, {}), _profile(H100, "7g.80gb")
    plan = plan_moves(slots, gpus, whole)
    assert plan is not None and plan.slot.gpu == 0
    assert [move.to.gpu for move in plan.moves] == [1, 1]
    assert plan_moves(slots, gpus, whole, max_moves=1) is None


def test_what_can_not_move_stays() -> None:
    held = [MigInstance(_profile(H100, "1g.10gb"), 0, movable=False)]
    assert plan_moves(MigSlots(H100, {}), [held, _gpu(("2g.20gb", 0))], _profile(H100, "7g.80gb")) is not None
    assert plan_moves(MigSlots(H100, {}), [held, held], _profile(H100, "7g.80gb")) is None


def test_a_search_that_takes_too_long_ends_with_its_budget() -> None:
    gpus = [_gpu(*(("1g.10gb", start) for start in range(7))) for _ in range(24)]
    with limited(OperationBudget(100)), pytest.raises(OverBudgetError):
        plan_moves(MigSlots(H100, {}), gpus, _profile(H100, "2g.20gb"))
