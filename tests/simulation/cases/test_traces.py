"""The public data sets, read whole: what is in them, and what becomes of it."""

import csv
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tests.e2e.real_input import DATA, data
from topo_scheduler.api.annotations import GPU_FRACTION, GPU_MODEL
from topo_scheduler.simulation.cases.amounts import arrival_milli, capacity_milli
from topo_scheduler.simulation.cases.gavel import read_gavel
from topo_scheduler.simulation.cases.model import WorkloadCase
from topo_scheduler.simulation.cases.muri import read_muri
from topo_scheduler.simulation.cases.reading import read_cluster, read_workload
from topo_scheduler.simulation.cases.topograph import expand
from topo_scheduler.simulation.cases.transforms import offered_load
from topo_scheduler.simulation.cases.what_if import place_of

LISTS = {
    "default": 8152,
    "cpu050": 7439,
    "cpu100": 7853,
    "gpushare40": 8152,
    "gpushare60": 8152,
    "gpuspec10": 8152,
    "gpuspec20": 8152,
    "multigpu20": 8324,
    "multigpu30": 8508,
}


def check_whole(workload: WorkloadCase) -> None:
    """Names and uids are there once, and arrivals stand in order, the first at the start."""
    names = [arrival.name for arrival in workload.arrivals]
    assert len(set(names)) == len(names)
    uids = [pod.metadata.uid for arrival in workload.arrivals for pod in arrival.pods]
    assert len(set(uids)) == len(uids)
    times = [arrival.at for arrival in workload.arrivals]
    assert times == sorted(times)
    assert times[0] == 0
    assert all(arrival.seconds is None or arrival.seconds > 0 for arrival in workload.arrivals)


def test_openb_nodes() -> None:
    cluster = read_cluster(str(data("openb", "openb_node_list_gpu_node.csv")))
    assert (len(cluster.nodes), capacity_milli(cluster.nodes)) == (1213, 6_212_000)
    first = cluster.nodes[0]
    assert first.metadata.labels["nvidia.com/gpu.product"] == "P100"
    assert first.metadata.labels["topology.scheduler/gpu-sharing"] == "true"
    assert first.status.allocatable == {
        "cpu": "64000m",
        "memory": "262144Mi",
        "pods": "100000",
        "nvidia.com/gpu": "2",
    }


@pytest.mark.parametrize("name", LISTS)
def test_openb_pods(name: str) -> None:
    cluster = read_cluster(str(data("openb", "openb_node_list_gpu_node.csv")))
    path = data("openb", f"openb_pod_list_{name}.csv")
    workload = read_workload(str(path), cluster=cluster)
    assert len(workload.arrivals) == LISTS[name]
    check_whole(workload)
    asked = {arrival.name: arrival_milli(arrival) for arrival in workload.arrivals}
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert asked == {row["name"]: int(row["num_gpu"]) * int(row["gpu_milli"]) for row in rows}
    timed = "creation_time" in rows[0]
    assert all((arrival.seconds is not None) == timed for arrival in workload.arrivals)


def test_pods_without_times_come_with_the_first(tmp_path: Path) -> None:
    header = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time\n"
    (tmp_path / "pods.csv").write_text(f"{header}a,1,1,1,1000,9000000,9000100,9000000\nb,1,1,1,1000,,,\n")
    times = {
        arrival.name: (arrival.at, arrival.seconds) for arrival in read_workload(str(tmp_path / "pods.csv")).arrivals
    }
    assert times == {"a": (0.0, 100.0), "b": (0.0, None)}


def test_a_share_and_models_are_annotations_and_whole_gpus_are_limits() -> None:
    workload = read_workload(str(data("openb", "openb_pod_list_gpuspec10.csv")))
    by_name = {arrival.name: arrival for arrival in workload.arrivals}
    (share,), (whole,) = by_name["openb-pod-0001"].pods, by_name["openb-pod-0000"].pods
    assert share.metadata.annotations[GPU_FRACTION] == "0.46"
    assert share.spec.containers[0].resources.requests == {"cpu": "6000m", "memory": "12288Mi"}
    assert whole.spec.containers[0].resources.limits == {"nvidia.com/gpu": "1"}
    assert whole.spec.scheduler_name == "topology-aware-scheduler"
    models = [pod.metadata.annotations.get(GPU_MODEL) for arrival in workload.arrivals for pod in arrival.pods]
    assert sum(model is not None for model in models) == 732
    assert "V100M16,V100M32" in models


def test_lingjun_leaves_differ_by_their_whole_path() -> None:
    cluster = read_cluster(f"{data('lingjun', 'topo.csv')}@model=A100,bandwidth=200Gb")
    places = Counter(tuple(value for _, value in place_of(node)) for node in cluster.nodes)
    assert (len(cluster.nodes), len(places), len({place[-1] for place in places})) == (847, 119, 48)
    assert (min(places.values()), max(places.values())) == (2, 8)
    assert capacity_milli(cluster.nodes) == 847 * 8 * 1000
    assert len({node.metadata.name for node in cluster.nodes}) == 847
    assert cluster.nodes[0].metadata.labels["nvidia.com/gpu.product"] == "A100"


@pytest.mark.parametrize(
    ("name", "nodes", "leaves", "tiers"),
    [
        ("small-tree", 6, 2, 2),
        ("medium", 8, 4, 3),
        ("nvl72", 72, 4, 3),
        ("large", 96, 12, 3),
        ("dual-xclr-regular", 96, 12, 3),
    ],
)
def test_topograph(name: str, nodes: int, leaves: int, tiers: int) -> None:
    cluster = read_cluster(str(data("topograph", f"{name}.yaml")))
    places = {place_of(node) for node in cluster.nodes}
    assert (len(cluster.nodes), len(places)) == (nodes, leaves)
    assert {len(place) for place in places} == {tiers}
    assert all("accelerator.topograph.run/domain" in node.metadata.labels for node in cluster.nodes)


def test_labels_of_a_switch_are_those_of_all_nodes_below() -> None:
    cluster = read_cluster(str(data("topograph", "dual-xclr-regular.yaml")))
    zones = Counter(node.metadata.labels["topology.kubernetes.io/zone"] for node in cluster.nodes)
    assert zones == {"zone1": 32, "zone2": 32, "zone3": 32}
    assert cluster.nodes[0].metadata.labels["accelerator.topograph.run/sub-domain"] == "rack01"


def test_ranges_in_brackets() -> None:
    assert expand("srv11[01-03]") == ["srv1101", "srv1102", "srv1103"]
    assert expand("[1101-1102]") == ["1101", "1102"]
    assert expand("I[21-22,25]") == ["i21", "i22", "i25"]
    assert expand("r[1-2]n[08-09]") == ["r1n08", "r1n09", "r2n08", "r2n09"]
    assert expand("alone") == ["alone"]
    for wrong in ("n[5-3]", "n[a-b]", "n[1-", "n[1-999999999]", "[1-400]x[1-400]", "", "-x"):
        with pytest.raises(ValueError, match=r"range|backward|more than|name of a node"):
            expand(wrong)


def test_muri_times_are_milliseconds() -> None:
    path = data("gangs", "muri", "trace2.csv")
    jobs = read_muri(path)
    assert len(jobs) == 5755
    assert (jobs[0].gpus, jobs[0].at, jobs[0].seconds) == (16, 0.0, 1_453_510.0)
    assert Counter(job.priority for job in jobs) == {0: 2846, 1: 2909}
    workload = read_workload(str(path))
    check_whole(workload)
    first = workload.arrivals[0]
    assert len(first.pods) == 2
    (owner,) = first.owners.values()
    assert (owner.spec.parallelism, owner.spec.completions) == (2, 2)  # type: ignore[union-attr]
    assert {pod.metadata.controller.uid for pod in first.pods if pod.metadata.controller} == {owner.metadata.uid}


def test_gavel_steps_become_the_seconds_they_were() -> None:
    """The stream 7f04ca and Muri's trace1 hold the same jobs of Philly, one in steps and one in seconds."""
    known = defaultdict(list)
    for muri_job in read_muri(data("gangs", "muri", "trace1.csv")):
        known[muri_job.at, muri_job.gpus].append(muri_job.seconds)
    pairs = []
    for job in read_gavel(data("gangs", "gavel", "7f04ca.trace")):
        if len(same := known.get((job.at, job.gpus), [])) == 1:
            assert job.seconds is not None
            assert same[0] is not None
            pairs.append((job.seconds, same[0]))
    assert len(pairs) == 968
    # Muri rounds to seconds, and a step of some models takes three.
    assert sum(abs(ours - theirs) <= 4 for ours, theirs in pairs) > 0.75 * len(pairs)
    assert sum(ours for ours, _ in pairs) == pytest.approx(sum(theirs for _, theirs in pairs), rel=0.001)


def test_all_streams_of_gavel_as_one() -> None:
    folder = data("gangs", "gavel", "7f04ca.trace").parent
    workload = read_workload(str(folder))
    assert len(workload.arrivals) == 7672
    check_whole(workload)
    assert max(arrival_milli(arrival) for arrival in workload.arrivals) == 64_000


@pytest.mark.parametrize("load", [0.95, 1.1])
def test_arrivals_are_compressed_until_so_much_is_offered(load: float) -> None:
    cluster = read_cluster(str(data("lingjun", "topo.csv")))
    path = data("gangs", "muri", "trace2.csv")
    plain = read_workload(str(path), cluster=cluster)
    assert offered_load(plain, cluster) < 0.06
    for spec in (f"{path}@load={load}", f"{path}@gangs=8,load={load}"):
        assert offered_load(read_workload(spec, cluster=cluster), cluster) == pytest.approx(load, rel=1e-6)


def test_the_data_sets_say_where_they_are() -> None:
    assert DATA.name == "data"
