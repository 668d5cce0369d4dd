"""Searches for victims that come to nothing hold up those of their own namespace only."""

import pytest

from tests.helpers import make_pod
from tests.scheduling.driver import Driver, fabric_driver, gang
from tests.scheduling.running_pods import run_pod, with_priority
from topo_scheduler.scheduling.instructions import EvictionOutcome
from topo_scheduler.scheduling.placing.model import class_views
from topo_scheduler.scheduling.preemption import search_turns, vain_searches, victim_search
from topo_scheduler.scheduling.preemption.namespace_pauses import FIRST_PAUSE_SECONDS
from topo_scheduler.scheduling.preemption.plan import plan_preemption
from topo_scheduler.scheduling.queueing.queue_keys import order_of

pytestmark = pytest.mark.unrecorded


def test_searches_in_vain_of_one_namespace_do_not_keep_another_from_searching(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_turns, "PAUSE_SECONDS_PER_CANDIDATE", 0.1)
    d = fabric_driver({"s1/l1": 5})
    for number in range(1, 6):
        node = f"s1-l1-{number}"
        run_pod(d, f"high-{number}", node, gpus=1, priority=1000)
        for low in range(2):
            run_pod(d, f"low-{number}-{low}", node, gpus=3)
    # As many as the time between two searches leaves never without one that is due.
    d.apply(*(make_pod(f"h{n}", gpus=8, cpu=f"{n + 1}", priority=10, namespace="hostile") for n in range(30)))
    for number in range(300):
        if number == 250:
            assert d.preempted() == []
            d.apply(make_pod("victim", gpus=3, priority=10, namespace="victim", created=1000))
        if number % 10 == 0:
            run_pod(d, f"noise-{number}", "s1-l1-1", gpus=0, priority=1000)
        d.step(0.1)
    assert len(d.preempted()) == 1


def full_of_both() -> Driver:
    """Five full nodes, each with a pod of high priority, so that no pod of 8 GPUs finds victims there."""
    d = fabric_driver({"s1/l1": 5})
    for number in range(1, 6):
        run_pod(d, f"high-{number}", f"s1-l1-{number}", gpus=1, priority=1000)
        for low in range(2):
            run_pod(d, f"low-{number}-{low}", f"s1-l1-{number}", gpus=3)
    return d


def test_namespaces_that_search_in_vain_share_the_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_turns, "PAUSE_SECONDS_PER_CANDIDATE", 0.1)
    d = full_of_both()
    names = [f"ns{n}" for n in range(5)]
    d.apply(
        *(make_pod(f"{ns}-{n}", gpus=8, cpu=f"{n + 1}", priority=10, namespace=ns) for n in range(9) for ns in names)
    )
    searches = 0
    look = plan_preemption

    def counted(*args: object, **more: object) -> object:
        nonlocal searches
        searches += 1
        return look(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(victim_search, "plan_preemption", counted)
    for number in range(100):
        run_pod(d, f"noise-{number}", "s1-l1-1", gpus=0, priority=1000)
        d.step(1)
    assert 60 <= searches <= 140, "about one a second, as for one namespace"


def test_searches_of_workloads_that_are_gone_are_forgotten() -> None:
    d = fabric_driver({"s1/l1": 1})
    run_pod(d, "low", "s1-l1-1", gpus=1)
    run_pod(d, "high", "s1-l1-1", gpus=1, priority=1000)
    for number in range(100):
        pod = make_pod(f"h{number}", gpus=8, cpu=f"{1000 + number}m", priority=10)
        d.apply(pod)
        d.step(20)
        assert d.engine.preempting._searches._search_of
        d.delete(pod)
        d.step(1)
    assert len(d.engine.preempting._searches._searches) <= vain_searches.MAX_UNUSED_SEARCHES
    d.engine.preempting.drop_caches()
    assert not d.engine.preempting._searches._searches


def test_searches_in_vain_of_the_most_urgent_keep_no_other_of_their_namespace_from_searching(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(search_turns, "PAUSE_SECONDS_PER_CANDIDATE", 0.1)
    d = full_of_both()
    # So many namespaces that one may search less often than a workload that searched in vain looks again.
    d.apply(*(make_pod(f"h{n}", gpus=8, cpu=f"{n + 1}", priority=10, namespace=f"hostile{n}") for n in range(12)))
    d.apply(*(make_pod(f"vain{n}", gpus=8, cpu=f"{n + 100}m", priority=10, namespace="victim") for n in range(3)))
    for number in range(160):
        if number == 51:
            assert d.preempted() == []
            d.apply(make_pod("victim", gpus=3, priority=10, namespace="victim", created=1000))
        run_pod(d, f"noise-{number}", "s1-l1-1", gpus=0, priority=1000)
        d.step(1)
    assert len(d.preempted()) == 1
    d.delete(*[pod for pod in d.pods.values() if pod.spec.priority == 10])
    d.step(1)
    assert not d.engine.preempting._turns._lines
    assert not d.engine.preempting._turns._line_of


def test_a_pod_whose_eviction_was_refused_is_chosen_again_though_nothing_happens() -> None:
    d = fabric_driver({"s1/l1": 1})
    low = run_pod(d, "low", "s1-l1-1")
    d.apply(make_pod("high", gpus=8, priority=10))
    d.step()
    d.engine.eviction_finished(low.metadata.uid, EvictionOutcome.REFUSED, "no", d.now)
    d.step(FIRST_PAUSE_SECONDS - 1)
    assert d.preempted() == ["low"]
    assert d.engine.next_due() == FIRST_PAUSE_SECONDS
    d.step(1)
    assert d.preempted() == ["low", "low"]


def test_classes_of_others_keep_no_workload_from_searching_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_views, "MAX_VIEWS", 64)
    d = fabric_driver({"s1/l1": 2})
    full, room = run_pod(d, "full", "s1-l1-1", priority=1000), run_pod(d, "room", "s1-l1-2", priority=1000)
    d.step(1)

    def hostile(first: int) -> None:
        pods = [
            make_pod(f"h{n}", gpus=8, cpu=f"{n}m", priority=100, namespace="hostile") for n in range(first, first + 100)
        ]
        for pod in pods:
            pod.spec.preemption_policy = "Never"
        d.apply(*pods)
        d.step(1)

    hostile(1000)
    d.apply(make_pod("victim", gpus=8, cpu="3m", priority=10, namespace="victim"))
    d.step(1)
    hostile(2000)
    d.delete(full, room)
    run_pod(d, "low", "s1-l1-1")
    run_pod(d, "high", "s1-l1-2", priority=1000)
    for _ in range(60):
        d.step(1)
    assert d.preempted() == ["low"]


@pytest.mark.parametrize("seconds", [3, 5])
def test_a_pod_that_is_late_because_each_step_is_late_searches_in_turn(
    monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr(search_turns, "PAUSE_SECONDS_PER_CANDIDATE", 0.1)
    d = full_of_both()
    d.apply(*(make_pod(f"h{n}", gpus=8, cpu=f"{n + 1}", priority=10, namespace=f"hostile{n}") for n in range(12)))
    d.apply(*(make_pod(f"vain{n}", gpus=8, cpu=f"{n + 100}m", priority=10, namespace="victim") for n in range(3)))
    for number in range(60):
        if number == 20:
            d.apply(make_pod("victim", gpus=3, priority=10, namespace="victim", created=1000))
        run_pod(d, f"noise-{number}", "s1-l1-1", gpus=0, priority=1000)
        d.step(seconds)
    assert d.preempted()


def test_those_that_wait_for_their_turn_are_not_tried_for_each_search_of_another() -> None:
    d = full_of_both()
    d.apply(*(make_pod(f"vain{n}", gpus=8, cpu=f"{n + 100}m", priority=10) for n in range(100)))
    while d.now < 2:
        d.step(max(0.001, (d.engine.next_due() or 0.0) - d.now))
    assert len(d.decisions()) <= 300, "one on arrival, and one for the search"


@pytest.mark.parametrize("first", ["lacks a pod", "backs off"])
def test_one_that_is_not_tried_when_its_turn_comes_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    monkeypatch.setattr(search_turns, "PAUSE_SECONDS_PER_CANDIDATE", 0.01)
    d = full_of_both()
    members = with_priority(gang(2), 11)
    d.apply(make_pod("most-urgent", gpus=8, cpu="50m", priority=12), *members)
    d.apply(*(make_pod(f"vain{n}", gpus=8, cpu=f"{n + 100}m", priority=10) for n in range(100)))
    d.apply(make_pod("victim", gpus=3, priority=10, created=1000))
    d.step()
    for id_ in d.engine.queue.unschedulable():  # as after an event that may help all
        d.engine.queue.wake(id_)
    d.step()
    (workload, _) = d.engine.workloads.of_pod(members[0].metadata.uid) or (None, None)
    assert workload is not None
    assert next(iter(d.engine.preempting._turns._lines["default"])) == workload.id
    if first == "lacks a pod":
        d.delete(members[0])
    else:
        d.engine.queue.back_off(order_of(workload), 600)
    while d.now < 15:
        d.step(max(0.001, (d.engine.next_due() or 0.0) - d.now))
    assert d.preempted()


def test_the_pauses_of_others_multiply_that_of_a_namespace_only_as_often_as_it_searched_in_vain() -> None:
    turns, candidates = search_turns.SearchTurns(), 1000
    own = candidates * search_turns.PAUSE_SECONDS_PER_CANDIDATE
    for _ in range(60):
        for number in range(50):
            turns.rest_after(f"hostile-{number}", candidates, 0.0)
    turns.rest_after("team", candidates, 0.0)
    assert turns.turn("pod", "team", 0.0, 0.0) == own
    assert turns.turn("hostile", "hostile-0", 0.0, 0.0) == pytest.approx(50 * own)
    turns.rest_after("team", candidates, own)
    assert turns.turn("pod", "team", 0.0, own) == pytest.approx(3 * own)
    late = own + 3 * own + search_turns.REMEMBERED_SECONDS + 1
    turns.rest_after("team", candidates, late)
    assert turns.turn("pod", "team", 0.0, late) == pytest.approx(late + own)
