"""After a failover, nominations of the former leader count although the owners of their pods were unknown at first."""

from typing import Any

import pytest

from tests.helpers import controlled_by, make_pod, ours, owner
from tests.scheduling.driver import Driver, fabric_driver
from topo_scheduler.api.objects import Pod
from topo_scheduler.scheduling.barrier import FIRST_PAUSE_SECONDS
from topo_scheduler.scheduling.preemption import machine
from topo_scheduler.scheduling.preemption.nomination_trust import MIN_NODES


def nominated(name: str, node: str = "s1-l1-1") -> Pod:
    pod = make_pod(name, gpus=8, priority=10, owner=controlled_by("Job", "j"), created=5)
    pod.status.nominated_node_name = node
    return pod


def of_incomplete_gang(*pods: Pod) -> list[Pod]:
    """Keep pods pending: their gang lacks members."""
    for pod in pods:
        pod.metadata.annotations |= ours({"gang-name": "incomplete", "gang-size": "4000"})
    return list(pods)


def learn_owner(d: Driver) -> None:
    d.own(owner("Job", "j"))
    d.engine.owner_changed("uid-j", d.now)


def counting(d: Driver) -> int:
    return len(d.engine.preempting.nominations)


@pytest.mark.parametrize("late", [False, True], ids=["before the first decision", "after it"])
def test_a_nomination_counts_from_when_the_owner_of_its_pod_is_known(late: bool) -> None:
    d = fabric_driver({"s1/l1": 1})
    pod, older = nominated("nominated"), make_pod("older", gpus=8, priority=10, created=1)
    d.apply(pod)
    if late:
        d.step()
    learn_owner(d)
    d.apply(older)
    d.settle()
    assert d.where(pod, older) == {"nominated": "s1-l1-1"}
    assert not d.engine.preempting._adopted.early


def test_nominations_that_were_listed_count_on_all_nodes_later_too() -> None:
    nodes = 2 * MIN_NODES
    d = fabric_driver({"s1/l1": nodes})
    d.apply(*of_incomplete_gang(*(nominated(f"p{n}", f"s1-l1-{n}") for n in range(1, nodes + 1))))
    d.step()
    assert not counting(d)
    learn_owner(d)
    d.step()
    assert counting(d) == nodes


def test_a_nomination_written_after_the_list_has_no_more_trust_than_others() -> None:
    nodes = 2 * MIN_NODES
    d = fabric_driver({"s1/l1": nodes})
    pods = [nominated(f"p{n}", "s1-l1-1") for n in range(1, nodes + 1)]
    d.apply(*pods)
    d.step()
    for n, pod in enumerate(pods, 1):
        pod.status.nominated_node_name = f"s1-l1-{n}"
    d.apply(*pods)
    assert [listed for _, listed in d.engine.preempting._adopted.early.values()].count(True) == 1


def test_nominations_that_were_removed_and_those_of_deleted_pods_are_forgotten() -> None:
    d = fabric_driver({"s1/l1": 2})
    removed, deleted, bound, suspended = (nominated(f"p{n}") for n in range(4))
    d.apply(removed, deleted, bound, suspended)
    removed.status.nominated_node_name = ""
    bound.spec.node_name, bound.status.nominated_node_name = "s1-l1-2", ""
    d.apply(removed, bound)
    d.delete(deleted)
    d.disown("uid-j")
    d.step()
    assert not d.engine.preempting._adopted.early
    assert not counting(d)


@pytest.mark.unrecorded
def test_a_listed_nomination_that_could_not_be_read_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    d = fabric_driver({"s1/l1": 1})

    def fault(*_: Any) -> Any:
        raise ValueError

    with monkeypatch.context() as patched:
        patched.setattr(machine, "nomination_of", fault)
        (pod,) = of_incomplete_gang(nominated("nominated"))
        d.own(owner("Job", "j"))
        d.apply(pod)
        d.step()
    assert not counting(d)
    assert d.engine.preempting._adopted.early[pod.metadata.uid] == ("s1-l1-1", True)
    d.step(2 * FIRST_PAUSE_SECONDS)
    assert counting(d) == 1
