"""Pods with claims preempt others: the victims whose devices make room, compared with a search of all sets."""

from dataclasses import replace

import pytest
from hypothesis import given, settings

from tests.scheduling.device_driver import DRIVER, asking
from tests.scheduling.device_scenes import (
    ClaimHeld,
    DeviceCase,
    class_asking,
    device_cases,
    on_one_socket,
    query,
)
from tests.scheduling.preemption_scenes import RunningPod


def case(*held: tuple[int, tuple[int, ...]], ask: int = 1) -> DeviceCase:
    """Return a case of one node: the priority of each pod, and its devices."""
    pods = tuple(RunningPod("s1l1n1", 0, priority, cpu=100) for priority, _ in held)
    claims = tuple(ClaimHeld("s1l1n1", devices, (number,)) for number, (_, devices) in enumerate(held) if devices)
    return DeviceCase(pods, claims, query(class_asking(asking(ask))), leaves=1, nodes=1)


def victims(of: DeviceCase) -> list[str] | None:
    plan = of.scene().plan(of.ask)
    return None if plan is None else sorted(pod.occupant.name for pod in plan.victims)


def agrees(of: DeviceCase, *, optimal: bool) -> None:
    """The plan makes room, and none exists only if no set does."""
    plan, best = of.scene().plan(of.ask), of.cheapest() if not of.has_place(()) else None
    if of.has_place(()):
        return
    assert (plan is None) == (best is None), f"plan {plan and plan.key}, reference {best}"
    if plan is None or best is None:
        return
    assert plan.key is not None
    assert of.has_place([int(pod.occupant.name[1:]) for pod in plan.victims])
    assert plan.key[0] == best[0], "a victim of higher priority than needed"
    if optimal:
        assert plan.key == best


def test_the_pod_of_the_lowest_priority_whose_device_makes_room_goes() -> None:
    assert victims(case((5, (0, 1)), (1, (2,)), (2, (3,)))) == ["v1"]


def test_a_pod_without_devices_is_no_victim_for_devices() -> None:
    assert victims(case((5, (0, 1)), (0, ()), (6, (2, 3)))) == ["v0"]


def test_no_pod_is_a_victim_if_devices_do_not_come_free() -> None:
    assert victims(case((20, (0, 1)), (0, ()), (20, (2, 3)))) is None


def test_devices_must_match_once_they_are_free() -> None:
    of = case((0, (0,)), (20, (1,)), (1, (2,)), (2, (3,)))
    socket = replace(of, ask=query(class_asking(on_one_socket(2))))
    assert victims(of) == ["v0"]
    assert victims(socket) == ["v2", "v3"], "devices 0 and 1 are on one socket, but pod 1 stays"


def test_a_claim_that_a_pod_of_higher_priority_shares_is_not_freed() -> None:
    shared = ClaimHeld("s1l1n1", (0, 1, 2, 3), (0, 1))
    of = case((0, ()), (20, ()))
    assert victims(replace(of, claims=(shared,))) is None
    lower = replace(of, held=(of.held[0], replace(of.held[1], priority=3)), claims=(shared,))
    assert victims(lower) == ["v0", "v1"]


def test_a_claim_that_kubernetes_would_never_deallocate_is_not_freed() -> None:
    of = case((0, (0, 1, 2, 3)))
    assert victims(of) == ["v0"]
    assert victims(replace(of, claims=(replace(of.claims[0], protected=False),))) is None


@pytest.mark.parametrize("small", [9, 10, 11, 30])
def test_many_small_pods_on_the_node_protect_no_devices(small: int) -> None:
    """Beyond ten candidates the search takes all and reprieves one by one."""
    beside = [(1, ())] * small
    assert victims(case(*beside, (5, (0, 1, 2)), (4, (3,)))) == [f"v{small + 1}"]


def test_a_gang_gets_the_devices_of_one_leaf() -> None:
    held = tuple(RunningPod(f"s1l{leaf}n{number}", 0, leaf, cpu=100) for leaf in (1, 2) for number in (1, 2))
    claims = tuple(ClaimHeld(pod.node, (0, 1, 2), (number,)) for number, pod in enumerate(held))
    of = DeviceCase(held, claims, query(class_asking(asking(4)), 2))
    assert victims(of) == ["v0", "v1"]


def test_the_plan_names_devices_and_the_claims_that_must_be_deallocated() -> None:
    of = case((0, (0, 1, 2, 3)))
    plan = of.scene().plan(of.ask)
    assert plan is not None
    assert plan.freed == {("default", "c0"): "uid-c0"}


@settings(max_examples=60, deadline=None)
@given(device_cases())
def test_the_victims_for_one_pod_are_those_of_the_cheapest_set(of: DeviceCase) -> None:
    agrees(of, optimal=True)


@settings(max_examples=50, deadline=None)
@given(device_cases(gangs=True, budgets=True))
def test_the_victims_for_one_pod_respect_gangs_and_budgets(of: DeviceCase) -> None:
    agrees(of, optimal=True)


@pytest.mark.parametrize("members", [2, 3])
@settings(max_examples=25, deadline=None)
@given(device_cases(members=2))
def test_victims_for_a_gang_exist_exactly_if_a_set_does(members: int, of: DeviceCase) -> None:
    cls, _ = of.ask.groups[0]
    agrees(replace(of, ask=query(cls, members, required=of.ask.enforcement.value == "required")), optimal=True)


@settings(max_examples=20, deadline=None)
@given(device_cases())
def test_a_search_leaves_the_use_of_devices_as_it_is(of: DeviceCase) -> None:
    scene = of.scene()
    inventory, nodes = scene.small.world.inventory, scene.small.world.nodes.names
    ids = [device.id for node in nodes for item in inventory.slices_of(node) for device in item.devices]

    def state() -> object:
        versions = [(inventory.use_version(node), inventory.pool_version((DRIVER, node))) for node in nodes]
        return versions, inventory.use_of(ids), inventory.take_changes()

    inventory.take_changes()
    before = state()
    scene.plan(of.ask)
    assert state() == before
