"""Errors name file and line of bad input, and what to do; nothing ever ends in a traceback."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers import leaf_spine, make_pod
from topo_scheduler.simulation.cases.model import Arrival, CaseError, ClusterCase, WorkloadCase
from topo_scheduler.simulation.cases.reading import check_sizes, read_cluster, read_workload

NODES = "sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,2,P100\nn1,96000,393216,8,V100\n"
PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
    "p0,12000,16384,1,1000,,LS,Running,0,12537496,0\n"
    "p1,6000,12288,1,460,V100,LS,Running,427061,12902960,427061\n"
)
LINGJUN = f"ip,DSW,PSW,ASW\n{'0a' * 32},G6,P10,S14\n{'0b' * 32},G6,P12,S2\n"
MURI = "job_id,num_gpu,submit_time,duration,priority\n0,8,0,5095000,0\n1,8,1534000,281000,1\n"
GAVEL = (
    "A3C\tcd x && python3 y\t-step\t1\t95121\t0.000000\t1\n"
    "Transformer (batch size 256)\tcd x\t-step\t1\t27788\t6.000000\t4\n"
)
TOPOGRAPH = (
    "switches:\n  core: {switches: [leaf-1, leaf-2]}\n"
    "blocks:\n- {switch: leaf-1, nodes: ['n[01-04]']}\n- {switch: leaf-2, nodes: ['m[1-2]']}\n"
)
KUBECTL = yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": list(leaf_spine([[2]]).nodes())})
JOB = """\
apiVersion: batch/v1
kind: Job
metadata: {name: train}
spec:
  parallelism: 2
  completions: 2
  completionMode: Indexed
  template:
    spec:
      restartPolicy: Never
      containers:
        - {name: a, image: b, resources: {limits: {nvidia.com/gpu: 8}}}
"""
CLUSTERS = {
    "nodes.csv": NODES,
    "topo.csv": LINGJUN,
    "model.yaml": TOPOGRAPH,
    "all.yaml": KUBECTL,
    "all.json": json.dumps(yaml.safe_load(KUBECTL), indent=1),
}
WORKLOADS = {"pods.csv": PODS, "muri.csv": MURI, "gavel.trace": GAVEL, "job.yaml": JOB}


def refused(read: Callable[[str], object], path: Path, text: str | bytes, options: str = "") -> str:
    """Return what is said of a file, without the folder."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(CaseError) as error:
        read(f"{path}{options}")
    return str(error.value).replace(f"{path.parent}/", "")


@pytest.mark.parametrize("name", CLUSTERS)
def test_whole_clusters_are_read(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(CLUSTERS[name])
    assert read_cluster(str(tmp_path / name)).nodes


def test_lines_of_spaces_are_empty(tmp_path: Path) -> None:
    (tmp_path / "pods.csv").write_text(PODS + "   \r\n\n")
    assert len(read_workload(str(tmp_path / "pods.csv")).arrivals) == 2


@pytest.mark.parametrize("name", WORKLOADS)
def test_whole_workloads_are_read(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(WORKLOADS[name])
    assert read_workload(str(tmp_path / name)).arrivals


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("nodes.csv", NODES[:-12], "nodes.csv:3: 3 of 5 fields, gpu is missing; the file seems to be cut short"),
        ("nodes.csv", NODES.replace("gpu,", "gpus,"), "nodes.csv:1: unknown column 'gpus'; did you mean gpu?"),
        ("nodes.csv", NODES.replace(",model", ""), "nodes.csv:1: column model is missing"),
        ("nodes.csv", NODES.replace("64000", "-1"), "nodes.csv:2: cpu_milli is -1, which is negative"),
        ("nodes.csv", NODES.replace("64000", "many"), "nodes.csv:2: cpu_milli is 'many'; write a whole number"),
        ("nodes.csv", NODES.replace("n1", "n0"), "nodes.csv:3: n0 is in line 2 already"),
        ("nodes.csv", NODES.replace("P100", "P100,8"), "nodes.csv:2: 6 fields for 5 columns; quote fields"),
        ("nodes.csv", NODES.replace("P100", '"P100'), "nodes.csv:3: not CSV: unexpected end of data"),
        ("nodes.csv", NODES.replace(",2,", ",0,").replace(",8,", ",0,"), "none of 2 nodes has GPUs"),
        ("nodes.csv", NODES.partition("\n")[0], "there are no nodes"),
        ("nodes.csv", "", "nodes.csv:1: this is no list of nodes"),
        ("nodes.csv", b"sn,cpu\n\xff\xfe", "nodes.csv:2: byte 7 is not UTF-8"),
        (
            "nodes.csv",
            NODES.replace("64000", "9" * 20),
            "nodes.csv:2: cpu_milli is '99999999999999999999'; write at most",
        ),
        ("nodes.csv", NODES.replace("sn,", "SN,"), "nodes.csv:1: unknown column 'SN'; did you mean sn?"),
        ("other.csv", "a,b\n1,2\n", "other.csv:1: this is no list of nodes; a CSV file of nodes begins with sn,"),
        ("other.csv", "a" * 200_000, "other.csv:1: this is no list of nodes; a CSV file of nodes begins with sn,"),
        ("topo.csv", LINGJUN.replace("P12", ""), "topo.csv:3: PSW is empty"),
        ("topo.csv", LINGJUN.replace("0b", "0a"), "topo.csv:3: ip '0a0a0a0a"),
        ("topo.csv", LINGJUN.replace("P12", "P 12"), "topo.csv:3: PSW 'P 12' can't be a label"),
        ("model.yaml", TOPOGRAPH.replace("04", "00"), "model.yaml:4: blocks[0].nodes: 'n[01-00]' goes backward"),
        (
            "model.yaml",
            TOPOGRAPH.replace("leaf-2, n", "leaf-3, n"),
            "model.yaml:5: blocks[1].switch: leaf-3 is not among the switches",
        ),
        (
            "model.yaml",
            TOPOGRAPH.replace("m[1-2]", "n[03-05]"),
            "model.yaml:5: blocks[1]: node n03 is in a block before it",
        ),
        ("model.yaml", TOPOGRAPH.replace("[leaf-1,", "[core, leaf-1,"), "or is above itself"),
        (
            "model.yaml",
            TOPOGRAPH + "links: {}\n",
            "model.yaml:6: links: unknown key 'links'; a model has switches and blocks",
        ),
        (
            "model.yaml",
            TOPOGRAPH.replace("2]}", "2]}\n  b.c: {switches: [leaf-1]}", 1),
            "model.yaml:3: switches.b.c.switches:",
        ),
        ("all.yaml", KUBECTL.replace("nvidia.com/gpu", "example.com/tpu"), "all.yaml: none of 2 nodes has GPUs"),
        ("all.yaml", KUBECTL.replace("    name: node-2", "    name: node-1"), "there is another of this name"),
        ("nodes.csv", NODES.replace("262144", "9" * 15), "memory_mib is 999999999999999; write at most 8589934592"),
        ("nodes.csv", PODS, "nodes.csv:1: this is a list of what arrives, not of nodes; name it as --workload"),
        (
            "all.yaml",
            KUBECTL.replace("'8'", "'-8'", 1),
            "all.yaml:3: Node node-1: status.allocatable, nvidia.com/gpu: '-8'",
        ),
        ("all.yaml", KUBECTL.replace("'128'", "1e30", 1), "Node node-1: status.allocatable, cpu: '1e30' is larger"),
        ("all.json", '{"kind": "Node", "a": ' + "1" * 5000 + "}", "all.json:1: not valid JSON: Exceeds the limit"),
        ("all.yaml", "a: b: c\n", "all.yaml:1: not valid YAML: mapping values are not allowed"),
        ("all.yaml", "just text\n", "all.yaml:1: an object of Kubernetes was expected, found a text"),
        ("all.json", '{"items": [', "all.json:1: not valid JSON: Expecting value"),
        ("all.yaml", "kind: Node\nmetadata: {name: [1]}\n", "all.yaml:1: Node [1]: Expected `str`, got `array`"),
        ("all.yaml", "kind: Node\napiVersion: v1\n", "all.yaml:1: Node without a name: metadata.name is missing"),
    ],
)
def test_bad_clusters(tmp_path: Path, name: str, text: str | bytes, says: str) -> None:
    said = refused(read_cluster, tmp_path / name, text)
    assert says in said, said
    assert ";" in said, "what to do"


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("pods.csv", PODS[:-30], "pods.csv:3: 8 of 11 fields, creation_time is missing; the file seems to be cut"),
        ("pods.csv", PODS.replace("num_gpu", "gpus"), "pods.csv:1: unknown column 'gpus'; did you mean num_gpu?"),
        ("pods.csv", PODS.replace("qos", "kos"), "pods.csv:1: unknown column 'kos'; did you mean qos?"),
        ("pods.csv", PODS.replace("427061,12902960", "-5,12902960"), "creation_time is -5, which is negative"),
        ("pods.csv", PODS.replace("12902960", "3"), "pods.csv:3: deletion_time is 3 and scheduled_time 427061"),
        ("pods.csv", PODS.replace("1,460", "2,460"), "pods.csv:3: num_gpu is 2 and gpu_milli 460; only one GPU can"),
        ("pods.csv", PODS.replace("1,460", "1,1460"), "pods.csv:3: gpu_milli is 1460; write at most 1000"),
        ("pods.csv", PODS.replace("1,460", "1,0"), "pods.csv:3: num_gpu is 1 and gpu_milli 0"),
        ("muri.csv", MURI.replace("1534000", "-7"), "muri.csv:3: submit_time is -7, which is negative"),
        ("muri.csv", MURI.replace("281000", "-7"), "muri.csv:3: duration is -7, which is negative"),
        ("muri.csv", MURI.replace("1,8,", "1,0,"), "muri.csv:3: num_gpu is 0, which is less than 1"),
        ("muri.csv", MURI.replace("1,8,", "0,8,"), "muri.csv:3: job_id 0 is in line 2 already"),
        ("gavel.trace", GAVEL[:-4], "gavel.trace:2: 6 of 7 fields between tabs; the file seems to be cut short"),
        ("gavel.trace", GAVEL.replace("A3C", "GPT"), "gavel.trace:1: unknown model 'GPT'; its steps can't be turned"),
        ("gavel.trace", GAVEL.replace("6.0", "-6.0"), "gavel.trace:2: '-6.000000' is negative"),
        ("gavel.trace", GAVEL.replace("27788", "few"), "gavel.trace:2: 'few' is no number of steps"),
        ("gavel.trace", "", "gavel.trace: the file is empty"),
        ("job.yaml", JOB.replace("kind: Job", "kind: DaemonSet"), "job.yaml:1: DaemonSet train: how many pods"),
        ("job.yaml", JOB.replace("2\n", "-2\n", 1), "job.yaml:1: Job train: spec.parallelism is -2"),
        ("job.yaml", JOB.replace("Never", "Always"), "job.yaml:1: Job train: it would be refused:"),
        ("job.yaml", JOB.replace("{name: train}", "train"), "job.yaml:1: Job: metadata is a text; correct it"),
        ("job.yaml", "kind: PriorityClass\nmetadata: high\n", "job.yaml:1: PriorityClass: metadata is a text"),
        ("pod.json", r'{"kind": "Pod", "metadata": {"name": "\ud800", "uid": "u"}}', "pod.json:1: Pod"),
        ("job.yaml", JOB.replace("train", "Tr_ain"), "a lowercase RFC 1123 subdomain"),
        ("job.yaml", JOB.replace("[", "").replace("{name: a", "{name: a, "), "job.yaml:"),
        ("job.yaml", "kind: ConfigMap\nmetadata: {name: a}\n", "nothing arrives; it needs pods"),
        (
            "job.yaml",
            JOB.replace("name: train", "name: train, annotations: {simulate.topology.scheduler/runs: -5m}"),
            "job.yaml:1: Job train: annotation simulate.topology.scheduler/runs: '-5m' is negative",
        ),
        (
            "gavel.trace",
            GAVEL.replace("\t4\n", "\t4\t5\n"),
            "gavel.trace:2: 8 of 7 fields between tabs; fetch it again",
        ),
        (
            "gavel.trace",
            GAVEL.replace("6.000000", "1e300"),
            "gavel.trace:2: gavel-2 arrives 1e+300 seconds after the start, more",
        ),
        (
            "muri.csv",
            MURI.replace("281000", "9" * 15),
            "muri.csv:3: job-1 runs for 1e+12 seconds, more than a thousand",
        ),
        (
            "muri.csv",
            MURI.replace("1534000", "9" * 15),
            "muri.csv:3: job-1 arrives 1e+12 seconds after the start, more",
        ),
        (
            "muri.csv",
            MURI.replace("0,8,0", "0,16,0").replace("1,8,", "0-0,8,"),
            "muri.csv:3: a pod of job-0-0 is called job-0-0, as one of job-0 (",
        ),
        ("pods.csv", PODS.replace("16384", "9" * 15), "pods.csv:2: memory_mib is 999999999999999; write at most"),
        ("pods.csv", NODES, "pods.csv:1: this is a list of nodes, not of what arrives; name it as --cluster"),
        ("other.csv", "a,b\n1,2\n", "other.csv:1: this is no list of pods or jobs"),
        ("other.csv", "a" * 200_000, "other.csv:1: this is no list of pods or jobs"),
    ],
)
def test_bad_workloads(tmp_path: Path, name: str, text: str, says: str) -> None:
    if name == "job.yaml" and says == "job.yaml:":
        text = JOB.replace("kind: Job", "kind: [Job")
    said = refused(read_workload, tmp_path / name, text)
    assert says in said, said
    assert ";" in said, "what to do"


def test_one_broken_file_among_hundreds(tmp_path: Path) -> None:
    for number, node in enumerate(leaf_spine([[150, 150]]).nodes()):
        (tmp_path / f"{number:03}.yaml").write_text(yaml.safe_dump(node))
    assert len(read_cluster(str(tmp_path)).nodes) == 300
    said = refused(
        lambda _: read_cluster(str(tmp_path)), tmp_path / "123.yaml", "kind: Node\nmetadata: {name: x\nb: -\n"
    )
    assert re.match(r"123\.yaml:3: not valid YAML: .*; correct it, or move the file away", said), said


def test_one_broken_object_of_a_long_list(tmp_path: Path) -> None:
    nodes = list(leaf_spine([[300]]).nodes())
    nodes[200]["metadata"]["labels"]["number"] = 7
    text = yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": nodes})
    line = text[: text.index("number: 7")].count("\n") + 1
    said = refused(read_cluster, tmp_path / "nodes.yaml", text)
    matched = re.match(r"nodes\.yaml:(\d+): Node node-201: Expected `str`, got `int` - at `\$\.metadata\.labels", said)
    assert matched, said
    assert 0 < line - int(matched[1]) < 25, "the line where the object begins"
    said = refused(read_cluster, tmp_path / "nodes.json", json.dumps(yaml.safe_load(text), indent=1))
    assert re.match(r"nodes\.json:\d+: Node node-201: ", said), said


def test_a_path_or_an_option_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(CaseError, match="--cluster: it is empty; name live, leaf-spine:"):
        read_cluster("")
    for read in (read_cluster, read_workload):
        with pytest.raises(CaseError, match="nowhere: there is no such file or directory; name "):
            read(str(tmp_path / "nowhere"))
        with pytest.raises(CaseError, match=r"no file that ends in \.yaml, \.yml, \.json; save objects there"):
            read(str(tmp_path))
    (tmp_path / "topo.csv").write_text(LINGJUN)
    with pytest.raises(CaseError, match=r"unknown option 'gpu'; did you mean gpus\?"):
        read_cluster(f"{tmp_path / 'topo.csv'}@gpu=8")
    with pytest.raises(CaseError, match="gpus: 'x' is not a whole number from 1 to 64"):
        read_cluster(f"{tmp_path / 'topo.csv'}@gpus=x")
    with pytest.raises(CaseError, match="cpu: 'much' is not a quantity"):
        read_cluster(f"{tmp_path / 'topo.csv'}@cpu=much")
    for option in ("gpus", "GPUS=8", "gpus=8=9,"):
        with pytest.raises(CaseError, match=f"topo.csv@{option}: '{option}' is no option; write name=value"):
            read_cluster(f"{tmp_path / 'topo.csv'}@{option}")
    with pytest.raises(CaseError, match="unknown option 'gpus'; there are none here"):
        (tmp_path / "nodes.csv").write_text(NODES)
        read_cluster(f"{tmp_path / 'nodes.csv'}@gpus=8")


def test_options_of_hosts_stand_behind_a_generator_too() -> None:
    generator = "leaf-spine:leaves=2,nodes=2"
    assert (
        read_cluster(f"{generator}@gpus=4,sharing=true").nodes == read_cluster(f"{generator},gpus=4,sharing=true").nodes
    )
    with pytest.raises(CaseError, match="gpus is given twice"):
        read_cluster(f"{generator},gpus=8@gpus=4")


def test_the_error_for_a_share_says_how_to_have_gpus_shared() -> None:
    spec = "leaf-spine:leaves=2,nodes=2"
    share = Arrival("a", 0.0, None, (make_pod("p", annotations={"gpu-fraction": "0.5"}),), source="pods.yaml:1")
    workload = WorkloadCase("w", (share,))
    with pytest.raises(CaseError, match=r"or behind a generator, .* write @sharing=true"):
        check_sizes(workload, read_cluster(spec))
    check_sizes(workload, read_cluster(f"{spec}@sharing=true"))


def test_jobs_larger_than_the_cluster_are_reported_by_their_line(tmp_path: Path) -> None:
    (tmp_path / "topo.csv").write_text(LINGJUN)
    cluster = read_cluster(str(tmp_path / "topo.csv"))
    said = refused(
        lambda spec: read_workload(spec, cluster=cluster), tmp_path / "muri.csv", MURI.replace("1,8,", "1,64,")
    )
    assert said == (
        "muri.csv:3: job-1 asks for 64 GPUs, and the cluster has 16; give it a larger cluster, or leave such out with"
        " @at-most=16"
    )
    for option in ("at-most=16", "at-most=8,gangs=2"):
        kept = read_workload(f"{tmp_path / 'muri.csv'}@{option}", cluster=cluster)
        assert [arrival.name for arrival in kept.arrivals] == ["job-0"]
    for gangs, remedy in ((2, "leave such out with @at-most=8"), (3, "at-most=5"), (17, "give it a larger cluster$")):
        with pytest.raises(CaseError, match=remedy):
            read_workload(f"{tmp_path / 'muri.csv'}@gangs={gangs}", cluster=cluster)


def test_a_job_too_large_is_reported_before_its_pods_are_made() -> None:
    cluster = read_cluster("leaf-spine:nodes=2")
    spec = "poisson:rate=1/m,jobs=100000,sizes=100000,duration=1m"  # 1,250,000,000 pods
    with pytest.raises(CaseError, match=r"job-1 asks for 100000 GPUs, and the cluster has 16; .* @at-most=16"):
        read_workload(spec, cluster=cluster)


def test_streams_whose_names_are_alike(tmp_path: Path) -> None:
    for name in ("a_1.trace", "a-1.trace"):
        (tmp_path / name).write_text(GAVEL)
    with pytest.raises(CaseError, match=r"a_1\.trace:1: a pod of a-1-1 is called a-1-1, .*a-1\.trace:1\); rename one"):
        read_workload(str(tmp_path))


def test_a_file_that_is_not_there_any_more_is_reported(tmp_path: Path) -> None:
    (tmp_path / "all.yaml").write_text(KUBECTL)
    (tmp_path / "more.yaml").symlink_to(tmp_path / "gone.yaml")
    with pytest.raises(CaseError, match=r"more\.yaml: can't be read: No such file or directory; check the path"):
        read_cluster(str(tmp_path))


# ---------------------------------------------------------------- anything at all


ODD = [
    *(b"-1", b"null", b"[]", b"{}", b"!!int x", b"&a [*a]", b"'", b'"', b"\n", b",", b"\t", b"1e999", b"9" * 20),
    *(b"[" * 50, b"\x00", b"- ", b": ", b"\xc2\x85", b".nan", b"? [a] : b"),
]


@st.composite
def mutilated(draw: st.DrawFn, texts: dict[str, str]) -> tuple[str, bytes]:
    """A file of which a piece was cut away, doubled, or replaced by anything."""
    name = draw(st.sampled_from(sorted(texts)))
    data = texts[name].encode()
    for _ in range(draw(st.integers(1, 3))):
        begin = draw(st.integers(0, len(data)))
        end = min(len(data), begin + draw(st.integers(0, 40)))
        piece = draw(
            st.one_of(
                st.just(b""),
                st.just(data[begin:end] * 2),
                st.binary(max_size=8),
                st.sampled_from(ODD),
            )
        )
        data = data[:begin] + piece + data[end:]
    if draw(st.booleans()):
        data = data[: draw(st.integers(0, len(data)))]
    return name, data


def survives(read: Callable[[str], ClusterCase | WorkloadCase], path: Path, data: bytes) -> None:
    path.write_bytes(data)
    try:
        read(str(path))
    except CaseError as error:
        said = str(error)
        assert said.startswith(str(path)), said
        assert ";" in said, said


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mutilated(CLUSTERS))
def test_mutilated_clusters(tmp_path: Path, file: tuple[str, bytes]) -> None:
    survives(read_cluster, tmp_path / file[0], file[1])


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mutilated(WORKLOADS))
def test_mutilated_workloads(tmp_path: Path, file: tuple[str, bytes]) -> None:
    survives(read_workload, tmp_path / file[0], file[1])
