"""Gangs: which pods belong together, how many they are, and that none goes before all can."""

from collections.abc import Mapping

import pytest

from tests.helpers import controlled_by, job_owner, make_job, make_pod, owner, timestamp
from tests.scheduling.driver import Driver, fabric
from topo_scheduler.api.objects import Job, Named, Pod
from topo_scheduler.api.reasons import Reason
from topo_scheduler.scheduling.instructions import Bind, BindOutcome
from topo_scheduler.scheduling.queueing.queue import Place
from topo_scheduler.state.decision import Verdict
from topo_scheduler.state.pods.workloads import Stage


def named(number: int, size: int, name: str = "g", namespace: str = "default", **kwargs: str) -> Pod:
    annotations = {"gang-name": name, "gang-size": str(size), **kwargs}
    return make_pod(f"{name}-{number}", gpus=8, namespace=namespace, annotations=annotations, created=number)


def of_job(number: int, name: str = "train", gpus: int = 8, **kwargs: float) -> Pod:
    return make_pod(f"{name}-{number}", gpus=gpus, owner=controlled_by("Job", name), created=kwargs.get("created", 0))


def cluster() -> Driver:
    return Driver(fabric({"s1/l1": 4, "s1/l2": 4}))


# ---------------------------------------------------------------- waiting


def test_a_gang_waits_until_all_its_pods_are_there() -> None:
    d = cluster()
    pods = [named(number, 8) for number in range(8)]
    d.apply(*pods[:5])
    d.step()
    d.step(1.9)
    assert d.said == []
    d.step(0.1)
    assert set(d.told()) == {"Gang g is waiting for 3 of 8 pods"}
    assert len(d.told()) == 5
    d.step(100)
    assert len(d.told()) == 5, "once"
    assert d.marked() == set(), "an autoscaler would add nodes for it"
    d.apply(*pods[5:])
    d.step()
    assert len(d.flight) == 8


def test_pods_that_come_later_get_an_event_as_well() -> None:
    d = cluster()
    pods = [named(number, 8) for number in range(7)]
    d.apply(*pods[:5])
    d.step()
    d.step(2)
    d.apply(*pods[5:])
    d.step()
    d.step(2)
    assert d.told(pods[6]) == ["Gang g is waiting for 1 of 8 pods"]
    assert d.told(pods[0]) == ["Gang g is waiting for 3 of 8 pods", "Gang g is waiting for 1 of 8 pods"]


def test_a_gang_whose_pods_come_in_time_says_nothing() -> None:
    d = cluster()
    pods = [named(number, 4) for number in range(4)]
    for pod in pods:
        d.apply(pod)
        d.step(0.5)
    assert d.told() == []
    assert len(d.flight) == 4


def test_pods_whose_owner_is_not_known_are_waited_for() -> None:
    d = cluster()
    d.apply(*[of_job(number) for number in range(4)])
    d.step(10)
    assert d.said == []
    assert len(d.engine.arrivals.unresolved()) == 4
    assert d.engine.next_due() is None
    d.own(job_owner(make_job("train", parallelism=4, annotations={"gpu-count": "32"})))
    d.step()
    assert len(d.flight) == 4
    assert d.engine.arrivals.unresolved() == []


def test_a_pod_that_leaves_is_waited_for_again() -> None:
    d = cluster()
    pods = [named(number, 3) for number in range(3)]
    d.apply(*pods)
    d.delete(pods[1])
    d.step()
    assert d.flight == {}
    d.step(2)
    assert d.told(pods[0]) == ["Gang g is waiting for 1 of 3 pods"]
    d.apply(named(9, 3))
    d.step()
    assert len(d.flight) == 3


@pytest.mark.parametrize("unwanted", ["gated", "deleting"])
def test_gated_and_terminating_pods_are_not_counted(unwanted: str) -> None:
    d = cluster()
    pods = [named(number, 2) for number in range(2)]
    if unwanted == "gated":
        pods[1].spec.scheduling_gates = [Named("wait")]
    else:
        pods[1].metadata.deletion_timestamp = "2024-01-01T00:00:00Z"
    d.apply(*pods)
    d.step()
    assert d.flight == {}
    pods[1].spec.scheduling_gates = []
    pods[1].metadata.deletion_timestamp = None
    d.apply(pods[1])
    d.step()
    assert len(d.flight) == 2


@pytest.mark.unrecorded
def test_no_member_is_bound_before_all_are_assumed() -> None:
    d = cluster()
    d.apply(*[named(number, 6) for number in range(6)])
    out = d.engine.step(0, lambda: 0.0)
    first = next(at for at, said in enumerate(out) if isinstance(said, Bind))
    assert d.engine.world.ledger.assumed == 6
    assert all(isinstance(said, Bind) for said in out[first : first + 6])


def test_a_gang_without_room_gets_nothing() -> None:
    d = cluster()
    d.apply(*[named(number, 9) for number in range(9)])
    d.step()
    assert d.flight == {}
    assert d.engine.world.ledger.assumed == 0
    assert d.marked() == {f"g-{number}" for number in range(9)}


def test_ranks_follow_the_indices_of_the_controller() -> None:
    d = cluster()
    d.own(job_owner(make_job("train", parallelism=4, completions=4, indexed=True)))
    pods = [of_job(number, created=10 - number) for number in range(4)]
    for number, pod in enumerate(pods):
        pod.metadata.labels["batch.kubernetes.io/job-completion-index"] = str(number)
    d.run(*pods)
    ranks = [pod.metadata.annotations["topology.scheduler/rank"] for pod in pods]
    assert ranks == ["0", "1", "2", "3"]
    assert [pod.spec.node_name for pod in pods] == sorted(pod.spec.node_name for pod in pods)


def test_ranks_without_indices_are_all_different_and_given_again() -> None:
    d = cluster()
    pods = [named(number, 3) for number in range(3)]
    d.run(*pods)
    ranks = {pod.metadata.name: pod.metadata.annotations["topology.scheduler/rank"] for pod in pods}
    assert sorted(ranks.values()) == ["0", "1", "2"]
    lost = pods[1]
    d.delete(lost)
    late = named(7, 3)
    d.run(late)
    assert late.metadata.annotations["topology.scheduler/rank"] == ranks[lost.metadata.name]


def test_the_address_names_the_path_and_the_node() -> None:
    d = cluster()
    pod = make_pod("p", gpus=8)
    d.run(pod)
    assert pod.metadata.annotations["topology.scheduler/address"] == f"s1.l1.{pod.spec.node_name}"


# ---------------------------------------------------------------- who belongs together


def test_one_name_in_two_namespaces_is_two_gangs() -> None:
    d = cluster()
    d.apply(named(0, 2, namespace="a"), named(0, 2, namespace="b"))
    d.step()
    assert d.flight == {}
    d.apply(named(1, 2, namespace="a"))
    d.step()
    assert {bind.pod.namespace for bind in d.flight.values()} == {"a"}


def test_pods_of_one_controller_need_only_the_size() -> None:
    d = cluster()
    for name in ("one", "two"):
        d.own(owner("ReplicaSet", name, {"gang-size": "2"}))
    pods = [make_pod(f"{name}-0", gpus=8, owner=controlled_by("ReplicaSet", name)) for name in ("one", "two")]
    d.apply(*pods)
    d.step()
    assert d.flight == {}, "pods of two controllers are two gangs"
    d.apply(make_pod("one-1", gpus=8, owner=controlled_by("ReplicaSet", "one")))
    d.step()
    assert sorted(bind.pod.name for bind in d.flight.values()) == ["one-0", "one-1"]


def test_a_bare_pod_needs_the_name() -> None:
    d = cluster()
    pod = make_pod("p", gpus=8, annotations={"gang-size": "2"})
    d.apply(pod)
    d.step()
    assert d.flight == {}
    (message,) = d.told(pod)
    assert "gang-name" in message


def test_a_name_without_a_size_is_refused() -> None:
    d = cluster()
    pod = make_pod("p", gpus=8, annotations={"gang-name": "g"})
    d.apply(pod)
    d.step()
    assert d.flight == {}
    assert "gang-size" in d.told(pod)[0]


def test_a_name_joins_pods_of_several_controllers() -> None:
    d = cluster()
    for kind in ("launcher", "worker"):
        d.own(owner("Job", kind, {"gang-name": "mpi", "gang-size": "2"}))
    d.apply(make_pod("launcher-0", owner=controlled_by("Job", "launcher")))
    d.step()
    assert d.flight == {}
    d.apply(make_pod("worker-0", gpus=8, owner=controlled_by("Job", "worker")))
    d.step()
    assert len(d.flight) == 2


def test_a_job_may_opt_out() -> None:
    d = cluster()
    d.own(job_owner(make_job("train", parallelism=4, annotations={"gpu-count": "32", "gang": "false"})))
    d.apply(of_job(0))
    d.step()
    assert len(d.flight) == 1


def test_a_pod_may_opt_out_of_the_gang_its_owner_names() -> None:
    d = cluster()
    d.own(owner("Job", "train", {"gang-name": "g", "gang-size": "4"}))
    d.apply(make_pod("p", owner=controlled_by("Job", "train"), annotations={"gang": "false"}))
    d.step()
    assert len(d.flight) == 1


# ---------------------------------------------------------------- how many they are


@pytest.mark.parametrize(
    ("job", "size"),
    [
        (make_job("train", parallelism=4, annotations={"gpu-count": "32"}), 4),
        (make_job("train", parallelism=4, completions=2, annotations={"gpu-count": "32"}), 2),
        (make_job("train", parallelism=4, completions=6, succeeded=3, annotations={"gpu-count": "32"}), 3),
        (make_job("train", parallelism=4, completions=4, indexed=True), 4),
        (make_job("train", parallelism=4, completions=4, succeeded=1, indexed=True), 3),
        (make_job("train", parallelism=5, completions=5, succeeded=1, failed_indexes="1,3", indexed=True), 2),
        (make_job("train", parallelism=4, completions=4, failed_indexes="0", annotations={"gang-size": "4"}), 3),
        (make_job("train", parallelism=4, completions=4, failed_indexes="x,5-3,-,12345678901", indexed=True), 4),
        (make_job("train", parallelism=2, completions=4, indexed=True), None),
        (make_job("train", parallelism=4, completions=4), None),
        (make_job("train", parallelism=4), None),
        (make_job("train", parallelism=1, annotations={"gpu-count": "8"}), None),
        (make_job("train", parallelism=4, annotations={"gang-size": "3"}), 3),
        (make_job("train", parallelism=4, annotations={"gang-size": "3", "gpu-count": "32"}), 3),
        (make_job("train", parallelism=4, completions=4, succeeded=2, annotations={"gang-size": "4"}), 2),
        (make_job("train", parallelism=4, completions=4, succeeded=1, annotations={"gang-size": "2"}), 2),
    ],
)
def test_the_size_of_a_job(job: Job, size: int | None) -> None:
    d = cluster()
    d.own(job_owner(job))
    d.apply(of_job(0))
    d.step()
    workload = next(iter(d.engine.workloads))
    assert workload.gang is (size is not None)
    assert workload.size == (size or 1)
    assert len(d.flight) == (size is None)


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (make_job("train", parallelism=2, completions=2, indexed=True), "by parallelism 2 and completions 2"),
        (make_job("train", parallelism=4, completions=2), "by parallelism 4 and completions 2"),
        (make_job("train", parallelism=2, completions=9), "by parallelism 2 and completions 9"),
        (make_job("train", parallelism=2), "by parallelism 2"),
        (make_job("train", parallelism=5, completions=5), ""),
        (make_job("train", parallelism=5), ""),
    ],
)
def test_a_gang_that_is_larger_than_its_job_gets_an_event_that_says_so(job: Job, why: str) -> None:
    d = cluster()
    job.metadata.annotations["topology.scheduler/gang-size"] = "5"
    d.own(job_owner(job))
    d.apply(of_job(0), of_job(1))
    d.step()
    d.step(2)
    remedy = "write a topology.scheduler/gang-size of at most 2, or raise these"
    hint = f": its Job makes at most 2 at once, {why}; {remedy}" if why else ""
    assert set(d.told()) == {f"Gang train is waiting for 3 of 5 pods{hint}"}
    job.spec.parallelism = job.spec.completions = 5
    d.own(job_owner(job))
    third = of_job(2)
    d.apply(third)
    d.step()
    d.step(2)
    assert d.told(third) == ["Gang train is waiting for 2 of 5 pods"], "what the Job is now counts"


GANG_OF_3 = {"gang-size": "3"}


def deployed(d: Driver, hash_: str, *numbers: int, annotations: Mapping[str, str] = GANG_OF_3) -> list[Pod]:
    """Pods of a ReplicaSet of the Deployment ``web``."""
    deployment = owner("Deployment", "web", annotations)
    d.own(owner("ReplicaSet", f"web-{hash_}"), deployment)
    controller = controlled_by("ReplicaSet", f"web-{hash_}")
    return [make_pod(f"web-{hash_}-{number}", gpus=8, owner=controller) for number in numbers]


ROLLING = (
    ": a rolling update of its Deployment makes only maxSurge plus maxUnavailable pods (25% each by default) before"
    " these are ready; set its strategy to Recreate, or maxSurge to 100%"
)


def test_a_rolling_update_that_can_not_complete_a_gang_gets_an_event_that_says_so() -> None:
    d = cluster()
    assert len(d.run(*deployed(d, "old", 0, 1, 2))) == 3
    surge = deployed(d, "new", 0)
    d.apply(*surge)
    d.step()
    d.step(1.9)
    assert d.told(surge[0]) == [], "its controller may still make the others"
    d.step(0.1)
    assert d.told(surge[0]) == [f"Gang web-new is waiting for 2 of 3 pods{ROLLING}"]
    d.step(100)
    assert len(d.told(surge[0])) == 1, "once"


def test_new_pods_join_a_named_gang_in_a_rolling_update() -> None:
    d = cluster()
    annotations = {"gang-name": "web", "gang-size": "3"}
    assert len(d.run(*deployed(d, "old", 0, 1, 2, annotations=annotations))) == 3
    assert len(d.run(*deployed(d, "new", 0, annotations=annotations))) == 1


def test_a_replica_set_without_a_deployment_makes_all_its_pods() -> None:
    d = cluster()
    d.own(owner("ReplicaSet", "rs", {"gang-size": "2"}))
    d.apply(make_pod("rs-0", gpus=8, owner=controlled_by("ReplicaSet", "rs")))
    d.step()
    d.step(2)
    assert d.told() == ["Gang rs is waiting for 1 of 2 pods"]


ORDERED = (
    ": its StatefulSet makes one pod after another unless its podManagementPolicy is Parallel; create it again with"
    " Parallel, as the field can't be changed"
)


@pytest.mark.parametrize("annotations", [{"gang-size": "3"}, {"gang-name": "workers", "gang-size": "3"}])
def test_a_stateful_set_that_makes_one_pod_after_another_gets_an_event_that_says_so(
    annotations: dict[str, str],
) -> None:
    d = cluster()
    d.own(owner("StatefulSet", "workers", annotations))
    pods = [make_pod(f"workers-{number}", gpus=8, owner=controlled_by("StatefulSet", "workers")) for number in range(2)]
    d.apply(pods[0])
    d.step()
    d.step(2)
    assert d.told() == [f"Gang workers is waiting for 2 of 3 pods{ORDERED}"]
    d.apply(pods[1])
    d.step()
    d.step(2)
    assert d.told(pods[1]) == ["Gang workers is waiting for 1 of 3 pods"], "it makes several at once"


def test_a_stateful_set_of_another_controller_is_as_that_one_makes_it() -> None:
    d = cluster()
    d.own(owner("StatefulSet", "workers", {"gang-size": "2"}), owner("LeaderWorkerSet", "lws"))
    d.apply(make_pod("workers-0", gpus=8, owner=controlled_by("StatefulSet", "workers")))
    d.step()
    d.step(2)
    assert d.told() == ["Gang workers is waiting for 1 of 2 pods"]


@pytest.mark.parametrize("late_decides", [False, True])
def test_pods_that_ask_for_another_size_of_their_gang_get_one_event(late_decides: bool) -> None:
    d = cluster()
    early = [named(number, 4) for number in (1, 2)]
    late = named(0 if late_decides else 3, 9)
    d.apply(*early)
    d.step()
    d.apply(late)
    d.tell_again(late)
    d.step(10)
    wrong = (
        "annotation topology.scheduler/gang-size is 9 for this pod and 4 for another pod of gang g; the first pending"
        " pod decides, so write the same on all"
    )
    assert d.told(late, Reason.GROUP_CONFLICT) == [wrong]
    assert d.told(early[0], Reason.GROUP_CONFLICT) == []


def test_a_size_that_changes_on_the_owner_is_no_conflict() -> None:
    d = cluster()
    d.own(owner("ReplicaSet", "rs", {"gang-name": "g", "gang-size": "4"}))
    pods = [make_pod(f"rs-{number}", gpus=8, owner=controlled_by("ReplicaSet", "rs")) for number in range(3)]
    d.apply(*pods)
    d.step()
    d.own(owner("ReplicaSet", "rs", {"gang-name": "g", "gang-size": "3"}))
    d.step()
    assert len(d.flight) == 3
    assert d.told(reason=Reason.GROUP_CONFLICT) == []


def test_the_size_is_read_again_when_the_job_changes() -> None:
    d = cluster()
    d.own(job_owner(make_job("train", parallelism=4, completions=4, annotations={"gpu-count": "32"})))
    d.apply(*[of_job(number) for number in range(3)])
    d.step()
    assert d.flight == {}
    d.own(job_owner(make_job("train", parallelism=4, completions=4, succeeded=1, annotations={"gpu-count": "32"})))
    d.step()
    assert len(d.flight) == 3


def test_pods_in_place_of_refused_ones_do_not_wait_for_those_that_succeeded() -> None:
    # A kubelet refuses two of four members, the two others end well before the Job makes new ones.
    d = cluster()
    asked = {"gang-size": "4"}
    d.own(job_owner(make_job("train", parallelism=4, completions=4, annotations=asked)))
    pods = [of_job(number) for number in range(4)]
    assert len(d.run(*pods)) == 4
    for pod in pods[:2]:
        d.finish(pod, "Failed", "OutOfcpu")
    for pod in pods[2:]:
        d.finish(pod)
    again = [of_job(number) for number in range(4, 6)]
    d.apply(*again)
    d.step(10)
    assert d.flight == {}, "how many succeeded is not told yet"
    d.own(job_owner(make_job("train", parallelism=4, completions=4, succeeded=2, annotations=asked)))
    d.settle()
    assert len(d.where(*again)) == 2


def test_the_annotation_on_the_pods_of_a_job_makes_it_no_gang() -> None:
    d = cluster()
    d.own(job_owner(make_job("train", parallelism=4)))
    d.apply(make_pod("p", gpus=8, owner=controlled_by("Job", "train"), annotations={"gpu-count": "8"}))
    d.step()
    assert len(d.flight) == 1


def test_the_size_on_a_deployment_is_that_of_each_replica_set() -> None:
    d = cluster()
    for name in ("web-1", "web-2"):
        d.own(owner("ReplicaSet", name), owner("Deployment", "web", {"gang-size": "2"}))
    d.apply(make_pod("web-1-a", owner=controlled_by("ReplicaSet", "web-1")))
    d.apply(make_pod("web-2-a", owner=controlled_by("ReplicaSet", "web-2")))
    d.step()
    assert d.flight == {}
    d.apply(make_pod("web-1-b", owner=controlled_by("ReplicaSet", "web-1")))
    d.step()
    assert {bind.pod.name for bind in d.flight.values()} == {"web-1-a", "web-1-b"}


# ---------------------------------------------------------------- more pods than the size, or fewer


def test_the_size_is_placed_and_the_rest_as_room_comes() -> None:
    d = Driver(fabric({"s1/l1": 4}))
    pods = [named(number, 2) for number in range(6)]
    placed = d.run(*pods)
    assert len(placed) == 4, "two are the gang, two more find room"
    rest = [pod for pod in pods if not pod.spec.node_name]
    assert d.marked() == {pod.metadata.name for pod in rest} or d.marked() == {pod.metadata.name for pod in pods}
    d.delete(next(pod for pod in pods if pod.spec.node_name))
    d.settle()
    assert sum(bool(pod.spec.node_name) for pod in rest) == 1


def test_members_lost_by_a_gang_that_ran_whole_are_placed_one_by_one() -> None:
    d = Driver(fabric({"s1/l1": 4}))
    pods = [named(number, 4) for number in range(4)]
    d.run(*pods)
    d.delete(*pods[:2])
    other = make_pod("other", gpus=8)
    d.run(other)
    late = [named(number, 4) for number in (10, 11)]
    placed = d.run(*late)
    assert len(placed) == 1, "there is room for one of them, and the rest of the gang runs"
    d.finish(other)
    d.settle()
    assert all(pod.spec.node_name for pod in late)


def test_a_gang_that_lost_all_its_members_is_placed_all_or_none_again() -> None:
    """The new pods come before the last of the old ones is gone, as Jobs make them."""
    d = Driver(fabric({"s1/l1": 2}))
    pods, late = [named(number, 2) for number in range(2)], [named(number, 2) for number in (10, 11)]
    d.run(*pods)
    other = make_pod("other", gpus=8, scheduler="other", node=pods[0].spec.node_name)
    d.delete(pods[0])
    d.apply(other, *late)
    d.delete(pods[1])
    d.settle()
    assert d.where(*late) == {}, "there is room for one of two"
    d.delete(other)
    d.settle()
    assert len(d.where(*late)) == 2


@pytest.mark.parametrize("early", [True, False], ids=["new ones come first", "old ones go first"])
def test_while_all_members_end_the_next_ones_are_placed_all_or_none(early: bool) -> None:
    """A user deleted all pods of a gang: the new ones are no replacements beside others that run on."""
    d = Driver(fabric({"s1/l1": 5}))
    pods, late = [named(number, 3) for number in range(3)], [named(number, 3) for number in (10, 11, 12)]
    d.run(*pods)

    def end(*ending: Pod) -> None:
        for pod in ending:
            pod.metadata.deletion_timestamp = timestamp(d.now)
        d.apply(*ending)

    if early:
        end(*pods[:2])
        d.apply(*late[:2])
        end(pods[2])
        d.apply(late[2])
    else:
        end(*pods)
        d.apply(*late)
    d.settle()
    assert d.where(*late) == {}, "two nodes are free"
    d.delete(pods[0])
    d.settle()
    assert len(d.where(*late)) == 3
    ranks = [pod.metadata.annotations["topology.scheduler/rank"] for pod in late]
    assert sorted(ranks) == ["0", "1", "2"]


def test_what_ends_is_not_taken_for_the_rest_of_a_gang_after_a_restart() -> None:
    d = Driver(fabric({"s1/l1": 4}))
    pods, late = [named(number, 3) for number in range(3)], [named(number, 3) for number in (10, 11, 12)]
    d.run(*pods)
    for pod in pods:
        pod.metadata.deletion_timestamp = timestamp(d.now)
    after = Driver(fabric({"s1/l1": 4}))
    after.apply(*pods[:1], *late, *pods[1:])
    after.settle()
    assert after.where(*late) == {}, "one node is free"
    after.delete(*pods)
    after.settle()
    assert len(after.where(*late)) == 3


def test_while_one_member_ends_its_replacement_goes_beside_the_others() -> None:
    d = Driver(fabric({"s1/l1": 4, "s2/l1": 4}))
    pods = [named(number, 3) for number in range(3)]
    d.run(*pods)
    pods[0].metadata.deletion_timestamp = timestamp(d.now)
    d.apply(pods[0])
    late = named(9, 3)
    d.run(late)
    assert late.spec.node_name[:5] == pods[1].spec.node_name[:5]


def test_a_lost_member_is_placed_next_to_the_others() -> None:
    d = Driver(fabric({"s1/l1": 4, "s2/l1": 4}))
    pods = [named(number, 3) for number in range(3)]
    d.run(*pods)
    leaf = {pod.spec.node_name[:5] for pod in pods}
    d.finish(pods[0], "Failed")
    late = named(9, 3)
    d.run(late)
    assert {late.spec.node_name[:5]} == leaf


def test_a_lost_member_does_not_wait_for_others_that_never_come() -> None:
    d = Driver(fabric({"s1/l1": 4}))
    pods = [named(number, 4) for number in range(4)]
    d.run(*pods)
    d.delete(*pods[:2])
    assert d.run(named(9, 4))


def _one_failed_while_the_others_were_being_bound() -> tuple[Driver, list[Pod]]:
    d = Driver(fabric({"s1/l1": 4}))
    pods = [named(number, 4) for number in range(4)]
    d.apply(*pods)
    d.step()
    d.answer(pods[0].metadata.uid)
    d.finish(pods[0], "Failed")
    d.settle()
    return d, pods


def test_a_gang_of_which_a_member_failed_while_others_were_being_bound_is_completed_by_its_replacement() -> None:
    d, pods = _one_failed_while_the_others_were_being_bound()
    assert d.run(named(9, 4))
    d.delete(pods[1])
    assert d.run(named(10, 4)), "it ran whole with the replacement, so that a lost member is replaced alone"


def test_a_gang_of_which_a_member_failed_while_others_were_being_bound_does_not_stay_half() -> None:
    d, pods = _one_failed_while_the_others_were_being_bound()
    for _ in range(10):
        d.settle(1)
    assert sorted(d.evicted()) == sorted(pod.metadata.name for pod in pods[1:])


def test_a_gang_that_is_done_is_forgotten() -> None:
    d = Driver(fabric({"s1/l1": 4}))
    pods = [named(number, 2) for number in range(2)]
    d.run(*pods)
    for pod in pods:
        d.finish(pod)
    d.settle()
    assert len(d.engine.workloads) == len(d.engine.queue) == len(d.engine.world.ledger) == 0
    d.apply(named(0, 2))
    d.step()
    assert d.flight == {}, "a gang of the same name later is another one"


def test_pods_that_move_to_another_gang_leave_nothing_behind() -> None:
    d = cluster()
    pods = [named(number, 9, name="old") for number in range(9)]
    d.apply(*pods)
    d.step()
    assert d.engine.queue.place("default/old") is Place.UNSCHEDULABLE
    for pod in pods:
        pod.metadata.annotations |= named(0, 4, name="new").metadata.annotations
    d.apply(*pods)
    assert len(d.settle()) > 0
    assert d.engine.queue.place("default/old") is None
    assert d.engine.workloads.get("default/old") is None


# ---------------------------------------------------------------- priorities


def test_the_higher_priority_goes_first_then_the_older() -> None:
    d = Driver(fabric({"s1/l1": 1}))
    pods = [
        make_pod("late", gpus=8, priority=5, created=9),
        make_pod("low", gpus=8, priority=1, created=0),
        make_pod("early", gpus=8, priority=5, created=3),
    ]
    d.apply(*pods)
    for expected in ("early", "late", "low"):
        d.step()
        (uid,) = d.flight
        assert d.pods[uid].metadata.name == expected
        d.answer(uid)
        d.finish(d.pods[uid])


def test_a_gang_goes_with_the_priority_of_its_least_member() -> None:
    d = Driver(fabric({"s1/l1": 2}))
    gang = [named(number, 2) for number in range(2)]
    gang[0].spec.priority = 100
    d.apply(*gang, make_pod("p", gpus=8, priority=1, created=50))
    d.step()
    assert [bind.pod.name for bind in d.binds()] == ["p"]


def test_a_gang_without_room_does_not_hold_up_those_behind_it() -> None:
    d = cluster()
    d.apply(*[named(number, 9) for number in range(9)])
    small = make_pod("small", gpus=8, created=100)
    d.apply(small)
    d.step()
    assert [bind.pod.name for bind in d.binds()] == ["small"]
    verdicts = [decision.verdict for decision in d.decisions()]
    assert verdicts == [Verdict.UNSCHEDULABLE, Verdict.PLACED]


def test_stages_follow_what_happens() -> None:
    d = cluster()
    pod = make_pod("p", gpus=8)
    d.apply(pod)

    def stage() -> Stage:
        entry = d.engine.workloads.of_pod(pod.metadata.uid)
        assert entry is not None
        return entry[1].stage

    assert stage() is Stage.PENDING
    d.step()
    assert stage() is Stage.ASSUMED
    d.answer(pod.metadata.uid, BindOutcome.REJECTED)
    assert stage() is Stage.PENDING
    d.step(60)
    d.answer(pod.metadata.uid)
    d.step()
    assert stage() is Stage.BOUND
    assert d.told(pod, Reason.SCHEDULED)
