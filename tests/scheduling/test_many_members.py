"""What happens to one member of a gang must not take longer the more members there are: they come by the thousand.

The tests count how often the engine asks for what it finds only by going through all members of a gang.
"""

from collections import Counter
from collections.abc import Callable

import pytest

from tests.helpers import make_node, make_pod
from topo_scheduler.api.objects import Pod
from topo_scheduler.scheduling.binding import partially_bound_gangs
from topo_scheduler.scheduling.instructions import BindOutcome, Withdraw
from topo_scheduler.scheduling.queueing import queue_keys
from topo_scheduler.state.pods.workloads import Workload

from .driver import Driver

MEMBERS = 100
FEW = 8


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return how often the engine has gone through all members of a gang, by what it looked for."""
    counts: Counter[str] = Counter()

    def counted(name: str, look: Callable[..., object]) -> Callable[..., object]:
        def asked(workload: Workload, *args: object) -> object:
            counts[name] += workload.gang
            return look(workload, *args)

        return asked

    priority = vars(Workload)["priority"].fget
    monkeypatch.setattr(Workload, "priority", property(counted("priority", priority)))
    monkeypatch.setattr(Workload, "at", counted("at", Workload.at))
    monkeypatch.setattr(
        partially_bound_gangs, "is_partially_bound", counted("is_partially_bound", queue_keys.is_partially_bound)
    )
    return counts


def placed(size: int = MEMBERS) -> tuple[Driver, list[Pod]]:
    """Return a gang of small pods whose binds are on their way."""
    d = Driver([make_node(f"n{number}", "s1/l1", gpus=8) for number in range(4)])
    annotations = {"gang-name": "g", "gang-size": str(size)}
    pods = [
        make_pod(f"g-{number}", cpu="1m", memory="1Mi", annotations=annotations, namespace="many", created=number)
        for number in range(size)
    ]
    d.apply(*pods)
    d.step()
    assert len(d.flight) == size
    return d, pods


def hang(d: Driver, pods: list[Pod]) -> None:
    for pod in pods:
        d.engine.bind_hangs(pod.metadata.uid, d.now)
        d.engine.bind_finished(pod.metadata.uid, BindOutcome.UNKNOWN, "not settled", d.now)


def test_binds_that_hang_while_others_lack_room(passes: Counter[str]) -> None:
    d, pods = placed()
    d.apply(*(make_pod(f"p-{number}", gpus=8, namespace=f"ns{number}") for number in range(50)))
    d.step()
    passes.clear()
    hang(d, pods[:20])
    assert passes["priority"] <= 20


def test_room_lacks_while_binds_hang(passes: Counter[str]) -> None:
    d, pods = placed()
    hang(d, pods[:50])
    d.apply(*(make_pod(f"fill-{number}", gpus=8) for number in range(4)))
    d.step()
    passes.clear()
    d.apply(make_pod("late", gpus=8))
    d.step()
    assert passes["priority"] <= FEW


@pytest.mark.parametrize("after", [False, True])
def test_a_hanging_bind_yields_to_a_pod_of_higher_priority_that_came_before_or_after(after: bool) -> None:
    d, pods = placed()
    d.apply(*(make_pod(f"fill-{number}", gpus=8) for number in range(4)))
    d.step()
    urgent = make_pod("urgent", gpus=8, priority=5)
    if after:
        hang(d, pods[:2])
        d.apply(urgent)
    else:
        d.apply(urgent)
        d.step()
        hang(d, pods[:2])
    said = d.step()
    assert {instruction.bind.pod.uid for instruction in said if isinstance(instruction, Withdraw)} == {
        pod.metadata.uid for pod in pods[:2]
    }


def test_a_gang_is_bound_while_a_bind_of_another_namespace_hangs(passes: Counter[str]) -> None:
    d, pods = placed()
    other = make_pod("other", gpus=1)
    d.apply(other)
    d.step()
    hang(d, [other])
    passes.clear()
    for pod in pods:
        d.engine.bind_finished(pod.metadata.uid, BindOutcome.BOUND, "", d.now)
    assert passes["at"] <= FEW


def test_a_gang_of_which_a_dry_run_was_refused(passes: Counter[str]) -> None:
    d, pods = placed()
    d.answers_trials = False
    d.answer(pods[0].metadata.uid, BindOutcome.REJECTED)
    for uid in list(d.flight):
        d.refused(uid)
    while not d.tried:
        d.step(1)
    for uid in list(d.tried):
        d.rehearsed(uid, BindOutcome.REJECTED)
    passes.clear()
    d.engine.step(d.now, d.clock)
    assert passes["priority"] <= FEW
    d.answers_trials = True
    d.settle(10)
    assert len(d.where(*pods)) == MEMBERS


def test_members_read_again_in_parts_are_not_tried_before(passes: Counter[str]) -> None:
    d, pods = placed()
    times = iter(range(1_000_000))
    for pod in pods:
        d.answer(pod.metadata.uid, BindOutcome.WITHDRAWN)
    d.engine.step(d.now, lambda: float(next(times)))
    assert 0 < len(d.engine.arrivals._rereading) < MEMBERS
    d.settle(60)
    assert len(d.where(*pods)) == MEMBERS


def test_a_partially_bound_gang_whose_other_binds_are_refused(passes: Counter[str]) -> None:
    d, pods = placed()
    d.answer(pods[0].metadata.uid)
    passes.clear()
    for pod in pods[1:]:
        d.answer(pod.metadata.uid, BindOutcome.REJECTED)
    assert passes["is_partially_bound"] <= FEW
    assert len(d.engine.preempting.nominations) == MEMBERS - 1
    passes.clear()
    for _ in range(3):
        d.engine.step(d.now, d.clock)
    assert passes["is_partially_bound"] <= 3 * FEW
    d.settle(2)
    assert len(d.where(*pods)) == MEMBERS
    assert len(d.engine.preempting.nominations) == 0
