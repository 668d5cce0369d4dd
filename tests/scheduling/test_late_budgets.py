"""Pods that wait for others to be evicted, while PodDisruptionBudgets are not listed yet."""

import pytest

from tests.helpers import make_pod
from tests.scheduling.driver import Driver, fabric, gang
from topo_scheduler.api.objects import Pod
from topo_scheduler.scheduling.preemption.machine import NO_BUDGETS


def full(priority: int) -> Driver:
    """Return a driver whose two nodes are full of pods of a priority."""
    d = Driver(fabric({"s1/l1": 2}))
    d.apply(
        *(
            make_pod(f"low-{n}", gpus=8, node=f"s1-l1-{n}", phase="Running", priority=priority, namespace="others")
            for n in (1, 2)
        )
    )
    return d


def waiting(*, together: bool) -> list[Pod]:
    """Return two pods of priority 5 that need a node each; ``together``: as a gang."""
    pods = gang(2) if together else [make_pod(f"p-{n}", gpus=8) for n in (1, 2)]
    for pod in pods:
        pod.spec.priority = 5
    return pods


@pytest.mark.parametrize("together", [False, True])
def test_they_are_tried_once_the_budgets_are_listed_and_say_until_then_what_is_missing(together: bool) -> None:
    d = full(priority=-5)
    pods = waiting(together=together)
    d.run(*pods)
    assert d.preempted() == []
    assert NO_BUDGETS in d.told(pods[0])[-1]
    d.engine.budgets_known()
    d.settle()
    assert sorted(d.preempted()) == ["low-1", "low-2"]


def test_pods_that_no_other_makes_room_for_say_nothing_of_budgets() -> None:
    d = full(priority=5)
    pods = waiting(together=True)
    d.run(*pods)
    assert "PodDisruptionBudget" not in d.told(pods[0])[-1]


def test_a_list_that_comes_again_brings_no_searches() -> None:
    d = full(priority=-5)
    d.engine.budgets_known()
    changes = d.engine.preempting.budgets.changes
    d.engine.budgets_known()
    assert d.engine.preempting.budgets.changes == changes
