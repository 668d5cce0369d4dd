"""A leader that ends between the evictions for a gang: its successor keeps the room that is free already."""

import pytest

from tests.helpers import controlled_by, make_pod, ours, owner
from tests.scheduling.driver import Driver, configured, fabric_driver
from topo_scheduler.api.objects import Pod
from topo_scheduler.scheduling.preemption.claims import SLACK_SECONDS

SIZE = 4
CONFIG = configured("{reservation: {enabled: false}}")


def nominated_gang() -> list[Pod]:
    pods = [
        make_pod(
            f"g{n}",
            gpus=8,
            priority=100,
            created=5,
            owner=controlled_by("Job", "g"),
            annotations=ours({"gang-name": "g", "gang-size": str(SIZE)}),
        )
        for n in range(1, SIZE + 1)
    ]
    for n, pod in enumerate(pods, 1):
        pod.status.nominated_node_name = f"s1-l1-{n}"
    return pods


def after_failover(*, evicted: int) -> tuple[Driver, list[Pod], list[Pod]]:
    """Return a new leader's engine, the gang, and the pending pods of lower priority that replace those evicted."""
    d = fabric_driver({"s1/l1": SIZE, "s1/l2": SIZE}, CONFIG)
    running = [
        make_pod(f"low-{leaf}-{n}", gpus=8, node=f"s1-l{leaf}-{n}", owner=controlled_by("ReplicaSet", "low"))
        for leaf in (1, 2)
        for n in range(1, SIZE + 1)
    ]
    gang = nominated_gang()
    replacements = [
        make_pod(f"new-{n}", gpus=8, created=4, owner=controlled_by("ReplicaSet", "low")) for n in range(evicted)
    ]
    d.own(owner("Job", "g"))
    d.own(owner("ReplicaSet", "low"))
    d.apply(*running[evicted:], *replacements, *gang)
    return d, gang, replacements


def others_are_chosen(d: Driver, gang: list[Pod], replacements: list[Pod], evicted: int) -> None:
    """Only the missing victims are evicted, and then the gang is placed where its predecessor nominated it."""
    d.settle()
    assert d.preempted() == [f"low-1-{n}" for n in range(evicted + 1, SIZE + 1)]
    assert d.where(*replacements) == {}
    d.evict(*(pod for pod in d.pods.values() if pod.metadata.name in d.preempted()))
    d.settle()
    assert sorted(d.where(*gang).values()) == [f"s1-l1-{n}" for n in range(1, SIZE + 1)]


@pytest.mark.parametrize("evicted", [1, 2, SIZE - 1])
def test_room_stays_free_while_the_code_for_searches_is_compiled(evicted: int) -> None:
    d, gang, replacements = after_failover(evicted=evicted)
    d.engine.may_preempt(False)
    d.step(1)
    assert d.engine.preempting.take_wanted()
    d.step(1)
    assert d.preempted() == [] and d.where(*replacements) == {}
    d.engine.may_preempt(True)
    others_are_chosen(d, gang, replacements, evicted)


@pytest.mark.unrecorded
def test_room_stays_free_until_the_list_of_budgets_is_known() -> None:
    d, gang, replacements = after_failover(evicted=2)
    budgets = d.engine.preempting.budgets
    budgets.known = False
    d.step(1)
    assert d.preempted() == [] and d.where(*replacements) == {}
    d.engine.budgets_known()
    others_are_chosen(d, gang, replacements, 2)


def test_room_is_given_back_where_no_search_begins() -> None:
    """Nothing is held for ever, whatever keeps the search from beginning."""
    d, _, replacements = after_failover(evicted=2)
    d.engine.may_preempt(False)
    d.step(1)
    d.step(SLACK_SECONDS + 1)
    d.settle()
    assert sorted(d.where(*replacements).values()) == ["s1-l1-1", "s1-l1-2"]


def test_a_gang_that_needs_no_further_victims_takes_its_room() -> None:
    d, gang, _ = after_failover(evicted=SIZE)
    d.engine.may_preempt(False)
    d.settle()
    assert sorted(d.where(*gang).values()) == [f"s1-l1-{n}" for n in range(1, SIZE + 1)]
