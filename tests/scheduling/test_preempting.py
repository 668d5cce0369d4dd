"""From a workload without room to nominated pods, evictions and a place: what the engine says, and when it stops."""

import itertools

import pytest

from tests.helpers import controlled_by, make_node, make_pod, ours, timestamp
from tests.scheduling.driver import Driver, configured, fabric, fabric_driver, gang, held
from tests.scheduling.running_pods import run_pod, urgent_pod, with_priority
from topo_scheduler.api.objects import BudgetSpec, BudgetStatus, DisruptionBudget, ObjectMeta, OwnerReference, Pod
from topo_scheduler.api.reasons import Reason
from topo_scheduler.api.selectors import LabelSelector
from topo_scheduler.scheduling.instructions import EvictionOutcome, Nominate, Preempt, RecordDecision
from topo_scheduler.scheduling.preemption.claims import MAX_IDLE_NODE_SECONDS
from topo_scheduler.scheduling.preemption.nomination_trust import COUNTS_SECONDS
from topo_scheduler.state.pods.node_pods import MIRROR
from topo_scheduler.state.pods.pod_groups import Disruption


def budget(name: str, allowed: int, labels: dict[str, str]) -> DisruptionBudget:
    meta = ObjectMeta(name=name, namespace="default", generation=1)
    return DisruptionBudget(meta, BudgetSpec(LabelSelector(labels)), BudgetStatus(allowed, 1))


# ---------------------------------------------------------------- the usual way


def test_a_pod_of_higher_priority_is_nominated_and_gets_the_room() -> None:
    d = fabric_driver({"s1/l1": 1})
    low = run_pod(d, "low", "s1-l1-1")
    high = urgent_pod()
    d.apply(high)
    d.step()
    assert d.preempted() == ["low"]
    assert d.nominated() == {"urgent": "s1-l1-1"}
    (preempt,) = [said for said in d.said if isinstance(said, Preempt)]
    assert preempt.note == f"Preempted by pod default/urgent ({high.metadata.uid}) on node s1-l1-1"
    assert d.told(high, Reason.FAILED_SCHEDULING) == ["0/1 nodes are available: 1 Insufficient nvidia.com/gpu."]
    d.evict(low)
    d.settle()
    assert d.where(high) == {"urgent": "s1-l1-1"}


def test_a_gang_clears_one_leaf_by_one_plan() -> None:
    d = fabric_driver({"s1/l1": 2, "s1/l2": 2})
    crew = [run_pod(d, f"low-{n}", f"s1-l{1 + n // 2}-{1 + n % 2}") for n in range(4)]
    members = with_priority(gang(2), 10)
    d.apply(*members)
    d.step()
    assert len(d.preempted()) == 2
    assert len(set(d.nominated().values())) == 2
    assert len({node.rsplit("-", 1)[0] for node in d.nominated().values()}) == 1
    victims = [pod for pod in crew if pod.metadata.name in d.preempted()]
    d.evict(victims[0])
    d.step(1)
    assert d.where(*members) == {}
    assert len(d.preempted()) == 2, "no other pod while one still terminates"
    d.evict(victims[1])
    d.settle(1)
    assert len(d.where(*members)) == 2


def test_evictions_for_a_gang_that_lost_a_pod_are_withdrawn_until_the_next_pod_comes() -> None:
    d = fabric_driver({"s1/l1": 2})
    crew = [run_pod(d, f"low-{n}", f"s1-l1-{n}") for n in (1, 2)]
    members = with_priority(gang(2), 10)
    d.apply(*members)
    d.step()
    assert all(d.engine.may_evict(low.metadata.uid) for low in crew)
    d.delete(members[0])
    assert not any(d.engine.may_evict(low.metadata.uid) for low in crew)
    d.said.clear()
    d.evict(*crew, outcome=EvictionOutcome.WITHDRAWN)
    d.step(1)
    assert (d.preempted(), len(d.engine.preempting.nominations)) == ([], 0)
    assert not d.told(members[1], Reason.PREEMPTION_FAILED)
    again = with_priority(gang(1, name="g"), 10)[0]
    again.metadata.uid, again.metadata.annotations = "again", dict(members[1].metadata.annotations)
    d.apply(again)
    d.step(1)
    assert d.preempted() == ["low-1", "low-2"], "at once, as no claim has failed"
    d.evict(*crew)
    d.settle(1)
    assert len(d.where(again, members[1])) == 2


def test_a_gang_that_prefers_few_leaves_clears_the_leaf_that_it_requires() -> None:
    """Not the nodes that would do if it required no leaf: of each leaf one node is cheap."""
    d = fabric_driver({"s1/l1": 2, "s1/l2": 2, "s1/l3": 2})
    d.now = 5_000.0
    for leaf in (1, 2, 3):
        for number, started in ((1, 4_990), (2, 100 * leaf)):
            low = run_pod(d, f"low-{leaf}-{number}", f"s1-l{leaf}-{number}")
            low.status.start_time = timestamp(started)
            d.apply(low)
    members = with_priority(gang(2), 10)
    for member in members:
        member.metadata.annotations |= ours({"placement": "preferred", "required-level": "leaf"})
    d.apply(*members)
    d.step()
    assert d.preempted() == ["low-3-1", "low-3-2"]


def test_one_that_may_not_preempt_waits() -> None:
    d = fabric_driver({"s1/l1": 1})
    run_pod(d, "low", "s1-l1-1")
    high = urgent_pod()
    high.spec.preemption_policy = "Never"
    d.apply(high)
    d.step()
    d.step(100)
    assert d.preempted() == []


def test_preemption_can_be_switched_off_and_on() -> None:
    d = fabric_driver({"s1/l1": 1}, configured("{preemption: {enabled: false}}"))
    run_pod(d, "low", "s1-l1-1")
    d.apply(urgent_pod())
    d.step(1)
    assert d.preempted() == []
    d.engine.configure(configured())
    d.step(1)
    assert d.preempted() == ["low"]


def test_no_pod_is_preempted_before_the_budgets_are_known() -> None:
    d = Driver(fabric({"s1/l1": 1}))
    run_pod(d, "low", "s1-l1-1")
    d.apply(urgent_pod())
    d.step(1)
    assert d.preempted() == []
    d.engine.budgets_known()
    d.engine.budgets_applied([budget("other", 1, {"a": "b"})])
    d.engine.budget_deleted("default", "other")
    d.step(1)
    assert d.preempted() == ["low"]


@pytest.mark.unrecorded
def test_no_pod_is_preempted_before_that_can_be_planned_at_once() -> None:
    d = fabric_driver({"s1/l1": 1})
    d.engine.preempting.ready = False
    run_pod(d, "low", "s1-l1-1")
    d.apply(urgent_pod())
    d.step(1)
    assert d.preempted() == []
    assert d.engine.preempting.take_wanted()
    assert not d.engine.preempting.take_wanted(), "reported once"
    d.engine.may_preempt()
    d.step(1)
    assert d.preempted() == ["low"]


def test_no_pod_is_preempted_for_a_place_that_is_merely_preferred() -> None:
    d = fabric_driver({"s1/l1": 2, "s1/l2": 2})
    run_pod(d, "a", "s1-l1-1")
    run_pod(d, "b", "s1-l2-1")
    members = with_priority(gang(2), 10)
    for pod in members:
        pod.metadata.annotations["topology.scheduler/placement"] = "preferred"
    d.run(*members)
    assert len(d.where(*members)) == 2
    assert d.preempted() == []


def test_one_that_no_room_would_help_evicts_no_pod() -> None:
    d = fabric_driver({"s1/l1": 1})
    run_pod(d, "low", "s1-l1-1")
    d.apply(urgent_pod(gpus=9), *with_priority(gang(2), 10))
    d.step(1)
    assert d.preempted() == []


def test_pods_of_our_own_give_way_once_they_are_seen_to_run() -> None:
    d = fabric_driver({"s1/l1": 1})
    low = make_pod("low", gpus=8)
    d.apply(low)
    d.step()
    d.apply(urgent_pod())
    d.step()
    assert d.preempted() == [], "it is being bound"
    d.answer(low.metadata.uid)
    d.step()
    d.step(1)
    assert d.preempted() == ["low"]


def test_room_in_part_is_filled_up_by_a_victim() -> None:
    d = fabric_driver({"s1/l1": 1})
    equal = run_pod(d, "equal", "s1-l1-1", gpus=4, priority=10)
    run_pod(d, "low", "s1-l1-1", gpus=4)
    d.apply(urgent_pod())
    d.step()
    assert d.preempted() == []
    d.delete(equal)
    d.step(1)
    d.step(2)
    assert d.preempted() == ["low"]


# ---------------------------------------------------------------- what is kept meanwhile


def test_the_room_is_kept_from_equal_and_lower_priorities_only() -> None:
    d = fabric_driver({"s1/l1": 1})
    low = run_pod(d, "low", "s1-l1-1")
    high, later, higher = urgent_pod(), urgent_pod("later"), urgent_pod("higher", 20)
    d.apply(high)
    d.step()
    d.evict(low, vanish=False)
    d.apply(later, make_pod("lower", gpus=8))
    d.step()
    d.delete(low)
    other = make_pod("another", gpus=8, priority=10)
    d.apply(other)
    d.step()
    assert set(d.flight) == {high.metadata.uid}
    d = fabric_driver({"s1/l1": 1})
    low = run_pod(d, "low", "s1-l1-1")
    d.apply(high)
    d.step()
    d.apply(higher)
    d.evict(low)
    d.step()
    assert set(d.flight) == {higher.metadata.uid}


def test_nominations_of_other_schedulers_count_for_equal_and_lower() -> None:
    d = fabric_driver({"s1/l1": 1})
    theirs = make_pod("theirs", gpus=8, priority=5, scheduler="other")
    theirs.status.nominated_node_name = "s1-l1-1"
    d.apply(theirs, urgent_pod("lower", 5))
    d.step()
    assert d.flight == {}
    d.apply(urgent_pod("higher", 6, gpus=1))
    d.step()
    assert [bind.pod.name for bind in d.flight.values()] == ["higher"]
    theirs.status.nominated_node_name = ""
    d.apply(theirs)
    d.settle()
    d.apply(urgent_pod("small", 5, gpus=7))
    d.settle()
    assert held(d, "s1-l1-1") == 8


def test_a_nomination_ends_with_its_pod() -> None:
    d = fabric_driver({"s1/l1": 1})
    theirs = make_pod("theirs", gpus=8, priority=5, scheduler="other")
    theirs.status.nominated_node_name = "s1-l1-1"
    waiting = make_pod("waiting", gpus=8)
    d.apply(theirs, waiting)
    d.step()
    assert d.flight == {}
    d.delete(theirs)
    d.settle()
    assert d.where(waiting) == {"waiting": "s1-l1-1"}


def test_one_of_higher_priority_takes_over_what_was_cleared_for_another() -> None:
    d = fabric_driver({"s1/l1": 1, "s1/l2": 1})
    a = run_pod(d, "a", "s1-l1-1")
    run_pod(d, "b", "s1-l2-1", priority=9)
    d.apply(urgent_pod("high", 5))
    d.step()
    assert d.nominated() == {"high": "s1-l1-1"}
    d.evict(a, vanish=False)
    d.apply(urgent_pod("higher", 8))
    d.step()
    assert d.nominated() == {"higher": "s1-l1-1"}, "the other has no claim any more"
    assert d.preempted() == ["a"]


# ---------------------------------------------------------------- how it ends


def test_a_claim_ends_with_its_workload() -> None:
    d = fabric_driver({"s1/l1": 1})
    low = run_pod(d, "low", "s1-l1-1")
    high, waiting = urgent_pod(), make_pod("waiting", gpus=8)
    d.apply(high)
    d.step()
    d.delete(high)
    d.evict(low)
    d.apply(waiting)
    d.settle()
    assert d.where(waiting) == {"waiting": "s1-l1-1"}
    assert len(d.engine.preempting.nominations) == 0


def test_a_pod_that_is_placed_elsewhere_keeps_no_nomination() -> None:
    d = fabric_driver({"s1/l1": 1, "s1/l2": 1})
    run_pod(d, "a", "s1-l1-1")
    equal = run_pod(d, "b", "s1-l2-1", priority=10)
    high, waiting = urgent_pod(), make_pod("waiting", gpus=8)
    d.apply(high)
    d.step()
    d.delete(equal)
    d.settle()
    assert d.where(high) == {"urgent": "s1-l2-1"}
    d.delete(d.pods[next(uid for uid, pod in d.pods.items() if pod.metadata.name == "a")])
    d.apply(waiting)
    d.settle()
    assert d.where(waiting) == {"waiting": "s1-l1-1"}


def test_a_gang_that_is_placed_keeps_no_nomination() -> None:
    d = fabric_driver({"s1/l1": 3})
    members = with_priority(gang(2), 10)
    d.run(*members)
    for pod in members:
        d.delete(pod)
    lost = with_priority(gang(2), 10)
    first, second = run_pod(d, "x", "s1-l1-1"), run_pod(d, "y", "s1-l1-2")
    run_pod(d, "z", "s1-l1-3")
    d.apply(*lost)
    d.step()
    assert len(d.preempted()) == 2
    d.evict(first, second)
    d.settle()
    assert len(d.where(*lost)) == 2
    assert len(d.engine.preempting.nominations) == 0


def test_a_refused_eviction_is_reported_and_the_scheduler_searches_for_other_victims() -> None:
    d = fabric_driver({"s1/l1": 2})
    first, second = run_pod(d, "a", "s1-l1-1"), run_pod(d, "b", "s1-l1-2")
    high = urgent_pod()
    d.apply(high)
    d.step()
    assert d.preempted() == ["a"]
    d.evict(first, outcome=EvictionOutcome.REFUSED)
    d.step()
    assert d.preempted() == ["a", "b"]
    assert d.nominated() == {"urgent": "s1-l1-2"}
    (text,) = d.told(high, Reason.PREEMPTION_FAILED)
    assert text == "Evicting pod default/a to make room was refused, searching for other victims: the server said so"
    d.evict(second)
    d.settle()
    assert d.where(high) == {"urgent": "s1-l1-2"}


@pytest.mark.parametrize("refused", [False, True])
def test_plans_with_a_victim_of_a_namespace_where_an_eviction_failed_begin_with_dry_runs(refused: bool) -> None:
    """Also the first plan of a workload: its other victims would be evicted for nothing."""
    d = fabric_driver({"s1/l1": 3})
    first = run_pod(d, "a", "s1-l1-1")
    run_pod(d, "b", "s1-l1-2"), run_pod(d, "c", "s1-l1-3")
    if refused:
        single = urgent_pod()
        d.apply(single)
        d.step()
        assert d.preempted() == ["a"]
        d.evict(first, outcome=EvictionOutcome.REFUSED)
        d.delete(single)
        d.forget()
    d.apply(*with_priority(gang(3), 10))
    d.step(100)
    victims = [instruction.pod.uid for instruction in d.said if isinstance(instruction, Preempt)]
    assert len(victims) == 3
    assert [d.engine.preempting.needs_dry_run(uid) for uid in victims] == [refused] * 3


def test_one_that_can_not_be_evicted_is_asked_again_after_a_growing_while() -> None:
    d = fabric_driver({"s1/l1": 1})
    low = run_pod(d, "low", "s1-l1-1")
    d.apply(urgent_pod())
    asked = []
    for second in range(200):
        d.forget()
        d.step(1)
        if d.preempted():
            asked.append(second)
            d.evict(low, outcome=EvictionOutcome.REFUSED)
        # Something always happens somewhere.
        d.nodes(make_node("elsewhere", "s2/l1", gpus=0, labels={"at": str(second)}))
    gaps = [later - earlier for earlier, later in itertools.pairwise(asked)]
    assert len(asked) >= 3
    assert gaps == sorted(gaps)
    assert gaps[0] >= 10
    assert gaps[-1] > gaps[0]
    assert d.nominated() == {}


def test_a_victim_that_does_not_end_is_given_up() -> None:
    d = fabric_driver({"s1/l1": 2})
    first = run_pod(d, "a", "s1-l1-1")
    run_pod(d, "b", "s1-l1-2")
    high = urgent_pod()
    d.apply(high)
    d.step()
    assert d.preempted() == ["a"]
    d.evict(first, vanish=False)
    d.step(50)
    assert d.preempted() == ["a"], "its grace period is 30 seconds"
    d.step(11)
    assert d.preempted() == ["a", "b"]
    assert d.told(high, Reason.PREEMPTION_FAILED) == ["Pod default/a did not end in time; searching for other victims"]


def test_evictions_that_wait_for_their_turn_do_not_lead_to_other_victims() -> None:
    """A slow API server answers the evictions of a large gang one after the other, for minutes."""
    d = fabric_driver({"s1/l1": 3, "s1/l2": 3})
    crew = {
        pod.metadata.name: pod for pod in (run_pod(d, f"low-{n}", f"s1-l{1 + n // 3}-{1 + n % 3}") for n in range(6))
    }
    members = with_priority(gang(3), 10)
    d.apply(*members)
    d.step()
    victims = d.preempted()
    for name in victims:
        d.step(70)
        d.evict(crew[name])
        d.step()
    assert d.preempted() == victims
    d.settle()
    assert len(d.where(*members)) == 3


def test_the_time_that_a_victim_has_to_end_begins_with_the_answer_to_its_eviction() -> None:
    d = fabric_driver({"s1/l1": 2})
    first = run_pod(d, "a", "s1-l1-1")
    run_pod(d, "b", "s1-l1-2")
    d.apply(urgent_pod())
    d.step()
    d.step(50)
    d.evict(first, vanish=False)
    d.step(50)
    assert d.preempted() == ["a"]
    d.step(11)
    assert d.preempted() == ["a", "b"]


def test_an_eviction_that_is_never_answered_is_given_up() -> None:
    d = fabric_driver({"s1/l1": 2})
    run_pod(d, "a", "s1-l1-1")
    run_pod(d, "b", "s1-l1-2")
    d.apply(urgent_pod())
    d.step()
    for _ in range(59):
        d.step(10)
    assert d.preempted() == ["a"]
    for _ in range(5):
        d.step(10)
    assert d.preempted() == ["a", "b"]


def test_a_budget_is_not_reported_if_evicting_its_pods_makes_no_room() -> None:
    d = fabric_driver({"s1/l1": 1, "s1/l2": 1})
    d.apply(make_pod("low", gpus=8, node="s1-l1-1", scheduler="other", labels={"app": "db"}))
    run_pod(d, "equal", "s1-l2-1", gpus=6, priority=10)
    d.engine.budgets_applied([budget("never", 0, {"app": "db"})])
    high = urgent_pod()
    high.spec.node_selector = {"topology.scheduler/leaf": "l2"}
    d.apply(high)
    d.settle()
    (text,) = d.told(high, Reason.FAILED_SCHEDULING)
    assert "PodDisruptionBudget" not in text


def test_a_budget_that_blocks_for_ever_is_reported_and_the_queue_moves_on() -> None:
    d = fabric_driver({"s1/l1": 1, "s1/l2": 1})
    low = make_pod("low", gpus=8, node="s1-l1-1", scheduler="other", labels={"app": "db"})
    d.apply(low)
    run_pod(d, "equal", "s1-l2-1", gpus=6, priority=10)
    d.engine.budgets_applied([budget("never", 0, {"app": "db"})])
    high, small = urgent_pod(), make_pod("small", gpus=2)
    d.apply(high, small)
    d.settle()
    assert d.preempted() == []
    (text,) = d.told(high, Reason.FAILED_SCHEDULING)
    assert text.endswith("1 pod of lower priority may not be evicted now: PodDisruptionBudget default/never.")
    assert d.where(small) == {"small": "s1-l2-1"}
    d.engine.budgets_applied([budget("never", 1, {"app": "db"})])
    d.step()
    d.step(2)
    assert d.preempted() == ["low"]


def test_a_budget_whose_selector_is_wrong_is_complained_of() -> None:
    d = fabric_driver({"s1/l1": 1})
    d.engine.budgets_applied([budget("odd", 0, {"-": "-"})])
    d.step()
    (text,) = d.complaints()
    assert text.startswith("PodDisruptionBudget default/odd: spec.selector:")


# ---------------------------------------------------------------- after a restart


@pytest.mark.parametrize("terminating", [True, False])
def test_a_new_leader_keeps_the_claim_while_victims_are_going(terminating: bool) -> None:
    d = fabric_driver({"s1/l1": 1, "s1/l2": 1})
    low, other = run_pod(d, "low", "s1-l1-1"), run_pod(d, "other", "s1-l2-1", priority=1)
    high = urgent_pod()
    d.apply(high)
    d.step()
    assert d.nominated() == {"urgent": "s1-l1-1"}
    high.status.nominated_node_name = "s1-l1-1"
    if terminating:
        low.metadata.deletion_timestamp = timestamp(30)
    fresh = fabric_driver({"s1/l1": 1, "s1/l2": 1})
    fresh.apply(low, other, high, make_pod("lower", gpus=8))
    fresh.step()
    assert fresh.preempted() == ([] if terminating else ["low"])
    fresh.delete(low)
    fresh.settle()
    assert fresh.where(high) == {"urgent": "s1-l1-1"}


@pytest.mark.parametrize("refused", [False, True])
def test_nominations_of_an_earlier_leader_end_where_no_attempt_takes_them_over(*, refused: bool) -> None:
    """The other members of the gang are gone, or the pod is refused: no attempt would come."""
    d = fabric_driver({"s1/l1": 2})
    first, _ = gang(2, name="crew")
    if refused:
        first.metadata.annotations["topology.scheduler/gang-size"] = "many"
    first.status.nominated_node_name = "s1-l1-1"
    others = [make_pod(f"other-{number}", gpus=8) for number in range(2)]
    d.apply(first, *others)
    d.settle()
    assert len(d.where(*others)) == 1
    d.settle(COUNTS_SECONDS)
    due = d.engine.next_due()
    assert due is not None and due <= d.now, "others need not wait for the next news of the cluster"
    d.settle()
    assert len(d.where(*others)) == 2
    assert [said.node for said in d.said if isinstance(said, Nominate)] == [""]
    assert not len(d.engine.preempting.nominations)


def test_nominations_of_an_earlier_leader_whose_pods_are_replaced_take_no_room_without_end() -> None:
    d = fabric_driver({"s1/l1": 1})
    waits = make_pod("waits", gpus=8, namespace="victim")
    for turn in range(4):
        first, _ = gang(2, name=f"crew-{turn}")
        first.status.nominated_node_name = "s1-l1-1"
        d.apply(first, waits)
        d.settle(COUNTS_SECONDS - 5)
        d.delete(first)
    assert waits.spec.node_name


@pytest.mark.unrecorded
def test_a_gang_of_ours_loses_one_member_only_unless_its_mode_says_otherwise() -> None:
    for mode, lost in (("pod", 1), ("gang", 2)):
        d = fabric_driver({"s1/l1": 2})
        crew = gang(2, name="crew")
        d.run(*crew)
        for workload in d.engine.workloads:
            workload.disruption_mode = Disruption(mode)
        d.apply(urgent_pod())
        d.step()
        assert len(d.preempted()) == lost


def test_nothing_is_charged_between_steps() -> None:
    d = fabric_driver({"s1/l1": 1})
    run_pod(d, "low", "s1-l1-1")
    d.apply(urgent_pod(), urgent_pod("second", 9), make_pod("third", gpus=1))
    d.step()
    assert held(d, "s1-l1-1") == 8
    assert [said.node for said in d.said if isinstance(said, Nominate)] == ["s1-l1-1"]


def test_a_pod_of_a_daemonset_is_never_asked() -> None:
    d = fabric_driver({"s1/l1": 1})
    pod = make_pod("agent", gpus=8, node="s1-l1-1", scheduler="other", owner=controlled_by("DaemonSet", "agent"))
    d.apply(pod, urgent_pod())
    d.step(1)
    assert d.preempted() == []


@pytest.mark.parametrize(
    ("api_version", "kind"),
    [("apps/v9", "DaemonSet"), ("example.com/v1", "DaemonSet"), ("example.com/v1", "Node"), ("v1", "Node")],
)
def test_a_pod_whose_owner_only_has_the_kind_of_a_daemonset_or_node_is_preempted(api_version: str, kind: str) -> None:
    """Tenants write owners as they like; of these groups and kinds no controller of the cluster checks them."""
    d = fabric_driver({"s1/l1": 1})
    owner = OwnerReference(api_version, kind, "agent", "uid-agent", controller=True)
    d.apply(make_pod("agent", gpus=8, node="s1-l1-1", scheduler="other", phase="Running", owner=owner), urgent_pod())
    d.step(1)
    assert d.preempted() == ["agent"]


def test_the_mirror_of_a_static_pod_is_never_preempted() -> None:
    d = fabric_driver({"s1/l1": 1})
    mirror = make_pod("static", gpus=8, node="s1-l1-1", scheduler="other", owner=controlled_by("Node", "s1-l1-1"))
    mirror.metadata.annotations[MIRROR] = "hash"
    d.apply(mirror, urgent_pod())
    d.step(1)
    assert d.preempted() == []


def test_pods_that_no_room_would_help_are_not_tried_again_whenever_a_pod_is_bound() -> None:
    d = fabric_driver({"s1/l1": 4})
    run_pod(d, "low", "s1-l1-1", gpus=1)
    d.apply(*[urgent_pod(f"large-{number}", gpus=99) for number in range(50)])
    d.settle()
    attempts = sum(isinstance(instruction, RecordDecision) for instruction in d.said)
    pods = [make_pod(f"small-{number}", gpus=1) for number in range(4)]
    for pod in pods:
        d.run(pod)
    assert len(d.where(*pods)) == 4
    assert sum(isinstance(instruction, RecordDecision) for instruction in d.said) - attempts == 4


@pytest.mark.parametrize("some_end", [False, True])
def test_pods_that_never_end_keep_a_workload_waiting_twice_and_then_others_are_chosen(some_end: bool) -> None:
    """Also if one of them ends each time: their namespace is preferred no more than before."""
    d = fabric_driver({f"s1/l{leaf}": 2 for leaf in range(1, 9)})
    nodes = [f"s1-l{leaf}-{number}" for leaf in range(1, 9) for number in (1, 2)]
    stubborn = [
        make_pod(f"stubborn-{node}", namespace="evil", gpus=8, node=node, phase="Running") for node in nodes[:12]
    ]
    honest = [make_pod(f"honest-{node}", gpus=8, node=node, phase="Running", created=-1) for node in nodes[12:]]
    d.apply(*stubborn, *honest)
    d.step()
    pods = with_priority(gang(2), 10)
    d.apply(*pods)
    chosen: dict[str, Pod] = {}
    for _ in range(140):
        fresh = [
            pod for pod in d.pods.values() if pod.metadata.name in d.preempted() and pod.metadata.name not in chosen
        ]
        chosen |= {pod.metadata.name: pod for pod in fresh}
        d.evict(*(pod for number, pod in enumerate(fresh) if pod in honest or (some_end and not number)))
        d.evict(*(pod for pod in fresh if pod.metadata.deletion_timestamp is None), vanish=False)
        d.settle(1)
    assert len(d.where(*pods)) == 2
    assert sum(pod in stubborn for pod in chosen.values()) == 4, "two waves"


def idle_nodes_beside(slow: Pod, *, terminating: bool) -> list[str]:
    """A gang of the size of the fabric waits for a pod of its own namespace; return where pods of others go then."""
    d = fabric_driver({"s1/l1": 4})
    slow.spec.node_name, slow.spec.priority, slow.status.phase = "s1-l1-1", -10, "Running"
    d.apply(slow)
    if terminating:
        slow.metadata.deletion_timestamp = timestamp(slow.spec.termination_grace_period_seconds or 30)
        d.apply(slow)
    d.apply(*gang(4, gpus=8))
    d.step(1)
    others = [make_pod(f"other-{number}", gpus=8, namespace="other") for number in range(4)]
    d.apply(*others)
    d.settle(1)
    return sorted(d.where(*others).values())


@pytest.mark.parametrize(
    ("grace", "terminating"), [(250, True), (401, False)], ids=["ends by itself", "is evicted and ends late"]
)
def test_a_pod_of_its_own_that_ends_slowly_keeps_no_other_nodes_idle(grace: int, terminating: bool) -> None:
    slow = make_pod("slow", gpus=8)
    slow.spec.termination_grace_period_seconds = grace
    assert idle_nodes_beside(slow, terminating=terminating) == ["s1-l1-2", "s1-l1-3", "s1-l1-4"]


@pytest.mark.parametrize("grace", [30, 400], ids=["soon", "within the node seconds of its namespace"])
def test_a_pod_of_its_own_that_is_evicted_and_ends_in_time_keeps_the_other_nodes_for_its_gang(grace: int) -> None:
    quick = make_pod("quick", gpus=8)
    quick.spec.termination_grace_period_seconds = grace
    assert MAX_IDLE_NODE_SECONDS == 3 * 400
    assert idle_nodes_beside(quick, terminating=False) == []


def test_a_small_pod_of_its_own_that_ends_slowly_keeps_its_node_for_no_gang() -> None:
    for gpus, free in (3, ["s1-l1-1"]), (4, []):
        d = fabric_driver({"s1/l1": 2})
        slow = make_pod("slow", gpus=gpus, priority=-10, node="s1-l1-1", phase="Running")
        slow.spec.termination_grace_period_seconds = 1201
        d.apply(slow)
        d.apply(*with_priority(gang(2, gpus=8), 10))
        d.settle(1)
        assert d.preempted() == ["slow"]
        d.apply(*(others := [make_pod(f"other-{n}", gpus=4, namespace="other") for n in range(3)]))
        d.settle(1)
        places = sorted(d.where(*others).values())
        assert [node for node in places if node == "s1-l1-1"] == free, "half of the node is in use, or less"
        assert places.count("s1-l1-2") == 2


def test_where_a_workload_takes_gpus_pods_without_any_keep_no_node_for_it() -> None:
    """Though CPU is scarcer: all CPUs, and 7 of 8 GPUs."""
    d = fabric_driver({"s1/l1": 2})
    for number in (1, 2):
        slow = make_pod(f"slow-{number}", cpu="33", priority=-10, node=f"s1-l1-{number}", phase="Running")
        slow.spec.termination_grace_period_seconds = 1201
        d.apply(slow)
    members = with_priority(gang(2, gpus=7), 10)
    for pod in members:
        pod.spec.containers[0].resources.requests["cpu"] = "64"
    d.apply(*members)
    d.settle(1)
    assert d.preempted() == ["slow-1", "slow-2"]
    d.apply(other := make_pod("other", gpus=8, namespace="other", priority=-10))
    d.settle(1)
    assert d.where(other)


def test_pods_of_the_own_namespace_take_no_room_that_a_gang_gets_once_slow_ones_have_ended() -> None:
    """Otherwise a controller's next pod would take each place in turn, and the gang would evict it each time."""
    d = fabric_driver({"s1/l1": 3})
    slow = make_pod("slow-0", gpus=8, priority=-10, node="s1-l1-1", phase="Running")
    slow.spec.termination_grace_period_seconds = 700
    d.apply(slow, make_pod("other", gpus=1, namespace="other", priority=-10, node="s1-l1-2", phase="Running"))
    members = with_priority(gang(3, gpus=8), 10)
    d.apply(*members)
    d.settle(1)
    d.apply(*(again := [make_pod(f"slow-{n}", gpus=1, priority=-10) for n in range(1, 4)]))
    d.settle(1)
    assert d.preempted() == ["slow-0"] and not d.where(*again)
    d.apply(elsewhere := make_pod("elsewhere", gpus=1, namespace="third", priority=-10))
    d.settle(1)
    assert d.where(elsewhere), "the other nodes are free for other namespaces"
    d.delete(slow)
    d.settle(5)
    assert sorted(d.preempted()) == ["elsewhere", "other", "slow-0"] and not d.where(*again)


@pytest.mark.unrecorded
@pytest.mark.parametrize(("candidates", "kept"), [(10_000, True), (60_000, False)])
def test_a_stage_keeps_its_room_until_the_next_search_for_some_seconds(candidates: int, kept: bool) -> None:
    """Searches of a namespace pause after those in vain."""
    d = fabric_driver({"s1/l1": 2})
    slow = make_pod("slow-0", gpus=8, priority=-10, node="s1-l1-1", phase="Running")
    slow.spec.termination_grace_period_seconds = 2000
    d.apply(slow, make_pod("other", gpus=1, namespace="other", priority=-10, node="s1-l1-2", phase="Running"))
    d.apply(*with_priority(gang(2, gpus=8), 10))
    d.settle(1)
    d.apply(again := make_pod("slow-1", gpus=8, priority=-10))
    d.settle(1)
    d.engine.preempting._turns.rest_after("default", candidates, d.now)
    d.delete(slow)
    d.settle(1)
    assert bool(d.where(again)) is not kept
    if kept:
        d.settle(2)
        assert sorted(d.preempted()) == ["other", "slow-0"] and not d.where(again)


@pytest.mark.unrecorded
def test_a_stage_that_is_over_does_not_count_as_another_workload_of_a_doubted_namespace() -> None:
    d = fabric_driver({"s1/l1": 2})
    slow = make_pod("slow-0", gpus=8, priority=-10, node="s1-l1-1", phase="Running")
    slow.spec.termination_grace_period_seconds = 2000
    d.apply(slow, make_pod("other", gpus=1, namespace="other", priority=-10, node="s1-l1-2", phase="Running"))
    vain = d.engine.preempting.vain_evictions
    for moment in (-100.0, -50.0):
        vain._shared_pauses.failed("default", moment)
    assert vain.is_doubted("default", d.now) and vain.until("default") <= d.now
    d.apply(*with_priority(gang(2, gpus=8), 10))
    d.settle(1)
    assert d.preempted() == ["slow-0"]
    d.delete(slow)
    d.settle(1)
    assert sorted(d.preempted()) == ["other", "slow-0"]


def test_all_claims_of_a_namespace_hold_idle_nodes_for_so_many_node_seconds() -> None:
    d = fabric_driver({"s1/l1": 3, "s1/l2": 3})
    for leaf in ("l1", "l2"):
        slow = make_pod(f"slow-{leaf}", gpus=8, priority=-10, node=f"s1-{leaf}-1", phase="Running")
        slow.spec.termination_grace_period_seconds = 350
        d.apply(slow)
    d.apply(*gang(3, gpus=8, name="first"), *gang(3, gpus=8, name="second"))
    d.settle(2)
    assert len(d.preempted()) == 2
    d.apply(*(others := [make_pod(f"other-{number}", gpus=8, namespace="other") for number in range(4)]))
    d.settle(1)
    assert len(set(d.where(*others).values())) == 2, "the second gang's other nodes are not held"


@pytest.mark.parametrize("full", [False, True], ids=["others have a small pod there", "others fill the other nodes"])
def test_pods_of_others_stay_until_a_slow_pod_of_the_own_namespace_has_ended(full: bool) -> None:
    d = fabric_driver({"s1/l1": 4})
    slow = make_pod("slow", gpus=1, priority=-10, node="s1-l1-1", phase="Running")
    slow.spec.termination_grace_period_seconds = 590
    count, gpus = (3, 8) if full else (1, 1)
    others = [
        make_pod(f"o-{n}", gpus=gpus, namespace="other", priority=-10, node=f"s1-l1-{n + 2}", phase="Running")
        for n in range(count)
    ]
    d.apply(slow, *others)
    members = with_priority(gang(4, gpus=8), 10)
    d.apply(*members)
    d.settle(5)
    assert d.preempted() == ["slow"]
    d.apply(*(late := [make_pod(f"late-{n}", gpus=8, namespace="third", priority=-10) for n in range(2)]))
    d.settle(1)
    assert bool(d.where(*late)) != full, "nodes without a GPU pod are not held meanwhile"
    for pod in late:
        d.delete(pod)
    d.delete(slow)
    d.settle(5)
    assert sorted(d.preempted()) == sorted(["slow", *(pod.metadata.name for pod in others)])
    for pod in others:
        d.delete(pod)
    d.settle(5)
    assert len(d.where(*members)) == 4 and not d.engine.preempting.vain_evictions.until("default")


@pytest.mark.parametrize("namespaces", [1, 4])
def test_gangs_that_wait_for_own_pods_do_not_all_count_on_the_same_idle_nodes(namespaces: int) -> None:
    d = fabric_driver({"s1/l1": 7})
    for number in range(4):
        namespace = f"team-{number % namespaces}"
        own = make_pod(f"own-{number}", gpus=8, namespace=namespace, node=f"s1-l1-{number + 1}", phase="Running")
        own.spec.termination_grace_period_seconds = 90
        d.apply(own)
        members = with_priority(gang(4, gpus=8, name=f"g{number}"), 10)
        for pod in members:
            pod.metadata.namespace = namespace
        d.apply(*members)
    d.settle(30)
    assert len(d.preempted()) == 1, "there are idle nodes for one of them only"


def test_room_that_pods_of_others_leave_soon_is_kept_with_the_idle_nodes_that_a_gang_needs_too() -> None:
    d = fabric_driver({"s1/l1": 2})
    ending = make_pod("ending", gpus=8, namespace="other", priority=-10, node="s1-l1-1", phase="Running")
    ending.metadata.deletion_timestamp = timestamp(30)
    d.apply(ending)
    d.apply(*(members := with_priority(gang(2, gpus=8), 10)))
    d.step(1)
    low = make_pod("low", gpus=8, namespace="third")
    d.apply(low)
    d.settle(1)
    assert not d.where(low)
    d.delete(ending)
    d.settle(1)
    assert len(d.where(*members)) == 2 and not d.preempted()
