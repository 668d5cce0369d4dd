"""Pods whose owner was deleted are about to be deleted too: they take no place, and nothing is preempted for them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import Owner, controlled_by, make_node, make_pod
from tests.scheduling.driver import Driver, fabric
from tests.scheduling.function_calls import calls_of, of_package
from topo_scheduler.api.objects import ObjectMeta, PartialObject, Pod
from topo_scheduler.api.reasons import Reason
from topo_scheduler.scheduling.instructions import BindOutcome, EvictionOutcome, Preempt
from topo_scheduler.scheduling.intake.leaving import MIN_UNREPORTED, REPORTED_AFTER_SECONDS

JOB = "uid-train"


def full(nodes: int) -> Driver:
    """A cluster of nodes on each of which another scheduler's pod of priority 0 runs."""
    d = Driver([make_node(f"n{n}", f"s1/l{n // 8}") for n in range(nodes)])
    d.engine.budgets_known()
    low = [make_pod(f"low-{n}", gpus=8, node=f"n{n}", scheduler="other", phase="Running") for n in range(nodes)]
    d.apply(*low)
    return d


def members(size: int, priority: int = 10, gpus: int = 8) -> list[Pod]:
    """Pods of an indexed Job that is a gang by the annotation of the Job."""
    return [
        make_pod(
            f"train-{n}",
            gpus=gpus,
            owner=controlled_by("Job", "train", uid=JOB),
            priority=priority,
            labels={"batch.kubernetes.io/job-completion-index": str(n)},
            annotations={"gang-name": "train", "gang-size": str(size)},
        )
        for n in range(size)
    ]


def job(d: Driver) -> None:
    d.own(Owner("Job", "train", uid=JOB))


@pytest.mark.parametrize("outcome", [EvictionOutcome.WITHDRAWN, EvictionOutcome.UNCONFIRMED])
def test_a_job_that_is_deleted_while_pods_are_evicted_for_it_is_the_reason_that_this_is_in_vain(
    outcome: EvictionOutcome,
) -> None:
    d = full(2)
    for low in d.pods.values():
        low.metadata.namespace = "other"
    d.apply(*d.pods.values())
    job(d)
    d.apply(*members(2))
    d.step(1)
    first, second = [pod for pod in d.pods.values() if pod.metadata.name in d.preempted()]
    d.evict(first)
    d.disown(JOB)
    d.evict(second, outcome=outcome)
    vain = d.engine.preempting.vain_evictions
    assert [pause.times for _, pause in vain._pauses.items()] == [1] and not dict(vain._shared_pauses.items())


@pytest.mark.parametrize("size", [20, 100, 256])
def test_a_gang_that_waits_and_whose_job_is_deleted_evicts_nothing(size: int) -> None:
    d = full(16)
    job(d)
    pods = members(size)
    d.apply(*pods)
    d.run()
    assert d.preempted() == [], "it has no place even if all others are preempted"
    for pod in pods:  # bare pods that are no gang any more, as an API server that forgot their owner has them
        pod.metadata.annotations.clear()
    d.disown(JOB)
    d.apply(*pods)
    d.run()
    assert d.preempted() == [] and d.where(*pods) == {}
    # The garbage collector takes them one by one.
    while pods:
        d.delete(pods.pop())
        d.run()
    assert d.preempted() == []


def test_a_pod_alone_preempts_nothing_either() -> None:
    d = full(1)
    job(d)
    (pod,) = members(1)
    pod.metadata.annotations.clear()
    d.gone[JOB] = "Job train is being deleted"
    d.apply(pod)
    d.run()
    assert d.preempted() == []


def test_nothing_is_evicted_for_pods_whose_owner_can_not_be_read() -> None:
    d = full(2)
    why = "JobSet all cannot be read: grant the verb get on jobsets.jobset.x-k8s.io"
    d.doubts[JOB] = why
    job(d)
    pods = members(2)
    d.apply(*pods)
    d.run()
    assert d.preempted() == []
    said = f"The scheduler evicts no pod to make room, as the owners of these pods are not known: {why}."
    assert said in d.told(pods[0])[-1]
    del d.doubts[JOB]
    d.engine.owner_changed(JOB, d.now)
    d.run()
    assert len(d.preempted()) == 2


def test_pods_whose_owner_can_not_be_read_take_what_room_there_is() -> None:
    d = Driver([make_node("n", "s1/l1")])
    d.doubts[JOB] = "JobSet all cannot be read"
    job(d)
    (pod,) = members(1)
    d.apply(pod)
    d.run()
    assert d.where(pod)


def test_evictions_that_were_decided_and_not_yet_asked_for_are_not() -> None:
    d = full(2)
    job(d)
    d.apply(*members(2))
    d.step()
    victims = [said.pod.uid for said in d.said if isinstance(said, Preempt)]
    assert len(victims) == 2 and all(map(d.engine.may_evict, victims))
    d.disown(JOB)
    d.step()
    assert not any(map(d.engine.may_evict, victims))
    for uid in victims:
        d.engine.eviction_finished(uid, EvictionOutcome.WITHDRAWN, "", d.now)
    # Others of higher priority may have their room at once: nothing of the claim is left.
    d.said.clear()
    d.apply(make_pod("urgent", gpus=8, priority=5))
    d.now += 60
    d.step()
    assert len(d.preempted()) == 1


def test_binds_that_were_decided_and_not_written_are_withdrawn() -> None:
    d = Driver(fabric({"s1/l1": 2}))
    job(d)
    pods = members(2)
    d.apply(*pods)
    d.step()
    assert set(d.flight) == {pod.metadata.uid for pod in pods}
    d.disown(JOB)
    assert d.engine.may_bind(pods[0].metadata.uid) == "Job train was deleted"
    for pod in pods:
        d.flight.pop(pod.metadata.uid)
        withdrawn = d.engine.may_bind(pod.metadata.uid)
        d.engine.bind_finished(pod.metadata.uid, BindOutcome.WITHDRAWN, withdrawn, d.now)
    d.run()
    assert d.where(*pods) == {} and d.told(pods[0], Reason.BIND_FAILED) == []
    assert not d.engine.outcomes.in_flight and not len(d.engine.workloads)
    assert d.run(make_pod("next", gpus=8)), "their room is free again"


def test_a_pod_that_was_orphaned_is_scheduled_as_the_bare_pod_it_is() -> None:
    d = Driver(fabric({"s1/l1": 4}))
    job(d)
    pods = members(2)
    d.disown(JOB)
    d.apply(*pods)
    d.run()
    assert d.where(*pods) == {}
    # Orphan propagation takes the ownerReferences away. Annotations of their own still make them a gang: all or none.
    pods[0].metadata.owner_references = []
    d.apply(pods[0])
    d.run()
    assert d.where(*pods) == {}, "one of a gang of two"
    pods[1].metadata.owner_references = []
    d.apply(pods[1])
    d.run()
    assert len(d.where(*pods)) == 2


def test_an_orphan_without_a_gang_of_its_own_is_placed_alone() -> None:
    d = Driver(fabric({"s1/l1": 4}))
    pods = members(2)
    for pod in pods:
        pod.metadata.annotations.clear()
    pods[0].metadata.owner_references = []
    d.disown(JOB)
    d.apply(*pods)
    d.run()
    assert list(d.where(*pods)) == ["train-0"]


def test_the_pods_of_a_namespace_that_is_deleted_are_left_out_and_those_of_its_successor_are_not() -> None:
    d = full(2)
    job(d)
    pods = members(2)
    d.apply(*pods)
    d.engine.namespaces_applied([PartialObject(metadata=ObjectMeta(name="default", deletion_timestamp="now"))])
    d.step()
    assert d.preempted() == []
    d.now += REPORTED_AFTER_SECONDS
    d.step()
    (text,) = d.told(pods[0], Reason.OWNER_DELETED)
    assert text.startswith("not scheduled: namespace default is being deleted.")
    assert text.endswith("create it again in another namespace"), "no owner keeps it"
    d.delete(*pods)
    d.engine.namespace_deleted("default")
    d.engine.namespaces_applied([PartialObject(metadata=ObjectMeta(name="default"))])
    again = make_pod("again", gpus=8, priority=10)
    d.apply(again)
    d.step()
    assert len(d.preempted()) == 1


def namespace(uid: str, deleted: str | None = None) -> PartialObject:
    return PartialObject(metadata=ObjectMeta(name="default", uid=uid, deletion_timestamp=deleted))


@pytest.mark.parametrize("reported", [False, True])
def test_pods_of_a_namespace_that_was_created_again_are_scheduled_if_their_watch_was_first(*, reported: bool) -> None:
    """Each kind has its own watch. One that began again may report the new namespace without the deletion."""
    d = full(2)
    d.engine.namespaces_applied([namespace("u1", deleted="now")])
    again = make_pod("again", gpus=8, priority=10)
    d.apply(again)
    d.step()
    assert d.preempted() == []
    if reported:
        d.engine.namespace_deleted("default")
    d.engine.namespaces_applied([namespace("u2")])
    d.step()
    assert len(d.preempted()) == 1


def test_an_answer_about_a_deleted_namespace_does_not_count_for_a_new_one_of_its_name() -> None:
    d = full(2)
    d.engine.namespaces_applied([namespace("u1")])
    d.engine.namespace_deleted("default")
    d.engine.namespace_leaves("default", "u1")
    d.engine.namespaces_applied([namespace("u2")])
    d.engine.namespace_leaves("default", "u1")
    d.engine.namespace_leaves("default", "")
    d.apply(make_pod("again", gpus=8, priority=10))
    d.step()
    assert len(d.preempted()) == 1


def test_it_is_reported_once_and_only_where_the_pod_stays() -> None:
    d = full(1)
    job(d)
    pods = members(3)
    d.disown(JOB)
    d.apply(*pods)
    d.run()
    d.delete(pods[0])
    assert d.told(pods[1], Reason.OWNER_DELETED) == []
    assert d.engine.next_due() is not None
    d.now += REPORTED_AFTER_SECONDS
    for _ in range(3):
        d.step()
        d.tell_again(*pods[1:])
        d.now += REPORTED_AFTER_SECONDS
    for pod in pods[1:]:
        (text,) = d.told(pod, Reason.OWNER_DELETED)
        assert text == (
            "not scheduled: Job train was deleted. So this pod is about to be deleted; to keep it, resume an owner that"
            " is suspended or scaled to 0, or remove the pod's ownerReferences"
        )
    assert d.told(pods[0], Reason.OWNER_DELETED) == []
    d.delete(*pods[1:])
    assert not len(d.engine.arrivals.leaving)


@pytest.mark.unrecorded
@pytest.mark.parametrize("reported", [False, True])
def test_thousands_of_them_cost_no_step_more_than_a_few(*, reported: bool) -> None:
    d = Driver(fabric({"s1/l1": 2}))
    d.disown("uid-train", "Job train is suspended")
    costs = []
    for pods in (2, 2_000):
        d.apply(*(make_pod(f"p{n}", uid=f"u{n}", owner=controlled_by("Job", "train")) for n in range(pods)))
        d.step(REPORTED_AFTER_SECONDS if reported else 0)
        d.step(REPORTED_AFTER_SECONDS if reported else 0)
        assert len(d.engine.arrivals.leaving) == pods

        def measured() -> None:
            d.step(0.1)
            d.engine.next_due()

        costs.append(of_package(calls_of(measured)).total())
    assert costs[1] == costs[0]


def test_pods_that_come_back_again_and_again_leave_nothing_and_get_one_event() -> None:
    d = Driver(fabric({"s1/l1": 1}))
    pod = make_pod("p", gpus=16, owner=controlled_by("Job", "train"))
    for _ in range(2 * MIN_UNREPORTED):
        d.disown("uid-train", "Job train is suspended")
        d.apply(pod)
        d.step()
        d.gone.clear()
        d.own(Owner("Job", "train", uid="uid-train"))
        d.engine.owner_changed("uid-train", d.now)
        d.step()
    assert len(d.engine.arrivals.leaving._unreported) <= MIN_UNREPORTED + 2
    d.disown("uid-train", "Job train is suspended")
    d.apply(pod)
    d.step(REPORTED_AFTER_SECONDS)
    d.step(REPORTED_AFTER_SECONDS)
    assert len(d.told(pod, Reason.OWNER_DELETED)) == 1
    assert not d.engine.arrivals.leaving._unreported


def test_the_rest_of_a_gang_of_several_jobs_waits_for_new_members() -> None:
    """As in a JobSet of which one Job is made again."""
    d = Driver(fabric({"s1/l1": 4}))
    pods = members(4)
    for n, pod in enumerate(pods):
        pod.metadata.owner_references = [controlled_by("Job", f"part-{n // 2}", uid=f"part-{n // 2}")]
    for n in range(2):
        d.own(Owner("Job", f"part-{n}", uid=f"part-{n}"))
    d.disown("part-0")
    d.apply(*pods)
    d.run()
    assert d.where(*pods) == {}
    fresh = members(4)[:2]
    for pod in fresh:
        pod.metadata.uid, pod.metadata.name = f"new-{pod.metadata.uid}", f"new-{pod.metadata.name}"
        pod.metadata.owner_references = [controlled_by("Job", "part-0", uid="part-0-again")]
    d.own(Owner("Job", "part-0", uid="part-0-again"))
    d.apply(*fresh)
    d.run()
    assert sorted(d.where(*fresh, *pods)) == ["new-train-0", "new-train-1", "train-2", "train-3"]


@settings(max_examples=60)
@given(st.lists(st.sampled_from(["delete-owner", "apply", "step", "gone"]), max_size=12), st.data())
def test_whatever_the_order_nothing_is_evicted_for_what_was_deleted(events: list[str], data: st.DataObject) -> None:
    d = full(4)
    job(d)
    pods = members(6)
    d.apply(*pods)
    deleted = False
    for event in events:
        if event == "delete-owner":
            d.disown(JOB)
            deleted = True
            for pod in pods:  # what made them a gang stood on the Job
                pod.metadata.annotations.clear()
        elif event == "apply":
            d.apply(*pods)
        elif event == "gone" and deleted and pods:
            d.delete(pods.pop(data.draw(st.integers(0, len(pods) - 1))))
        d.run()
        if deleted:
            assert d.preempted() == [] and d.where(*pods) == {}
