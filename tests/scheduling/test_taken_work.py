"""What a part of a step took to work on is not lost if that part raises an exception."""

from typing import Any

import pytest

from tests.helpers import make_pod
from tests.scheduling.driver import Driver, fabric_driver
from tests.scheduling.running_pods import run_pod, urgent_pod
from topo_scheduler.api.objects import Pod
from topo_scheduler.scheduling.instructions import Bind, BindOutcome
from topo_scheduler.scheduling.queueing.queue import Place

pytestmark = pytest.mark.unrecorded


class Once:
    """Stands for a method that raises in its first call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
        self._method = getattr(owner, name)
        self.calls = 0
        monkeypatch.setattr(owner, name, self)

    def __call__(self, *args: Any, **options: Any) -> Any:
        self.calls += 1
        if self.calls == 1:
            raise KeyError("injected")
        return self._method(*args, **options)


def id_of(d: Driver, pod: Pod) -> str:
    membership = d.engine.workloads.of_pod(pod.metadata.uid)
    assert membership is not None
    return membership[0].id


def with_pods(count: int, gpus: int) -> tuple[Driver, list[Pod]]:
    """Return a scheduler for one node of 8 GPUs that has decided on pods."""
    d = fabric_driver({"s1/l1": 1})
    pods = [make_pod(f"p{number}", gpus=gpus) for number in range(count)]
    d.apply(*pods)
    d.step()
    return d, pods


def pass_idle_time(d: Driver, seconds: float) -> None:
    """Let time pass, with steps only when the engine asks for them."""
    end, steps = d.now + seconds, 0
    while d.now < end:
        due = d.engine.next_due()
        d.now, steps = end if due is None else min(end, max(d.now, due)), steps + 1
        d.step()
        assert steps < 100


def test_workloads_that_are_due_for_a_search_for_victims(monkeypatch: pytest.MonkeyPatch) -> None:
    d = fabric_driver({"s1/l1": 1})
    run_pod(d, "low", "s1-l1-1")
    pod, pauses = urgent_pod(), d.engine.preempting.vain_evictions._pauses
    for at in (d.now - 1, d.now):  # the namespace evicted twice in vain
        pauses.failed("default", at)
    d.apply(pod)
    d.step()
    assert id_of(d, pod) in d.engine.preempting._turns.again
    broken = Once(monkeypatch, d.engine.preempting._claims, "forget_going")
    d.step(3600)
    assert d.preempted() == []
    pass_idle_time(d, 10)
    assert broken.calls > 1
    assert d.preempted() == ["low"]


def test_workloads_behind_one_that_cannot_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    d, pods = with_pods(3, gpus=9)
    ids = [id_of(d, pod) for pod in pods]
    d.engine.preempting._turns.search_at_once(ids)
    Once(monkeypatch, d.engine.queue, "activate")
    d.forget()
    d.step()
    d.step(5)
    assert [decision.workload for decision in d.decisions()] == ids[1:]


def test_workloads_behind_one_that_cannot_be_queued_after_its_bind_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    d, pods = with_pods(3, gpus=1)
    for uid in list(d.flight):
        d.answer(uid, BindOutcome.GONE)
    Once(monkeypatch, d.engine.queue, "back_off")
    d.step()
    assert [d.engine.queue.place(id_of(d, pod)) for pod in pods] == [None, Place.BACKOFF, Place.BACKOFF]
    assert list(d.flight) == [pods[0].metadata.uid], "the others are in backoff"


def test_workloads_behind_one_that_cannot_be_released(monkeypatch: pytest.MonkeyPatch) -> None:
    d, (refused,) = with_pods(1, gpus=1)
    d.answer(refused.metadata.uid, BindOutcome.REJECTED)
    d.apply(*(make_pod(f"later-{number}", gpus=1) for number in range(3)))
    d.step()
    d.engine.outcomes.admission_backoff.pardon()
    Once(monkeypatch, d.engine.queue, "activate")
    d.forget()
    d.step()
    assert len(d.decisions()) == 2, "in the same moment, and not when their backoff ends"


def test_binds_behind_one_that_cannot_be_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    d, _ = with_pods(3, gpus=1)
    for uid in list(d.flight):
        d.answer(uid, BindOutcome.UNKNOWN)
    Once(monkeypatch, d.engine.outcomes.partially_bound, "is_withdrawn")
    d.forget()
    d.step(1)
    assert sum(isinstance(said, Bind) for said in d.said) == 2
    d.forget()
    d.step(1)
    assert sum(isinstance(said, Bind) for said in d.said) == 1, "it follows after a backoff"
