"""Nothing that became slower than it may passes, and nothing that wasn't measured."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.bench import check
from tests.bench.check import BASELINE, main, of_parts, read_baseline, write_baseline
from tests.bench.objects import Json
from tests.bench.parts import CHECKED, PARTS, Part
from tests.bench.ratios import RATIOS, Ratio, figure
from tests.bench.results import Unusable, write
from tests.bench.synthetic_results import synthetic_parts, synthetic_run


@pytest.fixture
def checked(tmp_path: Path) -> Callable[[Mapping[str, Json]], int]:
    """Compares a run with the baseline of one in which nothing is worse."""
    write_baseline(synthetic_run(synthetic_parts()), tmp_path / "baseline.json")

    def checks(parts: Mapping[str, Json]) -> int:
        write(tmp_path / "run.json", synthetic_run(parts))
        return main(["--from", str(tmp_path / "run.json"), "--baseline", str(tmp_path / "baseline.json")])

    return checks


Checked = Callable[[Mapping[str, Json]], int]


def test_a_run_like_the_baseline_passes(checked: Checked) -> None:
    assert checked(synthetic_parts()) == 0


@pytest.mark.parametrize(
    ("race", "times", "words"),
    [
        ("plain.1000", 2.99, "over kube-scheduler's: at least 3 times"),
        ("gangs.5000", 39.9, "over kube-scheduler's: at least 40 times"),
        ("gangs.5000", 7.99, "over KAI-Scheduler's: at least 8 times"),
    ],
)
def test_a_race_below_its_promised_floor_fails_whatever_the_baseline_says(
    race: str, times: float, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = synthetic_run(synthetic_parts({f"{race}.ours.pods_per_s": times / 1000}))
    write_baseline(run, tmp_path / "baseline.json")
    write(tmp_path / "run.json", run)
    assert main(["--from", str(tmp_path / "run.json"), "--baseline", str(tmp_path / "baseline.json")]) == 1
    said = capsys.readouterr()
    assert words in said.err
    assert "WORSE" not in said.out


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("takeover.first_bind.max_s", "first bind from the start of a process"),
        ("takeover.after_sigkill_beyond_lease.max_s", "first bind after SIGKILL of the leader"),
    ],
)
@pytest.mark.parametrize("times", [1.2, None], ids=["too late", "not measured"])
def test_a_start_or_takeover_that_is_later_than_promised_fails(
    path: str, words: str, times: float | None, checked: Checked, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = synthetic_parts({path: times or 1.0})
    if times is None:
        _, kind, _ = path.split(".")
        del parts["takeover"]["figures"][kind]
    assert checked(parts) == 1
    said = capsys.readouterr()
    (line,) = [line for line in said.err.splitlines() if line.startswith("failed: ")]
    assert words in line
    assert ("nothing measured" in line) == (times is None)
    assert "WORSE" not in said.out


def _moved(ratio: Ratio, by: float) -> dict[str, float]:
    """Only this ratio becomes worse by so much: its figures are read by others too, so it is checked by name."""
    return {ratio.over: by if ratio.better == "lower" else 1 / by}


@pytest.mark.parametrize("ratio", RATIOS, ids=lambda ratio: ratio.name)
def test_a_regression_fails_and_is_named(ratio: Ratio, checked: Checked, capsys: pytest.CaptureFixture[str]) -> None:
    assert checked(synthetic_parts(_moved(ratio, 1.01 * ratio.allowed))) == 1
    output = capsys.readouterr()
    assert f"{ratio.name} " in "".join(line for line in output.out.splitlines() if line.endswith("WORSE"))
    assert "tox -e bench -- --accept" in output.err


@pytest.mark.parametrize("ratio", RATIOS, ids=lambda ratio: ratio.name)
def test_what_is_allowed_and_what_is_better_is_not_worse(
    ratio: Ratio, checked: Checked, capsys: pytest.CaptureFixture[str]
) -> None:
    for by in (0.99 * ratio.allowed, 0.1):
        checked(synthetic_parts(_moved(ratio, by)))
        lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(f"{ratio.name} ")]
        assert len(lines) == 1
        assert not lines[0].endswith("WORSE")


@pytest.mark.parametrize("ratio", RATIOS, ids=lambda ratio: ratio.name)
@pytest.mark.parametrize("value", [None, "fast", True, float("nan")])
def test_a_figure_that_is_missing_fails(ratio: Ratio, value: object, checked: Checked) -> None:
    for path in filter(None, (ratio.over, ratio.by)):
        parts = synthetic_parts()
        name, *keys, last = path.split(".")
        at = parts[name]["figures"]
        for key in keys:
            at = at[key]
        at[last] = value
        assert checked(parts) == 1


def test_a_part_that_failed_or_is_not_there_fails(checked: Checked, capsys: pytest.CaptureFixture[str]) -> None:
    parts = synthetic_parts()
    parts["plain"] = {"seconds": 1.0, "load": {"begin": 0.0, "end": 0.0}, "failed": "etcd did not start"}
    assert checked(parts) == 1
    assert "plain: etcd did not start" in capsys.readouterr().err
    del parts["plain"]
    assert checked(parts) == 1
    assert "MISSING" in capsys.readouterr().out


def test_a_ratio_that_the_baseline_lacks_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    baseline, run = tmp_path / "baseline.json", tmp_path / "run.json"
    write_baseline(synthetic_run(synthetic_parts()), baseline)
    document = json.loads(baseline.read_text())
    del document["ratios"]["recheck"]
    baseline.write_text(json.dumps(document))
    write(run, synthetic_run(synthetic_parts()))
    assert main(["--from", str(run), "--baseline", str(baseline)]) == 1
    assert "NOT IN THE BASELINE" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text", [None, "", "[]", '{"schema": 0}', '{"schema": 1, "ratios": {"recheck": {"value": 1, "better": "faster"}}}']
)
def test_a_baseline_or_a_run_that_cannot_be_read_fails(
    text: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "given.json"
    if text is not None:
        path.write_text(text)
    assert main(["--baseline", str(path), "--from", str(path)]) == 1
    assert main(["--from", str(path)]) == 1
    assert str(path) in capsys.readouterr().err


# ---------------------------------------------------------------- measured again


class Machine:
    """Stands in for measuring: of each time a part is measured, by which factor some figures are what they were."""

    def __init__(self, *times: Mapping[str, float]) -> None:
        self.times = list(times)
        self.measured: list[str] = []

    def __call__(self, part: Part) -> Json:
        self.measured.append(part.name)
        nth = self.measured.count(part.name) - 1
        return synthetic_parts(self.times[min(nth, len(self.times) - 1)])[part.name]


SLOWER = {"rounds.recheck.steps": 3.0}


def anew(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    write_baseline(synthetic_run(synthetic_parts()), tmp_path / "baseline.json")
    monkeypatch.setattr(check, "measured", machine)
    return main(["--baseline", str(tmp_path / "baseline.json")])


def test_by_default_only_what_needs_nothing_but_python_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not any(PARTS[name].needs for name in CHECKED)
    machine = Machine({})
    assert anew(machine, tmp_path, monkeypatch) == 0
    assert machine.measured == list(CHECKED)
    assert f"{len(RATIOS) - len(of_parts(CHECKED))} more ratios were not checked" in capsys.readouterr().err


def test_what_looks_worse_is_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(SLOWER, {})
    assert anew(machine, tmp_path, monkeypatch) == 0
    assert machine.measured == [*CHECKED, "rounds"]


def test_what_is_worse_twice_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = Machine(SLOWER)
    assert anew(machine, tmp_path, monkeypatch) == 1
    assert machine.measured == [*CHECKED, "rounds"]
    assert "recheck looked worse: rounds once more" in capsys.readouterr().err


# ---------------------------------------------------------------- what is committed


def test_the_baseline_is_of_these_ratios_and_has_all_that_are_looked_at_by_default() -> None:
    committed = {name: (ratio.better, ratio.allowed) for name, ratio in read_baseline(BASELINE).items()}
    assert committed.items() <= {ratio.name: (ratio.better, ratio.allowed) for ratio in RATIOS}.items()
    assert {ratio.name for ratio in of_parts(CHECKED)} <= committed.keys()


def test_names_of_ratios_are_their_own_and_their_parts_exist() -> None:
    assert len({ratio.name for ratio in RATIOS}) == len(RATIOS)
    assert set().union(*(ratio.parts for ratio in RATIOS)) <= PARTS.keys()
    assert of_parts(CHECKED)


def test_no_baseline_is_taken_where_a_part_failed(tmp_path: Path) -> None:
    parts = synthetic_parts()
    parts["load"] = {"failed": "no server"}
    with pytest.raises(Unusable, match="load"):
        write_baseline(synthetic_run(parts), tmp_path / "baseline.json")
    assert not (tmp_path / "baseline.json").exists()


def test_no_baseline_is_taken_where_a_figure_is_missing(tmp_path: Path) -> None:
    parts = synthetic_parts()
    del parts["rounds"]["figures"]["recheck"]
    with pytest.raises(Unusable, match="recheck"):
        write_baseline(synthetic_run(parts), tmp_path / "baseline.json")


def test_a_baseline_of_some_parts_leaves_the_others(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    write_baseline(synthetic_run(synthetic_parts()), path)
    before = read_baseline(path)
    parts = {"rounds": synthetic_parts({"rounds.recheck.steps": 2.0})["rounds"]}
    write_baseline(synthetic_run(parts), path)
    after = read_baseline(path)
    assert {name for name in after if after[name] != before[name]} == {"recheck"}
    assert after["recheck"].value == 2 * before["recheck"].value


def test_a_figure_is_found_by_its_path() -> None:
    parts = {"one": {"figures": {"a": {"b": 3}, "list": [1]}}}
    assert figure(parts, "one.a.b") == 3.0
    assert figure(parts, "one.list.0") == 1.0
    for path in ("one.a", "one.a.c", "one.list.1", "one.list.a", "two.a", "one"):
        assert figure(parts, path) is None
