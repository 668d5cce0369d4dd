"""Ranks: from the numbers controllers give, through the whole gang, in order along the network."""

from collections.abc import Mapping

import pytest

from tests.helpers import controlled_by, in_group, make_group, make_pod, owner
from tests.scheduling.driver import Driver, fabric
from topo_scheduler.api.objects import Pod
from topo_scheduler.scheduling.intake.ranks import place_in_series

JOB = "batch.kubernetes.io/job-completion-index"
GLOBAL = "jobset.sigs.k8s.io/job-global-index"
TYPE, REPLICA = "training.kubeflow.org/replica-type", "training.kubeflow.org/replica-index"
TASK, TASK_INDEX = "volcano.sh/task-spec", "volcano.sh/task-index"
CLIQUE, CLIQUE_INDEX = "grove.io/podclique", "grove.io/podclique-pod-index"


@pytest.mark.parametrize(
    ("labels", "series", "index"),
    [
        ({JOB: "3"}, (0, "c"), 3),
        ({"apps.kubernetes.io/pod-index": "4"}, (0, "c"), 4),
        ({GLOBAL: "2", JOB: "3"}, (2, ""), 3),
        ({"leaderworkerset.sigs.k8s.io/worker-index": "0", "apps.kubernetes.io/pod-index": "7"}, (0, ""), 0),
        ({TYPE: "Master", REPLICA: "0"}, (0, "master"), 0),
        ({TYPE: "ps", REPLICA: "1"}, (1, "ps"), 1),
        ({TYPE: "worker", REPLICA: "1"}, (2, "worker"), 1),
        ({"training.kubeflow.org/job-role": "launcher"}, (0, "launcher"), 0),
        ({TASK: "worker", TASK_INDEX: "5"}, (2, "worker"), 5),
        ({CLIQUE: "decode", CLIQUE_INDEX: "6"}, (0, "decode"), 6),
        ({}, (0, ""), None),
        ({JOB: "many"}, (0, ""), None),
        ({JOB: "-1"}, (0, ""), None),
        ({JOB: "٣"}, (0, ""), None),
        ({JOB: "1" * 12}, (0, ""), None),
    ],
)
def test_the_number_that_a_controller_gives(
    labels: Mapping[str, str], series: tuple[int, str], index: int | None
) -> None:
    by = controlled_by("Job", "c")
    assert place_in_series(make_pod("p", labels=labels, owner=by)) == (series, index)
    annotated = make_pod("p", owner=by)
    annotated.metadata.annotations |= labels
    assert place_in_series(annotated) == (series, index)


def ranks(*pods: Pod) -> dict[str, int]:
    return {pod.metadata.name: int(pod.metadata.annotations["topology.scheduler/rank"]) for pod in pods}


def member(name: str, labels: Mapping[str, str], *, gpus: int = 8, job: str = "", **more: object) -> Pod:
    by = controlled_by("ReplicaSet", job) if job else None
    return in_group(make_pod(name, gpus=gpus, labels=labels, owner=by, **more), "g")  # type: ignore[arg-type]


def placed(d: Driver, *pods: Pod) -> list[str]:
    for pod in pods:
        if pod.metadata.controller is not None:
            d.own(owner("ReplicaSet", pod.metadata.controller.name))
    where = d.run(*pods)
    return [where[pod.metadata.name] for pod in pods]


def test_the_jobs_of_a_jobset_are_numbered_through() -> None:
    d = Driver(fabric({"s1/l1": 2, "s1/l2": 2, "s1/l3": 2}))
    d.groups(make_group("g", 6))
    made = [member(f"{job}-{n}", {GLOBAL: str(job), JOB: str(n)}, job=f"j{job}") for job in range(3) for n in range(2)]
    where = placed(d, *reversed(made))
    assert where == sorted(where, reverse=True), "neighbouring ranks on neighbouring nodes"
    assert [ranks(*made)[pod.metadata.name] for pod in made] == list(range(6))


def test_the_master_is_rank_0_and_the_workers_follow() -> None:
    d = Driver(fabric({"s1/l1": 4}))
    d.groups(make_group("g", 4))
    master = member("master", {TYPE: "master", REPLICA: "0"}, gpus=4)
    workers = [member(f"w{n}", {TYPE: "worker", REPLICA: str(n)}) for n in range(3)]
    where = placed(d, *workers, master)
    assert ranks(master, *workers) == {"master": 0, "w0": 1, "w1": 2, "w2": 3}
    assert where[:3] == sorted(where[:3])


def test_numbers_that_do_not_meet_are_kept() -> None:
    d = Driver(fabric({"s1/l1": 4}))
    d.groups(make_group("g", 3))
    made = [
        member(name, {JOB: index}, job=job) for name, index, job in (("a", "4", "x"), ("b", "2", "y"), ("c", "9", "y"))
    ]
    placed(d, *made)
    assert ranks(*made) == {"a": 4, "b": 2, "c": 9}


def test_a_lost_member_has_its_rank_again() -> None:
    d = Driver(fabric({"s1/l1": 5}))
    d.groups(make_group("g", 4))
    made = [member(f"{job}-{n}", {GLOBAL: str(job), JOB: str(n)}, job=f"j{job}") for job in range(2) for n in range(2)]
    placed(d, *made)
    d.delete(made[2])
    again = member("again", {GLOBAL: "1", JOB: "0"}, job="j1")
    placed(d, again)
    assert ranks(again) == {"again": 2}


def test_members_without_numbers_are_numbered_along_the_network_whatever_they_ask() -> None:
    d = Driver(fabric({"s1/l1": 2, "s1/l2": 2}))
    d.groups(make_group("g", 6))
    made = [member(f"big-{n}", {}, created=n) for n in range(2)]
    made += [member(f"small-{n}", {}, gpus=4, created=n) for n in range(4)]
    where = d.run(*made)
    order = sorted(made, key=lambda pod: ranks(pod)[pod.metadata.name])
    nodes = [where[pod.metadata.name] for pod in order]
    assert nodes == sorted(nodes)
    assert sorted(ranks(*made).values()) == list(range(6))


def test_each_member_gets_its_address() -> None:
    d = Driver(fabric({"s1/l1": 2}))
    d.groups(make_group("g", 2))
    made = [member(f"w{n}", {TYPE: "worker", REPLICA: str(n)}) for n in range(2)]
    placed(d, *made)
    assert [pod.metadata.annotations["topology.scheduler/address"] for pod in made] == [
        f"s1.l1.{pod.spec.node_name}" for pod in made
    ]
