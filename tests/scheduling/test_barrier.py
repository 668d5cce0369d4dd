"""One workload must not stop the rest: what raises or costs too much for one sets that one aside, with a reason."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.helpers import make_node, make_pod, timestamp
from tests.scheduling.driver import Driver, fabric, gang, held, stage
from topo_scheduler.api.objects import Container, Pod, PodSpec, ResourceRequirements
from topo_scheduler.api.reasons import Reason
from topo_scheduler.api.selectors import (
    Affinity,
    NodeAffinity,
    NodeSelector,
    NodeSelectorTerm,
    PreferredTerm,
    Requirement,
)
from topo_scheduler.scheduling.barrier import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, pause_of
from topo_scheduler.scheduling.instructions import Bind, BindOutcome, CountFailure, EvictionOutcome
from topo_scheduler.scheduling.intake.arrivals import Arrivals
from topo_scheduler.state.pods.selectors import as_int64
from topo_scheduler.state.pods.workloads import Stage

pytestmark = pytest.mark.unrecorded

DIGITS = "9" * 5000


def with_affinity(name: str, affinity: NodeAffinity, gpus: int = 1) -> Pod:
    limits: dict[str, Any] = {"nvidia.com/gpu": gpus}
    spec = PodSpec(containers=[Container("main", ResourceRequirements(limits, limits))])
    spec.affinity = Affinity(node_affinity=affinity)
    return make_pod(name, spec=spec)


def bound(d: Driver, *pods: Pod) -> bool:
    return len(d.where(*pods)) == len(pods)


def counted(d: Driver) -> list[tuple[str, str]]:
    return [(instruction.phase, instruction.kind) for instruction in d.said if isinstance(instruction, CountFailure)]


# ---------------------------------------------------------------- numbers that are none


@pytest.mark.parametrize("operator", ["Gt", "Lt"])
@pytest.mark.parametrize(
    "value", [DIGITS, f"-{DIGITS}", f"+{DIGITS}", "0" * 60 + "7", "0" * 5000 + "7", "x" * 5000, "", "²", "1e3"]
)
def test_comparisons_with_numbers_of_any_length_place_the_pod_or_keep_it_pending(operator: str, value: str) -> None:
    d = Driver([make_node("n1", gpus=8, labels={"size": "8"})])
    term = NodeSelectorTerm((Requirement("size", operator, (value,)),))
    preferred = with_affinity("preferred", NodeAffinity(preferred=(PreferredTerm(1, term),)))
    required = with_affinity("required", NodeAffinity(required=NodeSelector((term,))))
    other = make_pod("other", gpus=1)
    d.run(preferred, required, other)
    assert bound(d, preferred, other)
    assert bound(d, required) is (operator == "Gt" and value == "0" * 60 + "7"), "as in Kubernetes"


@pytest.mark.parametrize(
    ("text", "value"),
    [("0" * 5000, 0), ("-0", 0), ("+12", 12), ("-12", -12), (str(2**63 - 1), 2**63 - 1), (str(2**63), None)],
)
def test_integers_are_read_as_go_reads_them(text: str, value: int | None) -> None:
    assert as_int64(text) == value


# ---------------------------------------------------------------- exceptions


def failing(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, error: Exception, hit: str) -> None:
    """Let a method raise for what names ``hit``."""
    method: Callable[..., Any] = getattr(owner, name)

    def raising(*args: Any, **kwargs: Any) -> Any:
        if any(
            hit in str(getattr(argument, "name", getattr(getattr(argument, "metadata", None), "name", "")))
            for argument in args
        ):
            raise error
        return method(*args, **kwargs)

    monkeypatch.setattr(owner, name, raising)


ERRORS = [ValueError("x" * 9999), RecursionError(), MemoryError(), OverflowError("int too large"), KeyError("k")]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_decision_that_raises_sets_its_workload_aside_with_growing_pauses(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    d = Driver(fabric({"s1/l1": 4}))
    failing(monkeypatch, d.engine.attempts, "decide", error, "evil")
    evil, good = gang(2, name="evil"), gang(2, name="good")
    d.run(*evil, *good)
    assert bound(d, *good)
    assert not d.where(*evil)
    reason = Reason.OVER_BUDGET if isinstance(error, MemoryError) else Reason.SCHEDULER_ERROR
    kind = "memory" if isinstance(error, MemoryError) else "fault"
    for pod in evil:
        (message,) = d.told(pod, reason)
        assert message.startswith("In backoff: ")
        assert len(message) < 1024, "what the exception quotes is cut"
    assert d.marked() >= {pod.metadata.name for pod in evil}
    assert counted(d) == [("decision", kind)]
    d.settle(FIRST_PAUSE_SECONDS - 1)
    assert len(counted(d)) == 1, "it is not tried before its pause is over"
    d.settle(1)
    assert len(counted(d)) == 2
    d.settle(FIRST_PAUSE_SECONDS + 1)
    assert len(counted(d)) == 2, "the second pause is longer"
    monkeypatch.undo()
    d.settle(LONGEST_PAUSE_SECONDS)
    assert bound(d, *evil)


def test_pauses_double_up_to_the_longest() -> None:
    assert [pause_of(n) for n in (1, 2, 3)] == [10.0, 20.0, 40.0]
    assert pause_of(7) == pause_of(10_000) == LONGEST_PAUSE_SECONDS


PLACED = [
    ("outcomes.volumes", "hold"),
    ("world.ledger", "assume"),
    ("preempting", "placed"),
    ("reserving", "placed"),
    ("arrivals", "placed"),
    ("moving", "forget"),
    ("contention", "forget"),
    ("why", "forget"),
]


@pytest.mark.parametrize(("where", "name"), PLACED)
@pytest.mark.parametrize("after", [0, 1])
def test_a_failure_between_a_decision_and_its_binds_leaves_nothing_half(
    monkeypatch: pytest.MonkeyPatch, where: str, name: str, after: int
) -> None:
    d = Driver(fabric({"s1/l1": 4}))
    owner: Any = d.engine
    for part in where.split("."):
        owner = getattr(owner, part)
    method, calls = getattr(owner, name), 0

    def raising(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == after + 1:
            raise RuntimeError("struck")
        return method(*args, **kwargs)

    monkeypatch.setattr(type(owner), name, lambda self, *args, **kwargs: raising(*args, **kwargs))
    first, second = gang(2, name="first"), gang(2, name="second")
    d.apply(*first, *second)
    for _ in range(8):
        d.settle(10)
        for group in (first, second):
            stages = {d.engine.workloads.of_pod(pod.metadata.uid)[1].stage for pod in group}  # type: ignore[index]
            assert len(stages) == 1, "all of a gang or nothing"
        assert d.engine.world.around.kinds.counts.total() == 4, "each pod counts among those that are typical"
    assert bound(d, *first, *second)
    assert all(held(d, node.metadata.name) == 8 for node in fabric({"s1/l1": 4}))


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_pod_that_can_not_be_understood_is_refused_and_the_others_are_placed(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    d = Driver(fabric({"s1/l1": 2}))
    failing(monkeypatch, Arrivals, "_understand", error, "evil")
    evil, good = make_pod("evil", gpus=1), make_pod("good", gpus=1)
    d.run(evil, good)
    assert bound(d, good)
    (message,) = d.told(evil)
    assert message.startswith("Refused: internal error while its specification was read")
    assert len(message) < 1024
    d.tell_again(evil)
    d.tell_again(evil)
    d.settle()
    assert counted(d) == [("understanding", "memory" if isinstance(error, MemoryError) else "fault")]
    monkeypatch.undo()
    d.run(evil)
    assert bound(d, evil)


def test_a_bound_pod_that_can_not_be_understood_still_holds_its_room(monkeypatch: pytest.MonkeyPatch) -> None:
    d = Driver(fabric({"s1/l1": 1}))
    failing(monkeypatch, d.engine.world, "bound", RuntimeError("struck"), "evil")
    d.apply(make_pod("evil", gpus=8, node="s1-l1-1", scheduler="other"))
    late = make_pod("late", gpus=1)
    d.run(late)
    assert held(d, "s1-l1-1") == 8
    assert not bound(d, late)
    assert counted(d) == [("understanding", "fault")]


def test_an_assumed_pod_that_can_not_be_understood_once_it_is_bound_is_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    d = Driver(fabric({"s1/l1": 1}))
    evil = make_pod("evil", gpus=8)
    d.apply(evil)
    d.step()
    failing(monkeypatch, d.engine.world, "bound", RuntimeError("struck"), "evil")
    d.write(d.flight[evil.metadata.uid])
    d.tell_again(evil)
    d.settle()
    entry = d.engine.workloads.of_pod(evil.metadata.uid)
    assert entry is not None
    assert entry[1].stage is Stage.BOUND
    assert held(d, "s1-l1-1") == 8


def test_a_node_that_can_not_be_read_is_left_out_and_the_others_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    d = Driver()
    failing(monkeypatch, d.engine.world, "put_node", RuntimeError("struck"), "odd")
    d.nodes(make_node("odd", gpus=8), make_node("sound", gpus=8))
    pod = make_pod("pod", gpus=8)
    assert d.run(pod) == {"pod": "sound"}
    assert any("node odd: failed" in text for text in d.complaints())


def test_what_could_not_be_read_is_read_again_without_a_new_event(monkeypatch: pytest.MonkeyPatch) -> None:
    d = Driver()
    failing(monkeypatch, d.engine.world, "put_node", RuntimeError("struck"), "odd")
    failing(monkeypatch, Arrivals, "_understand", RuntimeError("struck"), "evil")
    d.nodes(make_node("odd", gpus=8))
    evil = make_pod("evil", gpus=8)
    assert d.run(evil) == {}
    due = d.engine.next_due()
    assert due is not None
    assert due <= d.now + FIRST_PAUSE_SECONDS
    monkeypatch.undo()
    d.settle(2 * FIRST_PAUSE_SECONDS)
    assert d.where(evil) == {"evil": "odd"}


def struck(*_: Any, **__: Any) -> None:
    raise RuntimeError("struck")


@pytest.mark.parametrize("outcome", [outcome for outcome in BindOutcome if outcome is not BindOutcome.UNKNOWN])
def test_where_taking_over_the_end_of_a_bind_raises_the_ledger_follows_it(
    monkeypatch: pytest.MonkeyPatch, outcome: BindOutcome
) -> None:
    d = Driver(fabric({"s1/l1": 1}))
    pod = make_pod("pod", gpus=8)
    d.apply(pod)
    d.step()
    monkeypatch.setattr(d.engine.outcomes, "bind_finished", struck)
    d.engine.bind_finished(pod.metadata.uid, outcome, "so it ended", d.now)
    assert d.engine.outcomes.in_flight == 0
    assert held(d, "s1-l1-1") == (8 if outcome is BindOutcome.BOUND else 0)
    again = [instruction for instruction in d.step() if isinstance(instruction, Bind)]
    assert ("outcome", "fault") in counted(d)
    assert bool(again) is (outcome is not BindOutcome.BOUND)


@pytest.mark.parametrize("method", ["rehearsed", "volumes_written", "eviction_finished", "rollback_refused"])
def test_an_outcome_that_raises_affects_no_other_pod(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    d = Driver(fabric({"s1/l1": 1}))
    outcomes, preempting = d.engine.outcomes, d.engine.preempting
    monkeypatch.setattr(outcomes, "rehearsed", struck)
    monkeypatch.setattr(outcomes.volumes, "written", struck)
    monkeypatch.setattr(outcomes.partially_bound, "eviction_refused", struck)
    monkeypatch.setattr(preempting, "evicted", struck)
    pod = make_pod("pod", gpus=8)
    d.apply(pod)
    d.step()
    uid = pod.metadata.uid
    match method:
        case "rehearsed":
            d.engine.rehearsed(uid, BindOutcome.BOUND, "", d.now)
        case "volumes_written":
            d.engine.volumes_written(uid, [], "")
        case "eviction_finished":
            d.engine.eviction_finished(uid, EvictionOutcome.GOING, "", d.now)
        case _:
            d.engine.rollback_refused(uid, "no", d.now)
    d.settle()
    assert ("outcome", "fault") in counted(d)
    assert d.where(pod) == {"pod": "s1-l1-1"}


@pytest.mark.parametrize("scheduler", ["topology-aware-scheduler", "default-scheduler"])
def test_a_pod_that_ended_is_not_read_again_as_it_was_while_it_ran(
    monkeypatch: pytest.MonkeyPatch, scheduler: str
) -> None:
    d = Driver(fabric({"s1/l1": 1}))
    failing(monkeypatch, d.engine.world, "bound", RuntimeError("struck"), "evil")
    pod = make_pod("evil", gpus=8, node="s1-l1-0")
    pod.spec.scheduler_name = scheduler
    d.apply(pod)
    d.step()
    assert d.engine.world.ledger.get(pod.metadata.uid) is not None
    monkeypatch.undo()
    d.finish(pod)
    d.step(pause_of(1) + 1)
    assert d.engine.world.ledger.get(pod.metadata.uid) is None


def queued_alike(d: Driver) -> bool:
    """Return whether the queue holds the workloads with pending pods, and no others."""
    waiting = [workload.id for workload in d.engine.workloads if workload.at(Stage.PENDING)]
    return len(d.engine.queue) == len(waiting) and all(d.engine.queue.place(id_) for id_ in waiting)


def test_a_gang_whose_last_pod_leaves_while_that_raises_leaves_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    d = Driver(fabric({"s1/l1": 1}))
    pod, _ = gang(2)
    d.run(pod)
    monkeypatch.setattr(d.engine.outcomes.partially_bound, "may_lack_marks", struck)
    pod.metadata.deletion_timestamp = timestamp(1)
    d.apply(pod)
    d.settle()
    assert ("understanding", "fault") in counted(d)
    assert queued_alike(d)


def test_a_gang_that_its_last_pod_leaves_for_another_leaves_the_queue_though_a_warning_raises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    d = Driver(fabric({"s1/l1": 1}))
    pod, _ = gang(2)
    d.run(pod)
    other, _ = gang(2, name="other")
    pod.metadata.annotations = other.metadata.annotations
    monkeypatch.setattr(Arrivals, "_warn", struck)
    d.apply(pod)
    d.settle()
    assert ("understanding", "fault") in counted(d)
    assert queued_alike(d)


def test_a_pod_bound_by_hand_leaves_the_queue_though_taking_that_over_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    d = Driver(fabric({"s1/l1": 1}))
    pod, _ = gang(2)
    d.run(pod)
    release, errors = d.engine.outcomes.volumes.release, [RuntimeError("struck")]

    def once(uid: str) -> None:
        if errors:
            raise errors.pop()
        release(uid)

    monkeypatch.setattr(d.engine.outcomes.volumes, "release", once)
    pod.spec.node_name = "s1-l1-1"
    d.apply(pod)
    d.settle()
    assert ("understanding", "fault") in counted(d)
    assert stage(d, pod) is Stage.BOUND
    assert queued_alike(d)


def test_a_pod_of_another_scheduler_that_raised_is_read_again_and_not_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    d = Driver(fabric({"s1/l1": 1}))
    pod = make_pod("foreign", gpus=1, scheduler="other")

    def fault(_: str) -> None:
        raise ValueError("not expected")

    with monkeypatch.context() as patched:
        patched.setattr(d.engine.world.inventory.consumers, "appear", fault)
        d.apply(pod)
        d.step()
    assert d.engine.arrivals.unread
    d.step(2 * LONGEST_PAUSE_SECONDS)
    assert not d.engine.arrivals.unread
    assert d.engine.workloads.of_pod(pod.metadata.uid) is None
