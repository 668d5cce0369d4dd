"""The report of a simulation, what-if, and runs in processes, as the command line has them."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.conftest import run
from topo_scheduler.simulation import sweep as sweeping
from topo_scheduler.simulation import tasks as running
from topo_scheduler.simulation.report.charts import even
from topo_scheduler.simulation.sweep import LostTask
from topo_scheduler.simulation.tasks import Done, Task

CASE = ("--cluster", "leaf-spine:spines=1,leaves=2,nodes=2,gpus=8")
JOBS = ("--workload", "poisson:rate=60/h,jobs=20,sizes=1:0.5|16:0.5,duration=10m")

CORDONED = """\
apiVersion: v1
kind: Node
metadata: {name: n1}
spec: {unschedulable: true}
status: {allocatable: {cpu: "8", memory: 32Gi, pods: "110", nvidia.com/gpu: "8"}}
---
apiVersion: v1
kind: Pod
metadata: {name: waits, namespace: a}
spec: {containers: [{name: a, image: b, resources: {limits: {nvidia.com/gpu: 2}}}]}
"""


def simulate(out: Path, *more: str) -> dict[str, object]:
    answer = run("simulate", *CASE, *JOBS, *more, "--out", str(out))
    assert answer.exit_code == 0, answer.output
    document: dict[str, object] = json.loads((out / "result.json").read_text())
    return document


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report") / "out"
    simulate(folder, "--policy", "topo,best-fit", "--seeds", "1,2", "--what-if", "add-leaf:2x8")
    return folder


def test_a_page_needs_nothing_from_elsewhere(out: Path) -> None:
    page = (out / "report.html").read_text()
    for heading in ("Utilisation over time", "Queue wait by gang size", "Leaves a gang spans", "Fragmentation"):
        assert f"<h2>{heading}</h2>" in page
    assert "The fabric at any moment" in page
    links = re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?([^"')\s>]+)""", page)
    assert [link for link in links if not link.startswith("#")] == []
    assert "best-fit, add-leaf:2x8" in page


def test_a_report_is_the_same_again_from_what_was_written(out: Path) -> None:
    page = (out / "report.html").read_bytes()
    (out / "report.html").unlink()
    answer = run("simulate", "--report", str(out))
    assert answer.exit_code == 0, answer.output
    assert (out / "report.html").read_bytes() == page


def test_a_fill_has_pictures_of_its_own(tmp_path: Path) -> None:
    simulate(tmp_path / "out", "--fill", "1.2", "--policy", "topo,random")
    page = (tmp_path / "out" / "report.html").read_text()
    assert "GPUs allocated against GPUs requested" in page
    assert "Queue wait" not in page


def test_where_nothing_ran_there_is_nothing_to_draw(tmp_path: Path) -> None:
    (tmp_path / "all.yaml").write_text(CORDONED)
    for more in ((), ("--fill", "0.5")):
        out = tmp_path / f"out{len(more)}"
        answer = run("simulate", "--cluster", str(tmp_path / "all.yaml"), *more, "--out", str(out))
        assert answer.exit_code == 0, answer.output
        page = (out / "report.html").read_text()
        if not more:
            assert page.count("No time passed, as no workload ran") == 3
            assert "No workload ran.</p>" in page
        assert not re.search(r">0\.0{3,}<", page), "no axis of nothing"
    assert "1 workload each" in (tmp_path / "out0" / "report.html").read_text()


def test_where_all_begins_at_once_and_stays_no_time_passes(tmp_path: Path) -> None:
    (tmp_path / "pods.csv").write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1000,1000,1,1000\n")
    answer = run("simulate", *CASE, "--workload", str(tmp_path / "pods.csv"), "--out", str(tmp_path / "out"))
    assert answer.exit_code == 0, answer.output
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("No time passed, what ran began at once and stays: there is nothing to draw.") == 3
    assert "no workload ran" not in page


def test_where_nothing_waited_that_is_said(tmp_path: Path) -> None:
    simulate(tmp_path / "out", "--what-if", "add-leaf:200x8")
    assert "No workload waited for longer than a second." not in (tmp_path / "out" / "report.html").read_text()
    answer = run("simulate", *CASE, "--workload", "poisson:rate=1/h,jobs=3,duration=1m", "--out", str(tmp_path / "out"))
    assert answer.exit_code == 0, answer.output
    page = (tmp_path / "out" / "report.html").read_text()
    assert "No workload waited for longer than a second." in page
    assert "<title>Queue wait by gang size</title>" not in page


def test_every_picture_labels_its_vertical_axis(out: Path) -> None:
    page = (out / "report.html").read_text()
    labels = re.findall(r'<p class="of">([^<]+)</p>', page)
    assert labels == ["GPUs in use %", "wait", "gangs %", "free on broken nodes %", "GPUs"]


def test_bands_of_many_policies_do_not_hide_the_lines(out: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    simulate(folder, "--policy", "topo,rack,random,best-fit,fgd,dot-product,most-allocated", "--seeds", "1,2")
    for page, sides in ((out, 4), (folder, 7)):
        opacities = set(re.findall(r'class="band [^"]*" opacity="([^"]+)"', (page / "report.html").read_text()))
        assert len(opacities) == 1
        assert 1 - (1 - float(opacities.pop())) ** sides < 0.4, "all of them, one over the other"


@given(highest=st.floats(1e-3, 1e7), unit=st.sampled_from([1.0, 60.0, 3600.0, 86_400.0]))
def test_ticks_are_where_they_say(highest: float, unit: float) -> None:
    for at, label in even("minutes", highest, unit=unit).ticks:
        assert float(label.replace(",", "")) == pytest.approx(at / unit)


def test_names_are_text_and_not_markup(tmp_path: Path) -> None:
    config = tmp_path / "<b>&.yaml"
    config.write_text("apiVersion: topology.scheduler/v1alpha1\nkind: TopologySchedulerConfig\n")
    simulate(tmp_path / "out", "--policy", f"topo:{config}")
    page = (tmp_path / "out" / "report.html").read_text()
    assert "&lt;b&gt;&amp;.yaml" in page
    assert "<b>&" not in page


def test_a_folder_without_a_result_has_no_report(tmp_path: Path) -> None:
    answer = run("simulate", "--report", str(tmp_path))
    assert answer.exit_code == 2
    assert "name a folder that `simulate --out` wrote" in answer.output


def test_what_if_runs_everything_with_and_without_the_change(out: Path) -> None:
    runs = json.loads((out / "result.json").read_text())["runs"]
    variants = [(entry["policy"], entry["seed"], entry["what_if"]) for entry in runs]
    assert sorted(variants, key=str) == sorted(
        (
            (policy, seed, change)
            for change in (None, "add-leaf:2x8")
            for policy in ("topo", "best-fit")
            for seed in (1, 2)
        ),
        key=str,
    )
    assert len({entry["file"] for entry in runs}) == len(runs)


def test_what_cannot_be_changed_is_reported_before_anything_runs(tmp_path: Path) -> None:
    answer = run("simulate", *CASE, *JOBS, "--what-if", "drain:spine-9", "--out", str(tmp_path / "out"))
    assert answer.exit_code == 2
    assert "spine-9" in answer.output
    assert not (tmp_path / "out").exists()


def test_runs_in_processes_are_written_like_those_of_one(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def backwards(tasks: Sequence[Task], **_: object) -> Iterator[tuple[int, Done]]:
        for at in reversed(range(len(tasks))):
            yield at, running.run(tasks[at])

    monkeypatch.setattr(sweeping, "sweep", backwards)
    more = ("--policy", "topo,best-fit", "--seeds", "1,2", "--what-if", "add-leaf:2x8", "--workers", "2")
    simulate(tmp_path / "out", *more)
    clocks = re.compile(r'"(?:wall_s|decisions_per_s)": [0-9.]+')
    sequential, other = (clocks.sub("", (folder / "result.json").read_text()) for folder in (out, tmp_path / "out"))
    assert sequential == other
    assert (tmp_path / "out" / "report.html").read_bytes() == (out / "report.html").read_bytes()


def test_a_lost_run_is_reported_and_the_others_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def losing(tasks: Sequence[Task], **_: object) -> Iterator[tuple[int, Done | LostTask]]:
        yield 1, LostTask(tasks[1], "4 workers died of it")
        yield 0, running.run(tasks[0])

    monkeypatch.setattr(sweeping, "sweep", losing)
    folder = tmp_path / "out"
    answer = run("simulate", *CASE, *JOBS, "--seeds", "1,2", "--dask", "tcp://somewhere:8786", "--out", str(folder))
    assert answer.exit_code == 1
    assert "topo, seed 2: 4 workers died of it" in answer.output
    document = json.loads((folder / "result.json").read_text())
    assert [entry["seed"] for entry in document["runs"]] == [1]
    assert [(entry["seed"], entry["reason"]) for entry in document["lost"]] == [(2, "4 workers died of it")]


def test_one_of_processes_and_a_cluster() -> None:
    answer = run("simulate", *CASE, *JOBS, "--workers", "2", "--dask", "tcp://somewhere:8786")
    assert answer.exit_code == 2
    assert "name one" in answer.output
