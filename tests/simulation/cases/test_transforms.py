"""What can be done to workloads and clusters, on small ones and for any numbers."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topo_scheduler.api.objects import Job, Pod, Quantity
from topo_scheduler.simulation.cases.amounts import arrival_milli, capacity_milli, pod_milli
from topo_scheduler.simulation.cases.model import Arrival, CaseError, ClusterCase, WorkloadCase
from topo_scheduler.simulation.cases.object_factory import TracedJob, make_arrival, make_pod, shape
from topo_scheduler.simulation.cases.reading import check_sizes, read_cluster, read_workload
from topo_scheduler.simulation.cases.transforms import (
    enlarge,
    fill,
    first_arrivals,
    limit_gpus,
    offered_load,
    renamed_copy,
    repeat,
    with_load,
)
from topo_scheduler.simulation.cases.what_if import place_of, what_if

STREAM = "poisson:rate=60/h,jobs=200,sizes=1:0.5|8:0.3|64:0.2,duration=lognormal:mean=2h,sigma=1.5"


def small() -> ClusterCase:
    """Two spines with two leaves of four nodes with eight GPUs each."""
    return read_cluster("leaf-spine:spines=2,leaves=2,nodes=4,gpus=8")


def jobs(*gpus: int) -> WorkloadCase:
    """Jobs of so many GPUs, one a minute, an hour each."""
    made = [make_arrival(TracedJob(f"j{n}", 60.0 * n, 3600.0, size), 8) for n, size in enumerate(gpus)]
    return WorkloadCase("made up", tuple(made))


def told(workload: WorkloadCase) -> list[tuple[str, float, float | None, int]]:
    return [(arrival.name, arrival.at, arrival.seconds, arrival_milli(arrival)) for arrival in workload.arrivals]


# ---------------------------------------------------------------- generators


def test_a_leaf_spine_cluster() -> None:
    cluster = read_cluster("leaf-spine:spines=8,leaves=16,nodes=16,gpus=8")
    assert len(cluster.nodes) == 8 * 16 * 16
    assert len({place_of(node) for node in cluster.nodes}) == 128
    assert capacity_milli(cluster.nodes) == 2048 * 8000


def test_the_same_seed_makes_the_same_workload() -> None:
    first, same, other = (read_workload(STREAM, seed) for seed in (1, 1, 2))
    assert first == same
    assert told(first) != told(other)
    assert {arrival_milli(arrival) for arrival in first.arrivals} == {1000, 8000, 64_000}


@pytest.mark.parametrize(
    ("duration", "mean"),
    [
        ("2h", 7200.0),
        ("exponential:mean=2h", 7200.0),
        ("lognormal:mean=2h,sigma=0.5", 7200.0),
        ("lognormal:mean=2h,duration-cv=0.5", 7200.0),
        ("uniform:low=1h,high=3h", 7200.0),
    ],
)
@pytest.mark.parametrize("arrivals", ["poisson:rate=60/h", "gamma:rate=60/h,cv=2"])
def test_stated_moments_hold(arrivals: str, duration: str, mean: float) -> None:
    workload = read_workload(f"{arrivals},jobs=4000,duration={duration}", 3)
    lasts = [arrival.seconds or 0.0 for arrival in workload.arrivals]
    assert sum(lasts) / len(lasts) == pytest.approx(mean, rel=0.05)
    assert workload.arrivals[-1].at / len(lasts) == pytest.approx(60, rel=0.1)


@pytest.mark.parametrize(
    "arrivals", ["poisson:rate=20000/s", "gamma:rate=20000/s,cv=2", "gamma:rate=20000/s,cv=1e-200"]
)
def test_stated_moments_hold_of_what_takes_milliseconds(arrivals: str) -> None:
    workload = read_workload(f"{arrivals},jobs=20000,duration=exponential:mean=500ms", 3)
    lasts = [arrival.seconds or 0.0 for arrival in workload.arrivals]
    assert sum(lasts) / len(lasts) == pytest.approx(0.5, rel=0.05)
    assert workload.arrivals[-1].at == pytest.approx(1.0, rel=0.05)


def test_parameters_stand_in_any_order_with_spaces_between_them() -> None:
    told_first = told(read_workload("poisson:rate=1/m,jobs=5,duration=lognormal:mean=2h,sigma=1.5"))
    assert told(read_workload("poisson: jobs=5, duration=lognormal:sigma=1.5, mean=2h, rate=1/m")) == told_first


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("poisson:rate=60,duration=1h", "rate: '60' is no rate; write jobs a second"),
        ("poisson:duration=1h", "rate is missing"),
        ("poisson:rate=1/h,duration=gauss:mean=1h", "duration: 'gauss:mean=1h' is none"),
        ("poisson:rate=1/h,duration=lognormal:sigma=1", "the duration has no mean"),
        ("poisson:rate=1/h,duration=-1h", "is negative"),
        ("poisson:rate=1/h,duration=1h,size=1:1", "unknown option 'size'; did you mean sizes?"),
        ("poisson:rate=1/h,duration=1h,sizes=0:1", "'0' is not a whole number from 1"),
        ("poisson:rate=1/h,duration=1h@lod=0.9", "unknown option 'lod'; did you mean load?"),
        ("poisson:rate=1/h,duration=1h@load=0.9", "name a cluster too"),
        ("poisson:rate=1/h,rate=2/h,duration=1h", "rate is given twice"),
        ("poisson:rate=1/h,duration=exponential:mean=1h,mean=2h", "mean is given twice"),
        ("poisson:rate=1/h,duration=lognormal:mean=1h,sigma=1,duration-cv=2", "sigma and duration-cv both set"),
        (
            "poisson:rate=1/h,duration=exponential:sigma=1,mean=2h",
            "exponential durations have no 'sigma'; there are mean",
        ),
        ("poisson:rate=1/h,duration=lognormal:mean=1h,sigma=20", "'20' is not a number above 0 and up to 10"),
    ],
)
def test_wrong_parameters_are_reported(spec: str, says: str) -> None:
    with pytest.raises(CaseError) as error:
        read_workload(spec)
    assert says in str(error.value)


# ---------------------------------------------------------------- workloads


@given(st.integers(1, 5000), st.integers(1, 16))
def test_a_job_has_all_its_gpus_in_pods_alike(gpus: int, node_gpus: int) -> None:
    members, each = shape(gpus, node_gpus)
    assert members * each == gpus
    assert 1 <= each <= node_gpus


def test_jobs_of_more_than_a_node_are_gangs_of_an_indexed_job() -> None:
    single, gang = jobs(8, 24).arrivals
    assert (len(single.pods), len(single.owners)) == (1, 0)
    (owner,) = gang.owners.values()
    assert isinstance(owner, Job)
    assert (owner.spec.parallelism, owner.spec.completion_mode) == (3, "Indexed")
    indexes = [pod.metadata.annotations["batch.kubernetes.io/job-completion-index"] for pod in gang.pods]
    assert indexes == ["0", "1", "2"]


def test_larger_gangs() -> None:
    before = jobs(1, 4, 8, 16)
    after = enlarge(before, small(), 8)
    assert [arrival_milli(arrival) for arrival in after.arrivals] == [
        8 * arrival_milli(arrival) for arrival in before.arrivals
    ]
    assert [len(arrival.pods) for arrival in after.arrivals] == [1, 4, 8, 16]
    assert [arrival.pods[0].spec.containers[0].resources.requests["cpu"] for arrival in after.arrivals] == [
        "32000m"
    ] * 4
    assert {pod_milli(pod) for arrival in after.arrivals for pod in arrival.pods} == {8000}
    uids = [pod.metadata.uid for arrival in after.arrivals for pod in arrival.pods]
    assert len(set(uids)) == len(uids)
    assert told(before) == told(jobs(1, 4, 8, 16))


def test_shares_and_pods_without_gpus_do_not_grow() -> None:
    share = make_pod("share", {"cpu": "1"}, share=500)
    workload = WorkloadCase("w", (Arrival("share", 0.0, None, (share,)),))
    assert enlarge(workload, small(), 8) == workload


def test_first_at_most_and_repeated() -> None:
    workload = jobs(1, 64, 8)
    assert [arrival.name for arrival in first_arrivals(workload, 2).arrivals] == ["j0", "j1"]
    assert [arrival.name for arrival in limit_gpus(workload, 8).arrivals] == ["j0", "j2"]
    twice = repeat(workload, 2)
    assert [(arrival.name, arrival.at) for arrival in twice.arrivals] == [
        ("j0", 0.0),
        ("j1", 60.0),
        ("j2", 120.0),
        ("j0-run-2", 180.0),
        ("j1-run-2", 240.0),
        ("j2-run-2", 300.0),
    ]
    assert offered_load(repeat(workload, 30), small()) == pytest.approx(offered_load(workload, small()), rel=0.5)


def test_time_counts_from_the_first_arrival() -> None:
    early = jobs(1, 8, 1)
    late = replace(early, arrivals=tuple(replace(arrival, at=arrival.at + 600) for arrival in early.arrivals))
    assert offered_load(late, small()) == offered_load(early, small())
    assert offered_load(with_load(late, small(), 0.5), small()) == pytest.approx(0.5)
    assert [arrival.at for arrival in repeat(late, 2).arrivals] == [600.0, 660.0, 720.0, 780.0, 840.0, 900.0]


def test_a_renamed_copy_is_another_job_of_the_same_kind() -> None:
    (original,) = jobs(16).arrivals
    other = renamed_copy(original, "again")
    assert arrival_milli(other) == arrival_milli(original)
    assert not {pod.metadata.uid for pod in original.pods} & {pod.metadata.uid for pod in other.pods}
    assert not original.owners.keys() & other.owners.keys()
    assert all(pod.metadata.controller and pod.metadata.controller.uid in other.owners for pod in other.pods)
    other.pods[0].spec.node_name = "somewhere"
    assert not original.pods[0].spec.node_name


@given(
    st.lists(st.sampled_from([0, 250, 500, 1000, 2000, 8000]), min_size=1, max_size=30).filter(any),
    st.integers(0, 5),
    st.sampled_from([0.4, 1.0, 1.3, 2.0]),
)
def test_filled_until_so_much_is_asked(milli: list[int], seed: int, ratio: float) -> None:
    capacity = 40_000
    workload = WorkloadCase(
        "list", tuple(Arrival(f"p{n}", 5.0, 60.0, (_pod(n, amount),)) for n, amount in enumerate(milli))
    )
    order = fill(workload, capacity, ratio, seed)
    assert order == fill(workload, capacity, ratio, seed)
    asked = sum(arrival_milli(arrival) for arrival in order.arrivals)
    # Their tools compare with what the next asks of one GPU: the last may reach beyond by the others.
    assert asked <= ratio * capacity + 7000
    if sum(milli) < ratio * capacity:
        assert asked > ratio * capacity - 1000
        assert {arrival.name for arrival in workload.arrivals} <= {arrival.name for arrival in order.arrivals}
    else:
        assert {arrival.name for arrival in order.arrivals} <= {arrival.name for arrival in workload.arrivals}
    assert all(arrival.seconds is None for arrival in order.arrivals)
    assert len({arrival.name for arrival in order.arrivals}) == len(order.arrivals)


def _pod(number: int, milli: int) -> Pod:
    requests: dict[str, Quantity] = {"cpu": "1"}
    if milli >= 1000:
        requests["nvidia.com/gpu"] = str(milli // 1000)
    return make_pod(f"p{number}", requests, share=milli if milli < 1000 else 0)


def test_the_order_of_a_fill_does_not_depend_on_that_of_the_list() -> None:
    workload = jobs(1, 2, 4, 8)
    backward = WorkloadCase("made up", tuple(reversed(workload.arrivals)))
    assert told(fill(workload, 256_000, 1.3, 7)) == told(fill(backward, 256_000, 1.3, 7))
    assert told(fill(workload, 256_000, 1.3, 7)) != told(fill(workload, 256_000, 1.3, 8))


# ---------------------------------------------------------------- sizes


def test_what_no_node_or_no_cluster_can_hold_is_refused() -> None:
    cluster = small()
    check_sizes(jobs(128), cluster)
    with pytest.raises(CaseError, match=r"j0 asks for 256 GPUs, and the cluster has 128; .*@at-most=128"):
        check_sizes(jobs(256), cluster)
    (wide,) = (make_arrival(TracedJob("wide", 0.0, 1.0, 16), 16),)
    with pytest.raises(CaseError, match="wide has a pod of 16 GPUs, and no node more than 8"):
        check_sizes(WorkloadCase("w", (wide,)), cluster)
    share = Arrival("share", 0.0, None, (make_pod("share", {"cpu": "1"}, share=500),), source="pods.csv:2")
    with pytest.raises(CaseError, match=r"pods\.csv:2: share asks for a share of a GPU, and no node shares"):
        check_sizes(WorkloadCase("w", (share,)), cluster)


# ---------------------------------------------------------------- what if


def test_one_more_leaf() -> None:
    cluster, workload = small(), jobs(1)
    after, same = what_if("add-leaf:4x8", cluster, workload)
    assert same is workload
    assert len(after.nodes) == len(cluster.nodes) + 4
    assert capacity_milli(after.nodes) == capacity_milli(cluster.nodes) + 32_000
    (place,) = {place_of(node) for node in after.nodes[-4:]}
    assert place not in {place_of(node) for node in cluster.nodes}
    assert place[0] == ("topology.scheduler/spine", "spine-1")
    below, _ = what_if("add-leaf:2x4@spine-2", after, workload)
    assert place_of(below.nodes[-1])[0][1] == "spine-2"
    assert capacity_milli(below.nodes[-2:]) == 8000
    assert len({node.metadata.name for node in below.nodes}) == len(below.nodes)


def test_a_drained_leaf() -> None:
    cluster = small()
    inside = cluster.nodes[0].metadata.name
    pods = tuple(make_pod(f"p{n}", {"cpu": "1"}) for n in range(2))
    pods[0].spec.node_name, pods[1].spec.node_name = inside, cluster.nodes[-1].metadata.name
    cluster = ClusterCase("c", cluster.nodes, pods)
    after, _ = what_if("drain:spine-1/leaf-1", cluster, jobs(1))
    assert [node.spec.unschedulable for node in after.nodes] == [True] * 4 + [False] * 12
    assert [pod.metadata.name for pod in after.pods] == ["p1"]
    assert not any(node.spec.unschedulable for node in cluster.nodes)
    assert sum(node.spec.unschedulable for node in what_if("drain:spine-2", cluster, jobs(1))[0].nodes) == 8
    assert sum(node.spec.unschedulable for node in what_if(f"drain:{inside}", cluster, jobs(1))[0].nodes) == 1


def test_one_more_job(tmp_path: Path) -> None:
    file, other = tmp_path / "job.yaml", tmp_path / "other.yaml"
    text = (
        "{apiVersion: batch/v1, kind: Job, metadata: {name: extra}, spec: {parallelism: 2, completions: 2, template:"
        " {spec: {restartPolicy: Never, containers: [{name: a, image: b, resources: {limits: {nvidia.com/gpu: 8}}}]}}}}"
    )
    file.write_text(text)
    other.write_text(text.replace("extra", "more"))
    cluster = small()
    same, after = what_if(str(file), cluster, jobs(1, 8))
    assert same is cluster
    assert [arrival.name for arrival in after.arrivals] == ["j0", "default/extra", "j1"]
    assert arrival_milli(after.arrivals[1]) == 16_000
    with pytest.raises(CaseError, match="rename one"):
        what_if(str(file), cluster, after)
    _, both = what_if(str(other), cluster, after)
    uids = [pod.metadata.uid for arrival in both.arrivals for pod in arrival.pods]
    assert len(set(uids)) == len(uids) == 6


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("add-leaf:4", "'add-leaf:4' is no change; write add-leaf:4x8"),
        ("add-leaf:0x8", "a leaf needs nodes with GPUs"),
        ("add-leaf:4x8@spine-9", "0 domains are called so; there are spine-1, spine-2"),
        ("drain:leaf-9", "no domain is called so; write the whole path of one of"),
        ("drain:", "is no change"),
        ("explode", "is no change"),
        ("missing.yaml", "can't be read: No such file"),
    ],
)
def test_a_change_that_is_none(change: str, says: str) -> None:
    with pytest.raises(CaseError) as error:
        what_if(change, small(), jobs(1))
    assert says in str(error.value)


def test_names_of_leaves_that_repeat_need_their_path() -> None:
    nodes = []
    for spine in ("s1", "s2"):
        for node in read_cluster("leaf-spine:spines=1,leaves=1,nodes=2").nodes:
            node.metadata.name += spine
            node.metadata.labels |= {"topology.scheduler/spine": spine, "topology.scheduler/leaf": "same"}
            nodes.append(node)
    cluster = ClusterCase("c", tuple(nodes))
    with pytest.raises(CaseError, match="2 domains are called so; write the whole path of one of s1/same, s2/same"):
        what_if("drain:same", cluster, jobs(1))
    assert sum(node.spec.unschedulable for node in what_if("drain:s2/same", cluster, jobs(1))[0].nodes) == 2
