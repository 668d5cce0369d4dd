"""Nodes that are reserved for pods yet to be made: which pods they keep off, and which get them."""

from dataclasses import replace

from tests.helpers import Owner, controlled_by, make_node, make_pod
from tests.scheduling.driver import Driver, fabric
from topo_scheduler.api.objects import Pod
from topo_scheduler.scheduling.reserving.replacements import ReservedSeat

SEAT = ReservedSeat(
    migration="default/m",
    pod="old",
    node="s1-l1-2",
    namespace="default",
    workload="default/g",
    controller="Job g",
    gang=True,
    index=1,
    priority=0,
    requests=(("gpu", 8), ("nvidia.com/gpu", 8), ("cpu", 1000), ("pods", 1)),
)


def _gang(d: Driver, name: str = "g", **annotations: str) -> list[Pod]:
    d.own(Owner("Job", name, uid=f"uid-{name}"))
    return [
        make_pod(
            f"{name}-{n}",
            gpus=8,
            owner=controlled_by("Job", name),
            annotations={"gang-name": name, "gang-size": "2"} | annotations,
            labels={"batch.kubernetes.io/job-completion-index": str(n)},
            created=n,
        )
        for n in range(2)
    ]


def _driver(leaves: dict[str, int]) -> Driver:
    d = Driver(fabric(leaves))
    d.engine.budgets_known()
    return d


def test_others_of_equal_priority_do_not_get_it_and_those_of_higher_do() -> None:
    d = _driver({"s1/l1": 2})
    d.engine.seats_kept("default/m", [SEAT])
    low, high = make_pod("low", gpus=8), make_pod("high", gpus=8, priority=5)
    blocker = make_pod("blocker", gpus=8)
    assert d.run(blocker) == {"blocker": "s1-l1-1"}
    assert d.run(low) == {}
    assert d.run(high) == {"high": "s1-l1-2"}


def test_the_reason_of_a_pending_pod_counts_the_nodes_that_only_seats_keep_from_it() -> None:
    """A Job may take minutes to make the replacements. Until then their nodes look free."""
    d = _driver({"s1/l1": 3})
    d.engine.seats_kept("default/m", [SEAT, replace(SEAT, pod="other", index=0, node="s1-l1-3")])
    blocker, low = make_pod("blocker", gpus=8), make_pod("low", gpus=8)
    assert d.run(blocker) == {"blocker": "s1-l1-1"}
    assert d.run(low) == {}
    said = "2 node(s) with room reserved for replacements of moved pods."
    assert said in d.told(low)[-1]
    d.apply(make_pod("taken", gpus=8, node="s1-l1-3", scheduler="other"))
    late = make_pod("late", gpus=4)
    assert d.run(late) == {}
    assert said.replace("2", "1", 1) in d.told(late)[-1]


def test_once_given_back_a_node_is_free_for_all_and_pending_pods_are_woken() -> None:
    d = _driver({"s1/l1": 2})
    d.engine.seats_kept("default/m", [SEAT])
    pods = [make_pod(f"p{n}", gpus=8) for n in range(2)]
    assert len(d.run(*pods)) == 1
    d.engine.seats_kept("default/m", [])
    d.settle()
    assert len(d.where(*pods)) == 2
    assert not d.engine.preempting.replacements


def test_the_replacement_of_its_index_takes_it_though_another_node_is_as_good() -> None:
    d = _driver({"s1/l1": 4})
    pods = _gang(d)
    where = d.run(*pods)
    seat = next(name for name in ("s1-l1-4", "s1-l1-3") if name not in where.values())
    d.engine.seats_kept("default/m", [replace(SEAT, pod=pods[1].metadata.uid, node=seat)])
    d.delete(pods[1])
    fresh = _gang(d)[1]
    fresh.metadata.name = "g-1-again"
    assert d.run(fresh) == {"g-1-again": seat}
    assert not d.engine.preempting.replacements
    assert d.decisions()[-1].sentence.endswith("on the nodes that were reserved for them")


def test_a_seat_of_a_gang_in_an_accelerator_domain_across_leaves() -> None:
    """With accelerator domains there are more leaves than people know."""
    nodes = [
        make_node(f"{leaf}{n}", f"s1/{leaf}", labels={"nvidia.com/gpu.clique": f"x.{n % 2}"})
        for leaf in "ab"
        for n in range(4)
    ]
    d = Driver(nodes)
    d.engine.budgets_known()
    d.apply(*(make_pod(f"taken-{node}", gpus=8, node=node, scheduler="other") for node in ("a0", "a2", "b0", "b2")))
    level = {"topology.scheduler/required-level": "accelerator-domain"}
    pods = _gang(d, **level)
    assert set(d.run(*pods).values()) == {"a1", "a3"}
    d.engine.seats_kept("default/m", [replace(SEAT, pod=pods[1].metadata.uid, node="b3")])
    d.delete(pods[1])
    fresh = _gang(d, **level)[1]
    fresh.metadata.name = "g-1-again"
    assert d.run(fresh) == {"g-1-again": "b3"}
    assert d.decisions()[-1].leaves == (("s1", "a"), ("s1", "b"))


def test_another_index_does_not_take_it() -> None:
    d = _driver({"s1/l1": 4})
    pods = _gang(d)
    d.run(*pods)
    d.engine.seats_kept("default/m", [replace(SEAT, index=7, node="s1-l1-4")])
    d.delete(pods[1])
    fresh = _gang(d)[1]
    fresh.metadata.name = "g-1-again"
    assert len(d.run(fresh)) == 1
    assert d.engine.preempting.replacements.holds("seat:default/m:old")


def test_a_reserved_node_that_can_not_be_used_any_more_keeps_no_pod_waiting() -> None:
    d = _driver({"s1/l1": 3})
    pods = _gang(d)
    where = d.run(*pods)
    d.engine.seats_kept("default/m", [replace(SEAT, node="nowhere")])
    d.delete(pods[1])
    fresh = _gang(d)[1]
    fresh.metadata.name = "g-1-again"
    (node,) = d.run(fresh).values()
    assert node != where["g-0"]


def test_pods_alone_are_known_by_their_controller() -> None:
    d = _driver({"s1/l1": 2})
    d.own(Owner("ReplicaSet", "web", uid="uid-web"))
    seat = replace(SEAT, workload="pod-x", controller="ReplicaSet web", gang=False, index=None)
    d.engine.seats_kept("default/m", [seat])
    other = make_pod("other", gpus=8)
    blocker = make_pod("blocker", gpus=8)
    assert d.run(blocker) == {"blocker": "s1-l1-1"}
    assert d.run(other) == {}
    mine = make_pod("web-x", gpus=8, owner=controlled_by("ReplicaSet", "web"))
    assert d.run(mine) == {"web-x": "s1-l1-2"}


def test_each_replacement_takes_the_seat_of_its_own_index_whichever_comes_first() -> None:
    """Both seats are of one gang and equally good; only the index says which is whose."""
    d = _driver({"s1/l1": 4})
    pods = _gang(d)
    where = d.run(*pods)
    free = sorted({f"s1-l1-{n}" for n in range(1, 5)} - set(where.values()))
    for seats in (free, free[::-1]):
        held = [
            replace(SEAT, pod=pod.metadata.uid, node=node, index=n)
            for n, (pod, node) in enumerate(zip(pods, seats, strict=True))
        ]
        d.engine.seats_kept("default/m", held)
        known = [d.engine.workloads.of_pod(pod.metadata.uid) for pod in reversed(pods)]
        members = [member for _, member in filter(None, known)]
        (gang,) = {workload.id: workload for workload, _ in filter(None, known)}.values()
        rows = d.engine.world.nodes.row_of
        assigned = d.engine.preempting.replacements.rows_for(gang, members)
        assert assigned == {pod.metadata.uid: rows[node] for pod, node in zip(pods, seats, strict=True)}
        d.engine.seats_kept("default/m", [])


def test_members_of_two_jobs_with_the_same_index_take_the_seat_of_their_own_job() -> None:
    """The seats differ in size: the pods of one Job need a whole node."""
    d = _driver({"s1/l1": 2, "s1/l2": 2})
    pods = []
    for job, gpus in enumerate((8, 4)):
        d.own(Owner("Job", f"g-{job}", uid=f"uid-g-{job}"))
        annotations, owner = {"gang-name": "g", "gang-size": "2"}, controlled_by("Job", f"g-{job}")
        index = {"batch.kubernetes.io/job-completion-index": "0"}
        pods.append(make_pod(f"g-{job}-0", gpus=gpus, owner=owner, annotations=annotations, labels=index))
    d.apply(*pods)
    members = [known[1] for pod in pods if (known := d.engine.workloads.of_pod(pod.metadata.uid)) is not None]
    gang = next(iter(d.engine.workloads))
    assert [member.index for member in members] == [0, 0]
    rows = d.engine.world.nodes.row_of
    for nodes in (("s1-l1-1", "s1-l1-2"), ("s1-l1-2", "s1-l1-1")):
        seats = zip(members, nodes, (8, 4), reversed("ab"), strict=True)
        held = [
            replace(SEAT, pod=id_, node=node, index=0, series=member.known_series, requests=(("nvidia.com/gpu", gpus),))
            for member, node, gpus, id_ in seats
        ]
        d.engine.seats_kept("default/m", held)
        assigned = d.engine.preempting.replacements.rows_for(gang, members)
        assert assigned == {member.uid: rows[node] for member, node in zip(members, nodes, strict=True)}
    d.settle()
    taken = d.engine.preempting.replacements.taken
    assert taken == {"seat:default/m:b": members[0].uid, "seat:default/m:a": members[1].uid}


def test_members_that_others_deleted_stay_near_the_rest_and_the_whole_gang_moves_once_that_is_deleted_too() -> None:
    """No Migration holds seats for them, so that other workloads may take their nodes."""
    d = _driver({"s1/l1": 2, "s1/l2": 2})
    pods = _gang(d)
    before = d.run(*pods)
    leaf = before["g-0"][:5]
    d.delete(pods[1])
    d.apply(make_pod("taken", gpus=8, node=before["g-1"], scheduler="other"))
    again = _gang(d)
    for pod in again:
        pod.metadata.name = pod.metadata.uid = f"{pod.metadata.name}-again"
    assert d.run(again[1]) == {}
    d.delete(pods[0])
    after = d.run(again[0])
    assert len(d.where(*again)) == 2
    assert {node[:5] for node in d.where(*again).values()}.isdisjoint({leaf}), after
