"""Figures worked out by hand, and a folder that holds a whole result or none."""

import io
import json
import os
import signal
import subprocess
import sys
from math import inf
from pathlib import Path

import pytest
import zstandard
from rich.console import Console

from tests.cli.conftest import ROOT
from tests.cli.conftest import run as command
from tests.schemas import follows
from topo_scheduler.simulation.cases.model import CaseError
from topo_scheduler.simulation.policies.names import read_policies
from topo_scheduler.simulation.results import figures
from topo_scheduler.simulation.results.model import Result
from topo_scheduler.simulation.results.placements import decode, encode, file_of
from topo_scheduler.simulation.results.table import columns_of, comparison, differences, differing
from topo_scheduler.simulation.results.writing import check_folder, read_result, write_report, write_result
from topo_scheduler.simulation.tasks import Task, run
from topo_scheduler.simulation.virtual.history import BEFORE, RunHistory, Stay, WorkloadOutcome

CHANGES: tuple[tuple[str, ...], ...] = ((), ("add-leaf:2x8",))
CLUSTER = "leaf-spine:spines=2,leaves=2,nodes=2,gpus=8"


def history() -> RunHistory:
    """Four leaves of one node; a gang over both spines, one below a spine, a pod, and one that waits."""
    paths = (("s1", "l1"), ("s1", "l2"), ("s2", "l1"), ("s2", "l2"))
    run_history = RunHistory(("a", "b", "c", "d"), paths, ("spine", "leaf"), (8000,) * 4, end=100.0)
    run_history.outcomes = [
        WorkloadOutcome("gang", 2, 0.0, 16_000, 10.0, 60.0),
        WorkloadOutcome("alone", 1, 20.0, 500, 20.0, inf),
        WorkloadOutcome("waits", 1, 50.0, 8000),
        WorkloadOutcome("near", 2, 0.0, 16_000, 60.0, 100.0),
    ]
    run_history.stays = [
        Stay(0, "gang-0", 0, 8000, (), 10.0, 60.0),
        Stay(0, "gang-1", 2, 8000, (), 10.0, 60.0),
        Stay(1, "alone", 1, 500, (3,), 20.0),
        Stay(3, "near-0", 0, 8000, (), 60.0, 100.0),
        Stay(3, "near-1", 1, 8000, (), 60.0, 100.0),
        Stay(BEFORE, "there", 3, 1000, (), 0.0),
    ]
    return run_history


def test_waits_by_size() -> None:
    whole, *by_size = figures.waits(history())
    assert (whole.gpus, whole.workloads, whole.never_ran) == ("all", 4, 1)
    assert (whole.p50, whole.p95, whole.p99, whole.max, whole.mean) == (10.0, 60.0, 60.0, 60.0, 23.333333)
    assert [(wait.gpus, wait.workloads, wait.never_ran, wait.p50) for wait in by_size] == [
        ("<1", 1, 0, 0.0),
        ("5-8", 1, 1, None),
        ("9-16", 2, 0, 10.0),
    ]


def test_spans_are_of_gangs_alone() -> None:
    spans = figures.spans(history())
    assert spans["all"] == spans["9-16"]
    span = spans["all"]
    assert (span.gangs, span.leaves_mean, span.leaves_max, span.spines_mean, span.spines_max) == (2, 2.0, 2, 1.5, 2)
    assert (span.crossing_leaf, span.leaves) == (2, {"2": 2})


def test_utilisation_counts_gpu_seconds() -> None:
    run_history = history()
    # 2 gangs of 16 GPUs for 50 and 40 s, half a GPU for 80 s, and one that was there all the time.
    assert figures.utilisation(run_history, 100.0) == pytest.approx(100 * (800 + 640 + 40 + 100) / 3200)
    assert figures.utilisation(run_history, 50.0) == pytest.approx(100 * (640 + 15 + 50) / 1600)
    assert figures.allocated(run_history) == pytest.approx(100 * 1.5 / 32, abs=1e-4)


@pytest.mark.parametrize(
    ("milli", "size"),
    [(0, "0"), (250, "<1"), (1000, "1"), (2000, "2"), (3000, "3-4"), (4000, "3-4"), (8000, "5-8"), (65_000, "65-128")],
)
def test_sizes(milli: int, size: str) -> None:
    assert figures.size_of(milli) == size


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(value) for value in range(1, 101)]
    assert [figures.percentile(values, share) for share in (50, 95, 99)] == [50.0, 95.0, 99.0]
    assert figures.percentile([7.0], 1) == 7.0
    assert figures.percentile([], 50) is None


def test_a_run_comes_out_of_its_file_as_it_went_in() -> None:
    decoded = decode(encode(history()))
    assert (decoded.outcomes, decoded.stays, decoded.paths) == (history().outcomes, history().stays, history().paths)
    assert file_of("topo:a/b c.yaml", 42) == "runs/topo-a-b-c.yaml.42.json.zst"


def test_long_names_make_files_of_their_own(tmp_path: Path) -> None:
    changes = ["drain:spine-1/leaf-1," * many + "drain:spine-2/leaf-1" for many in (20, 21)]
    file_names = {file_of("topo:" + "deep/" * 50 + "a.yaml", 42, change) for change in changes}
    assert len(file_names) == 2
    for name in file_names:
        (tmp_path / Path(name).name).write_bytes(b"")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"schema_version":1', '"schema_version":2', "schema_version is 2"),
        ('"node":[0,', '"node":[4,', "placements.node: there is no 4"),
        ('"job":[0,', '"job":[-2,', "placements.job: there is no -2"),
        ('"capacity":[8000,', '"capacity":[', "not of one length"),
    ],
)
def test_a_run_that_does_not_belong_together_is_reported(old: str, new: str, message: str) -> None:
    text = zstandard.ZstdDecompressor().decompress(encode(history())).decode()
    assert old in text
    with pytest.raises(ValueError, match=message):
        decode(zstandard.compress(text.replace(old, new).encode()))


# ---------------------------------------------------------------- the table


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_a_narrow_terminal_shows_every_figure_whole(width: int) -> None:
    (policy,) = read_policies("least-allocated")
    stream = "poisson:rate=6/m,jobs=12,sizes=1|8|16,duration=10h"
    tasks = (Task(policy, 1, CLUSTER, stream, changes=changes, what_if=",".join(changes)) for changes in CHANGES)
    before, after = (run(task).run for task in tasks)
    assert before.wait[0].p99 is not None and before.wait[0].p99 > 10_000
    for tables in (comparison([before], width), differences([before], [after], width)):
        screen = Console(width=width, record=True, file=io.StringIO())
        screen.print(*tables, sep="")
        said = screen.export_text()
        assert "\u2026" not in said, "nothing is cut short"
        assert max(map(len, said.splitlines())) <= width
        assert said.count("least-allocated") == len(tables) == said.count("policy")
        assert f"{before.wait[0].p99:,.0f}" in said and f"{before.utilisation_percent:.2f}" in said
        for part in ("utilisation", "arriving", "never", "spines", "slowdown"):
            assert part in said
        assert said.count("what if") + said.count(before.cluster) == 1, "one title"


@pytest.mark.parametrize("name", ["topo:[red].yaml", "topo:[/red].yaml"])
def test_names_in_brackets_are_names(name: str) -> None:
    done = run(_gangs()[0]).run.model_copy(update={"policy": name, "workload": name, "what_if": None})
    after = done.model_copy(update={"what_if": name})
    for tables in (comparison([done], 400), differences([done], [after], 400)):
        screen = Console(width=400, record=True, file=io.StringIO())
        screen.print(*tables, sep="")
        assert screen.export_text().count(name) == 2, "in the title, and as the name of a row"


def test_headings_are_clear_by_themselves() -> None:
    names = [name for name, _, _ in columns_of([run(task).run for task in _gangs()])]
    assert len(names) == len(set(names))
    assert {"wait p99 s", "most leaves", "slowdown p95"} <= set(names)


def test_means_of_counts_and_what_they_differ_by_agree() -> None:
    (base,) = (run(task).run for task in _gangs())
    before = [base.model_copy(update={"fill": 1.0, "seed": seed, "pods_placed": 26 + seed}) for seed in (0, 1)]
    after = [summary.model_copy(update={"what_if": "drain:l1", "pods_placed": 25}) for summary in before]
    _, placed, *_ = zip(*differing(before, after, columns_of(before)), strict=True)
    assert placed == ("26.5", "25", "-1.5")
    _, placed, *_ = zip(*differing(before[:1], after[:1], columns_of(before)), strict=True)
    assert placed == ("26", "25", "-1")


def _gangs() -> list[Task]:
    (policy,) = read_policies("rack")
    return [Task(policy, 1, CLUSTER, "poisson:rate=6/m,jobs=3,sizes=16,duration=100s")]


# ---------------------------------------------------------------- the folder, and the command


def simulate(*more: str) -> tuple[int, str]:
    """Call the command on a small case; return its exit code and what it said."""
    answer = command("simulate", "--cluster", CLUSTER, "--seeds", "1..2", *more)
    return answer.exit_code, answer.output


STREAM = ["--workload", "poisson:rate=6/m,jobs=12,sizes=1|8|16,duration=100s"]


def test_a_result_is_written_whole_and_replaced_whole(tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, said = simulate(*STREAM, "--policy", "topo,random", "--out", str(out))
    assert code == 0, said
    assert "policy" in said and "random" in said and "means of 2 seeds" in said
    document = json.loads((out / "result.json").read_text())
    follows(document, "result.schema.json")
    result = Result.model_validate(document)
    assert result.schema_version == 1
    assert [(entry.policy, entry.seed) for entry in result.runs] == [
        ("topo", 1),
        ("topo", 2),
        ("random", 1),
        ("random", 2),
    ]
    for summary in result.runs:
        placed = decode((out / summary.file).read_bytes())
        assert len(placed.outcomes) == summary.arrived == 12
        assert summary.decisions_per_s > 0
    assert simulate(*STREAM, "--policy", "fgd", "--fill", "1.2", "--out", str(out))[0] == 0
    (first, _) = read_result(out).runs
    assert first.policy == "fgd" and first.fill == 1.2 and 80 < first.gpu_allocated_percent <= 100
    assert not first.wait and first.utilisation_percent is None
    assert sorted(path.name for path in (out / "runs").iterdir()) == ["fgd.1.json.zst", "fgd.2.json.zst"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"], "nothing is left beside it"


def test_letters_that_the_locale_has_not_are_written_as_codes(tmp_path: Path) -> None:
    (tmp_path / "Köln.csv").write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1000,1000,1,1000\n")
    arguments = ["simulate", "--cluster", CLUSTER, "--workload", "Köln.csv", "--policy", "random"]
    completed = subprocess.run(
        [sys.executable, "-m", "topo_scheduler.cli", *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    assert rb"K\xf6ln.csv on leaf-spine" in completed.stdout


def test_a_folder_with_anything_else_is_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    code, said = simulate(*STREAM, "--out", str(out))
    assert code == 2 and "thesis.tex" in said and "name another folder" in said
    assert [path.name for path in out.iterdir()] == ["thesis.tex"]
    file = tmp_path / "file"
    file.write_text("")
    assert "not a folder" in simulate(*STREAM, "--out", str(file))[1]


def test_a_folder_that_cannot_be_replaced_is_reported_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for here in (".", "", str(tmp_path)):
        code, said = simulate(*STREAM, "--out", here)
        assert code == 2 and "is the folder you are in" in said and "name a folder inside of it" in said, said
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    code, said = simulate(*STREAM, "--out", "..")
    assert code == 2 and "is above the folder you are in" in said, said
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    code, said = simulate(*STREAM, "--out", str(tmp_path / "loop"))
    assert code == 2 and "is a link that leads to itself; name another folder" in said, said
    code, said = simulate(*STREAM, "--out", "/")
    assert code == 2 and "/ is where a file system is mounted" in said, said


def test_a_link_is_followed_and_stays(tmp_path: Path) -> None:
    target = tmp_path / "large" / "disk"
    target.mkdir(parents=True)
    for name in ("large/disk", "large/new"):
        link = tmp_path / name.replace("/", "-")
        link.symlink_to(tmp_path / name)
        write_result(link, [], {"runs/a": b"1"})
        assert link.is_symlink() and (tmp_path / name / "runs" / "a").read_bytes() == b"1"


def test_to_look_whether_a_folder_can_be_made_makes_none(tmp_path: Path) -> None:
    check_folder(tmp_path / "deep" / "down")
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("")
    with pytest.raises(CaseError, match="file/below: Not a directory; name another folder"):
        check_folder(tmp_path / "file" / "below")


def test_an_empty_folder_will_do(tmp_path: Path) -> None:
    check_folder(tmp_path)
    write_result(tmp_path / "deep" / "down", [], {})
    assert read_result(tmp_path / "deep" / "down").runs == []


def test_nothing_is_left_where_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    out = tmp_path / "out"
    write_result(out, [], {"runs/a": b"1"})
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(CaseError, match="No space left on device"):
        write_result(out, [], {"runs/b": b"2"})
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (out / "runs" / "a").read_bytes() == b"1", "the last result is whole"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_gets_a_signal_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    def told(*_: object) -> int:
        signal.raise_signal(number)
        return 0

    before = signal.signal(number, signal.SIG_DFL)
    try:
        write_result(tmp_path / "out", [], {"runs/a": b"1"})
        monkeypatch.setattr(Path, "write_bytes", told)
        assert simulate(*STREAM, "--policy", "random", "--out", str(tmp_path / "out"))[0] == 128 + number
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / "runs" / "a").exists(), "the last result is whole"


@pytest.mark.parametrize("fault", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_the_last_result_stays_whatever_happens_while_it_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: BaseException
) -> None:
    out, rename = tmp_path / "out", Path.rename
    write_result(out, [], {"runs/a": b"1"})
    renamed = []

    def struck(path: Path, target: Path) -> Path:
        renamed.append(path)
        if len(renamed) == 2:
            raise fault
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", struck)
    with pytest.raises((KeyboardInterrupt, CaseError)):
        write_result(out, [], {"runs/b": b"2"})
    assert (out / "runs" / "a").read_bytes() == b"1"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ('{"schema_version": 2, "runs": []}', "schema_version is 2, and 1 is what can be read here"),
        ("[]", "it has no schema_version"),
        ('{"schema_version": 1, "version": "0", "runs": [{}]}', r"runs\.0\.policy: Field required; simulate again"),
        ('{"schema_version"', "is not JSON"),
    ],
)
def test_what_is_no_result_of_this_version_is_reported_in_a_line(result: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(result)
    with pytest.raises(CaseError, match=message) as failed:
        write_report(tmp_path)
    assert "\n" not in str(failed.value)


def test_a_report_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    write_result(tmp_path / "out", [], {})
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(CaseError, match=r"--report: can't write .*: No space left on device"):
        write_report(tmp_path / "out")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--policy", "fdg"], "--policy: 'fdg' is unknown"),
        (["--seeds", "3,9..1"], "--seeds: '9..1' goes backwards; write 1..9"),
        (["--seeds", "-1"], "--seeds: '-1' is below 0"),
        (["--seeds", "1..10000000000000"], "is more than 10,000 seeds"),
        (["--fill", "0"], "--fill"),
        (["--fill", "nan"], "'--fill': 'nan' is not a number"),
        (["--bind-latency", "nan"], "'--bind-latency': 'nan' is not a number"),
        (["--bind-latency", "5", "--fill", "1"], "--bind-latency and --fill: no time passes in a fill; leave one out"),
        (["--communication", "NaN"], "'--communication': 'NaN' is not a number"),
        (["--config", "/no/such/file.yaml"], "/no/such/file.yaml"),
    ],
)
def test_bad_input_is_reported_before_anything_runs(wrong: list[str], message: str, tmp_path: Path) -> None:
    answer = command("simulate", "--cluster", CLUSTER, *STREAM, *wrong, "--out", str(tmp_path / "out"))
    assert answer.exit_code == 2
    assert message in answer.output
    assert not (tmp_path / "out").exists()


def test_a_cluster_that_is_not_there(tmp_path: Path) -> None:
    answer = command("simulate", "--cluster", "/no/such/place", *STREAM, "--out", str(tmp_path / "out"))
    assert answer.exit_code == 2
    assert "/no/such/place" in answer.output
    assert not (tmp_path / "out").exists()
