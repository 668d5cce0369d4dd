"""A record repeats, bit for bit; what was changed is found; what can't be read is named with a remedy."""

import inspect
import io
import json
import logging
import os
import pickle
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar, cast, get_origin, get_type_hints

import numpy as np
import pytest
import zstandard

from tests.cli.conftest import ROOT, run
from tests.helpers import controlled_by, job_owner, make_job, make_node, make_pod, owner
from tests.recording.making import (
    LARGE,
    HeardDriver,
    lines_of,
    record,
    rewrite,
    segment,
    three_gangs,
)
from tests.scheduling.driver import configured, fabric, gang
from topo_scheduler.observability.segment_writer import NotWritable, SegmentLimits, SegmentWriter
from topo_scheduler.observability.segments import RecordError, SegmentReader, segments_of
from topo_scheduler.plugins.isolation import Isolated
from topo_scheduler.recording import checkpoint
from topo_scheduler.recording.calls import QUERIES, SIGNATURES, decode_arguments, encode_arguments
from topo_scheduler.recording.observed_engine import CallListener, ObservedCall, ObservedEngine
from topo_scheduler.recording.recorder import Recorder
from topo_scheduler.recording.replay import replay
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.scheduling.extensions.direct import DirectGuard
from topo_scheduler.scheduling.extensions.extension import Demand, Filter, Plugin, PluginError, Score
from topo_scheduler.scheduling.extensions.registry import Extensions
from topo_scheduler.scheduling.intake.understand import Lineage
from topo_scheduler.state.pods.workloads import Stage
from topo_scheduler.state.storage.storage_objects import ReserveVolume, SelectNode

# ---------------------------------------------------------------- what repeats


def test_a_record_repeats(tmp_path: Path) -> None:
    record(tmp_path, three_gangs)
    report = replay(tmp_path)
    assert report.first is None
    assert report.notes == []
    assert (report.decisions, report.files, report.skipped) == (3, 1, 0)
    assert report.calls == len(lines_of(segment(tmp_path))) - 2, "all but the header and the end"


def test_invisible_characters_are_escape_codes_in_the_record_and_repeat(tmp_path: Path) -> None:
    """Operators show a segment by zstdcat, on a terminal."""
    hostile = "n\u202ex\u2028y\x9b31m\U000e0001\x7f"

    def work(d: HeardDriver, _: Recorder) -> None:
        d.nodes(*fabric({"s1/l1": 4}))
        d.own(owner("ReplicaSet", hostile))
        d.apply(make_pod("p", gpus=1, owner=controlled_by("ReplicaSet", hostile)))
        d.apply(make_pod(hostile, gpus=1))
        d.settle()

    record(tmp_path, work)
    lines = lines_of(segment(tmp_path))
    assert all(line.decode().isprintable() for line in SegmentReader(segment(tmp_path)))
    assert any(hostile in json.dumps(line["out"], ensure_ascii=False) for line in lines if "out" in line)
    assert replay(tmp_path).first is None
    unescaped = [json.dumps(line, separators=(",", ":"), ensure_ascii=False).encode() for line in lines]
    packed = zstandard.ZstdCompressor(write_checksum=True).compress(b"\n".join(unescaped) + b"\n")
    segment(tmp_path).write_bytes(packed)
    assert replay(tmp_path).first is None, "records of earlier versions have no escape codes"


def test_a_checkpoint_has_no_part_of_the_guard_that_calls_plugins(tmp_path: Path) -> None:
    """The guard of the daemon counts calls in metrics, which can't be written to a checkpoint."""

    def work(d: HeardDriver, recorder: Recorder) -> None:
        three_gangs(d)
        recorder.checkpoint()
        d.apply(*gang(2, name="more"))
        d.settle(30)

    record(tmp_path, work, guard=Isolated(1.0))
    segment(tmp_path, 1).unlink()
    report = replay(tmp_path)
    assert report.notes == []
    assert report.files == 1


def test_in_another_process_with_other_hashes(tmp_path: Path) -> None:
    record(tmp_path, three_gangs)
    for seed in ("1", "2"):
        command = [sys.executable, "-m", "topo_scheduler", "replay", str(tmp_path), "-o", "json"]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": seed}, check=False
        )
        assert done.returncode == 0, done.stderr + done.stdout
        assert json.loads(done.stdout)["decisions"] == 3


def test_decisions_on_two_trees_repeat(tmp_path: Path) -> None:
    def work(d: HeardDriver, _: Recorder) -> None:
        nodes = fabric({"s1/l1": 4, "s1/l2": 4})
        for number, node in enumerate(nodes):
            node.metadata.labels["nvidia.com/gpu.clique"] = f"x.{number % 2}"
        d.nodes(*nodes)
        for number, asked in enumerate(("required-level", "preferred-level", "required-level")):
            d.now += 1
            pods = gang(3, name=f"team-{number}")
            for pod in pods:
                pod.metadata.annotations[f"topology.scheduler/{asked}"] = "accelerator-domain"
            d.apply(*pods)
            d.settle()
        d.nodes(make_node("s1-l1-1", "s1/l1", labels={"nvidia.com/gpu.clique": "x.1"}))
        d.settle(1)

    record(tmp_path, work)
    report = replay(tmp_path)
    assert report.first is None
    assert report.decisions >= 3


def test_every_call_that_changes_the_engine_is_recorded() -> None:
    """A method that is added is; one that returns something must be a query, or be the step."""
    public = {
        name for name, attribute in vars(Engine).items() if inspect.isfunction(attribute) and not name.startswith("_")
    }
    assert public == set(SIGNATURES) | QUERIES
    for name in SIGNATURES:
        returns = inspect.signature(getattr(Engine, name)).return_annotation
        known = name in ("step", "may_bind") or returns is None
        assert known, f"{name} returns {returns}: name it in QUERIES if it changes nothing"


@pytest.mark.parametrize("name", sorted(SIGNATURES))
def test_an_observed_engine_passes_on_each_recorded_call_as_the_engine_defines_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    signature, calls, heard = SIGNATURES[name], [], []
    original = getattr(Engine, name)

    def called(engine: Engine, *arguments: Any) -> str:
        calls.append(arguments)
        return "answer"

    class Listener:
        def call_starts(self, name: str, arguments: Sequence[Any]) -> None:
            heard.append((name, list(arguments)))

        def __getattr__(self, name: str) -> Any:
            return lambda *_: None

    assert name in vars(ObservedEngine), "it is not observed"
    assert inspect.signature(vars(ObservedEngine)[name]) == inspect.signature(original)
    engine = ObservedEngine(configured(), lambda pod: None, None, 0.0, [cast("CallListener", Listener())])
    monkeypatch.setattr(Engine, name, wraps(original)(called))
    hints = get_type_hints(original)
    given: list[Any] = [object() for _ in signature.names]
    for at, argument in enumerate(signature.names):
        if get_origin(hints[argument]) in (Iterable, Collection, Sequence):
            given[at] = [object()]
    recorded = [value for at, value in enumerate(given) if at != signature.clock]
    assert getattr(engine, name)(*given) == ("answer" if hints["return"] is not type(None) else None)
    assert heard == [(name, recorded)]
    ((*passed,),) = calls
    assert [value for at, value in enumerate(passed) if at != signature.clock] == recorded


def test_owners_configuration_and_failed_binds_are_part_of_it(tmp_path: Path) -> None:
    from topo_scheduler.scheduling.instructions import BindOutcome

    def work(d: HeardDriver, _: Recorder) -> None:
        d.nodes(*fabric({"s1/l1": 4}))
        pods = [make_pod(f"p{n}", gpus=8, owner=controlled_by("Job", "train")) for n in range(2)]
        d.apply(*pods)
        d.step()
        d.own(job_owner(make_job("train", parallelism=2)))
        d.step(1)
        first, second = list(d.flight)
        d.answer(first, BindOutcome.REJECTED, "not today")
        d.answer(second)
        d.engine.configure(configured("{topologyConstraints: {enforcement: preferred}}"))
        d.settle(5)
        d.settle(20)

    record(tmp_path, work)
    report = replay(tmp_path)
    assert report.first is None
    assert report.decisions >= 2
    assert any(line.get("owners") == [None, None] for line in lines_of(segment(tmp_path)))


def test_the_step_ends_where_it_ended_though_the_replay_is_faster(tmp_path: Path) -> None:
    """What the clock said is part of the record: a step stops after as many workloads."""
    readings = iter(x / 1000 for x in range(100_000))

    def work(d: HeardDriver, _: Recorder) -> None:
        d.nodes(*fabric({"s1/l1": 8}))
        for number in range(8):
            d.apply(*gang(1, name=f"g{number}"))
        while d.engine.pending_work:
            d.engine.step(d.now, lambda: next(readings), 0.004)

    record(tmp_path, work)
    per_step = [
        sum(kind == "RecordDecision" for kind, _ in line.get("out", [])) for line in lines_of(segment(tmp_path))[1:]
    ]
    assert max(per_step) < 8, "the budget ended some steps"
    assert replay(tmp_path).first is None


class Failing(DirectGuard):
    """Calls plugins; every third call fails as if its time were up."""

    def __init__(self) -> None:
        self.calls = 0

    def call(self, plugin: str, point: str, work: Any) -> Any:
        self.calls += 1
        if self.calls % 3 == 0:
            raise PluginError(plugin, point, "slow", "it took longer than 1 s and is disabled")
        return super().call(plugin, point, work)


def test_plugins_answer_from_the_record(tmp_path: Path) -> None:
    """Whatever they said, and however they failed: none of their code runs in a replay."""
    called = []

    def accepts(nodes: Any, cls: Any, rows: Any) -> Any:
        called.append(len(rows))
        return np.arange(len(rows)) % 2 == 0

    plugin = Plugin(
        "odd",
        filters=[Filter("node(s) were odd", accepts)],
        scores=[Score("late", nodes=lambda nodes, request, rows: (rows * 7 % 1000).astype(np.int64))],
        size_rule=lambda gang: Demand("two", leaves=2) if gang.members > 2 else None,
    )

    def work(d: HeardDriver, _: Recorder) -> None:
        d.nodes(*fabric({"s1/l1": 4, "s1/l2": 4}))
        for number in range(4):
            d.apply(*gang(2 + number % 2, name=f"g{number}"))
            d.settle(30)

    record(tmp_path, work, plugins=[plugin], guard=Failing())
    calls = len(called)
    report = replay(tmp_path)
    assert report.first is None
    assert calls and len(called) == calls
    answers = [answer for line in lines_of(segment(tmp_path)) for answer in line.get("answers", [])]
    assert any("failure" in answer for answer in answers)
    assert any("data" in answer for answer in answers)
    assert any("demand" in answer for answer in answers)


def test_arguments_come_back_as_they_were() -> None:
    writes = [
        (ReserveVolume("v", "u", "1", ("ns", "c"), "cu", "2", True), "7"),
        (SelectNode(("n", "c"), "u", "1", "x"), ""),
    ]
    assert decode_arguments("volumes_written", encode_arguments("volumes_written", ["uid", writes, "odd"])) == [
        "uid",
        writes,
        "odd",
    ]
    config = configured("{scoringWeights: {historicalPerformance: 0.123456789}, placementRules: [{name: a, level: x}]}")
    assert decode_arguments("configure", encode_arguments("configure", [config])) == [config]
    node = make_node("n1", "s1/l1")
    assert decode_arguments("nodes_applied", encode_arguments("nodes_applied", [[node], 1e-9])) == [[node], 1e-9]


# ---------------------------------------------------------------- what differs


def test_a_tampered_instruction_is_found(tmp_path: Path) -> None:
    record(tmp_path, three_gangs)
    lines = lines_of(segment(tmp_path))
    at = next(at for at, line in enumerate(lines) if any(kind == "RecordDecision" for kind, _ in line.get("out", [])))
    decision = next(fields for kind, fields in lines[at]["out"] if kind == "RecordDecision")["decision"]
    seat = decision["seats"][2]
    decided, seat["node"] = seat["node"], "elsewhere"
    rewrite(segment(tmp_path), lines)
    report = replay(tmp_path)
    first = report.first
    assert first is not None
    assert (first.segment, first.call, first.name) == ("00000001.jsonl.zst", at, "step")
    assert first.workload == "default/team-0"
    assert first.field == "RecordDecision.decision.seats[2].node"
    assert (first.recorded, first.replayed) == ("elsewhere", decided)
    assert first.time.startswith("20")
    assert report.decisions == 0


def test_a_tampered_fact_is_found_at_the_first_decision_it_changes(tmp_path: Path) -> None:
    record(tmp_path, three_gangs)
    lines = lines_of(segment(tmp_path))
    fact = next(line for line in lines if line.get("call") == "nodes_applied" and line["args"][0])
    fact["args"][0][0]["status"]["allocatable"]["nvidia.com/gpu"] = "4"
    rewrite(segment(tmp_path), lines)
    first = replay(tmp_path).first
    assert first is not None
    assert first.name == "step"
    assert first.recorded != first.replayed


@pytest.mark.parametrize("more", [True, False])
def test_one_instruction_more_or_less(tmp_path: Path, more: bool) -> None:
    record(tmp_path, three_gangs)
    lines = lines_of(segment(tmp_path))
    step = next(line for line in lines if line.get("out"))
    step["out"] = [*step["out"], ["LogWarning", {"message": "odd"}]] if more else step["out"][:-1]
    rewrite(segment(tmp_path), lines)
    first = replay(tmp_path).first
    assert first is not None
    assert ("nothing" in (first.recorded, first.replayed)) and first.recorded != first.replayed


def test_an_engine_that_asks_for_more_or_less_differs(tmp_path: Path) -> None:
    record(tmp_path, three_gangs)
    for field, value in (("owners", [0, 0, 0, 0, 0]), ("owners", []), ("clock", [0.0])):
        lines = lines_of(segment(tmp_path))
        wanted = "step" if field == "clock" else "pods_applied"
        next(line for line in lines if line.get("call") == wanted and line.get(field))[field] = value
        copy = tmp_path / f"{field}-{len(value)}"
        copy.mkdir()
        rewrite(segment(copy), lines)
        first = replay(copy).first
        assert first is not None
        assert first.field == field


# ---------------------------------------------------------------- what is cut short, rotated, deleted


def test_a_killed_scheduler_leaves_a_record_that_repeats_up_to_there(tmp_path: Path) -> None:
    def work(d: HeardDriver, recorder: Recorder) -> None:
        three_gangs(d)
        time.sleep(0.8)  # what is handed over is written every half second
        three_gangs(d)

    record(tmp_path, work)
    whole = replay(tmp_path)
    path = segment(tmp_path)
    path.write_bytes(path.read_bytes()[:-40])
    report = replay(tmp_path)
    assert report.first is None
    assert 0 < report.calls < whole.calls
    (note,) = report.notes
    assert f"ends in the middle, as when the scheduler runs or was killed: repeated up to call {report.calls}" in note


def busy(d: HeardDriver, writer: SegmentWriter, until: int) -> None:
    """Decide and take back until the writer has begun so many segments."""
    d.nodes(*fabric({"s1/l1": 8, "s1/l2": 8}))
    for number in range(100_000):
        pods = gang(1 + number % 5, name=f"work-{number}", gpus=1 + number % 8)
        d.apply(*pods)
        d.settle(1)
        d.delete(*pods)
        d.step()
        if writer.next_number > until:
            return
        assert not writer.failed
        time.sleep(0.005)
    raise AssertionError(f"segment {until} is never full")


def test_segments_are_rotated_and_the_oldest_deleted(tmp_path: Path) -> None:
    bounds = SegmentLimits(120_000, 12_000, 3600)
    writer = SegmentWriter(tmp_path, bounds)
    recorder = Recorder(writer)
    peak_bytes = 0
    d = HeardDriver([recorder])
    try:
        for until in range(2, 16):
            busy(d, writer, until)
            peak_bytes = max(peak_bytes, sum(file.size() for file in segments_of(tmp_path)))
        recorder.ends()
    finally:
        writer.close()
    assert writer.failed == ""
    assert peak_bytes < bounds.directory_bytes
    kept = [file.number for file in segments_of(tmp_path)]
    assert kept[0] > 1, "the start of the term is gone"
    assert kept == list(range(kept[0], kept[-1] + 1))
    assert not segment(tmp_path, 1).with_name("00000001.checkpoint.zst").exists()
    report = replay(tmp_path)
    assert report.first is None
    assert report.notes == []
    assert report.files == len(kept)
    assert report.decisions > 10


def test_a_segment_that_outgrows_its_measure_takes_the_room_of_older_ones(tmp_path: Path) -> None:
    bounds = SegmentLimits(100_000, 10_000, 3600)
    for _ in range(2):
        writer = SegmentWriter(tmp_path, bounds)
        writer.begin(b"{}")
        writer.put(os.urandom(60_000).hex().encode())
        writer.close()
        assert writer.failed == ""
    assert [file.number for file in segments_of(tmp_path)] == [2]
    assert 50_000 < segment(tmp_path, 2).stat().st_size < bounds.directory_bytes


def test_a_segment_says_how_full_it_is(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, SegmentLimits(100_000, 20_000, 3600))

    def after(size: int) -> tuple[bool, bool, bool]:
        before = writer.written
        writer.put(os.urandom(size))
        while writer.written < before + size:
            time.sleep(0.01)
        time.sleep(0.1)  # until it has looked at itself
        return writer.full, writer.overfull, writer.huge

    try:
        writer.begin(b"{}")
        assert after(15_000) == (False, False, False)
        assert after(7_000) == (True, False, False), "above its measure"
        assert after(6_000) == (True, True, True), "by a quarter, and a quarter of all"
        writer.begin(b"{}")
        assert after(1_000) == (False, False, False)
    finally:
        writer.close()


def test_a_few_lines_may_wait_as_long_as_they_like(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topo_scheduler.observability.segment_writer.PATIENCE_SECONDS", 0.0)
    writer = SegmentWriter(tmp_path, SegmentLimits(100_000, 20_000, 3600))
    try:
        writer.begin(b"{}")
        for _ in range(3):
            writer.put(b"{}")
            time.sleep(0.01)
        assert writer.failed == ""
    finally:
        writer.close()


def test_a_segment_gets_old_too(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, SegmentLimits(1 << 30, 1 << 26, 0.01))
    recorder = Recorder(writer)
    try:
        busy(HeardDriver([recorder]), writer, 2)
        recorder.ends()
    finally:
        writer.close()
    assert len(segments_of(tmp_path)) == 2


def test_a_search_is_not_cut_in_two_by_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that runs in parts can't be written: the next segment begins once it is done."""
    writer = SegmentWriter(tmp_path, SegmentLimits(1 << 30, 1 << 26, 0.01))
    recorder = Recorder(writer)
    d = HeardDriver([recorder])
    try:
        monkeypatch.setattr(type(d.engine.moving), "working", property(lambda _: True))
        for number in range(1000):
            overfull = writer.overfull
            d.apply(*gang(2, name=f"team-{number}"))
            d.engine.step(d.now, d.clock)
            assert writer.next_number == 2
            if overfull:
                break
            time.sleep(0.005)
        assert overfull
        monkeypatch.undo()
        busy(d, writer, 2)
        recorder.ends()
    finally:
        writer.close()
    assert replay(tmp_path).notes == []
    segment(tmp_path, 1).unlink()
    assert replay(tmp_path).files == 1, "it has its checkpoint"


def test_a_gap_is_bridged_by_the_next_checkpoint(tmp_path: Path) -> None:
    def work(d: HeardDriver, recorder: Recorder) -> None:
        three_gangs(d)
        recorder.checkpoint()
        d.apply(*gang(2, name="more"))
        d.settle(30)
        recorder.checkpoint()
        d.delete(*list(d.pods.values())[:4])
        d.settle(30)

    record(tmp_path, work)
    whole = replay(tmp_path)
    segment(tmp_path, 2).unlink()
    report = replay(tmp_path)
    assert report.first is None
    assert report.files == 2
    assert 3 < report.decisions < whole.decisions


def test_without_its_predecessors_a_segment_without_a_checkpoint_is_left_out(tmp_path: Path) -> None:
    def work(d: HeardDriver, recorder: Recorder) -> None:
        three_gangs(d)
        recorder._begin("continued", None)
        d.settle(30)

    record(tmp_path, work)
    assert replay(tmp_path).notes == []
    segment(tmp_path, 1).unlink()
    report = replay(tmp_path)
    assert (report.files, report.skipped) == (0, 1)
    assert "it has no checkpoint" in report.notes[0]
    done = run("replay", str(tmp_path))
    assert done.exit_code == 2
    assert "nothing could be repeated" in done.output


def test_a_checkpoint_of_another_build_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(d: HeardDriver, recorder: Recorder) -> None:
        three_gangs(d)
        recorder.checkpoint()
        d.settle(30)

    record(tmp_path, work)
    segment(tmp_path, 1).unlink()
    monkeypatch.setattr(checkpoint, "build", lambda: "another")
    report = replay(tmp_path)
    assert report.files == 0
    assert "can be read only by the build that wrote it" in report.notes[0]


def test_each_term_begins_with_a_new_state(tmp_path: Path) -> None:
    record(tmp_path, three_gangs)
    record(tmp_path, three_gangs)
    report = replay(tmp_path)
    assert report.first is None
    assert (report.decisions, report.files) == (6, 2)


# ---------------------------------------------------------------- what can't be read


def test_a_directory_that_is_none_or_empty(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="name the directory that was given to run --record"):
        replay(tmp_path / "nowhere")
    with pytest.raises(RecordError, match="no segment of a record; name the directory"):
        replay(tmp_path)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"hello", "byte 0: not a segment of a record .*; delete it"),
        (None, "not a segment of a record"),
        ([{"format": "something else", "schema": 1}], "not a segment of a record of this scheduler"),
        ([{"no": "header"}], "not a segment of a record of this scheduler"),
        (
            [{"format": "topo-scheduler record", "schema": 2, "version": "9.9"}],
            "schema 2, and this version reads schema 1; replay it with version 9.9, which wrote it",
        ),
    ],
)
def test_a_file_that_is_not_ours(tmp_path: Path, content: Any, expected: str) -> None:
    path = segment(tmp_path)
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is None:
        path.write_bytes(b"")
        import zstandard

        path.write_bytes(zstandard.compress(b"no json\n"))
    else:
        rewrite(path, content)
    with pytest.raises(RecordError, match=expected) as caught:
        replay(tmp_path)
    assert str(path) in str(caught.value)


def test_a_damaged_file(tmp_path: Path) -> None:
    record(tmp_path, three_gangs)
    path = segment(tmp_path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(RecordError, match=r"00000001\.jsonl\.zst: byte \d+: damaged "):
        replay(tmp_path)


def test_the_position_of_the_damage_in_a_file_is_reported(tmp_path: Path) -> None:
    path = segment(tmp_path)
    lines = [{"format": "topo-scheduler record"}, *({"noise": os.urandom(3000).hex()} for _ in range(100))]
    rewrite(path, lines)
    data = bytearray(path.read_bytes())
    wrong = len(data) * 3 // 4
    data[wrong : wrong + 2000] = bytes(2000)
    path.write_bytes(data)
    reader = SegmentReader(path)
    with pytest.raises(RecordError, match=": damaged "):
        list(reader)
    # zstd decodes blocks of at most 128 KiB, each as a whole.
    assert wrong - (1 << 13) <= reader.offset <= wrong + (1 << 17)


def test_lines_that_make_no_sense(tmp_path: Path) -> None:
    record(tmp_path, three_gangs)
    for wrong in ({"call": "no_such_call", "args": []}, {"call": "step", "args": ["soon"]}, {"call": 5}):
        lines = lines_of(segment(tmp_path))
        copy = tmp_path / "copy"
        copy.mkdir(exist_ok=True)
        rewrite(segment(copy), [*lines[:2], wrong, *lines[2:]])
        with pytest.raises(RecordError, match="it is damaged, or was changed"):
            replay(copy)


def test_a_call_and_an_answer_that_were_changed(tmp_path: Path) -> None:
    record(tmp_path, three_gangs)
    lines = lines_of(segment(tmp_path))
    rewrite(segment(tmp_path), [*lines[:2], {}, *lines[2:]])
    with pytest.raises(RecordError, match="call 2: there is no call named ''; it is damaged"):
        replay(tmp_path)
    changed = next(fields for line in lines for kind, fields in line.get("out", ()) if kind == "Bind")
    changed["pod"] = [[]]
    rewrite(segment(tmp_path), lines)
    first = replay(tmp_path).first
    assert first is not None
    assert (first.field, first.workload) == ("Bind.pod", "")


class Evil:
    ran: ClassVar[list[str]] = []

    def __reduce__(self) -> Any:
        return os.system, ("touch /nonexistent/evil",)


def test_a_checkpoint_runs_no_code() -> None:
    with pytest.raises(checkpoint.CheckpointError, match=r"it names (posix|os)\.system, which is no part of an engine"):
        checkpoint.load(pickle.dumps(Evil()), lambda pod: Lineage(), Extensions())
    for damaged in (b"", b"\x80\x05garbage", pickle.dumps((1, 2, 3))):
        with pytest.raises(checkpoint.CheckpointError):
            checkpoint.load(damaged, lambda pod: Lineage(), Extensions())


# ---------------------------------------------------------------- what goes wrong while writing


def test_a_directory_that_can_not_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotWritable, match="name a directory this process may write to"):
        SegmentWriter(tmp_path / "file" / "below", LARGE)
    first = SegmentWriter(tmp_path / "record", LARGE)
    with pytest.raises(NotWritable, match="another process records there; give each a directory of its own"):
        SegmentWriter(tmp_path / "record", LARGE)
    first.close()
    SegmentWriter(tmp_path / "record", LARGE).close()


def test_a_disk_that_fails_ends_the_record_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = tmp_path / "record"
    writer = SegmentWriter(directory, LARGE)
    recorder = Recorder(writer)
    d = HeardDriver([recorder])
    three_gangs(d)
    shutil.rmtree(directory)
    recorder.checkpoint()
    deadline = time.monotonic() + 10
    while not writer.failed and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "No such file or directory" in writer.failed
    before = len(d.decisions())
    d.apply(*gang(1, name="after", gpus=1))
    d.settle(30)
    assert len(d.decisions()) > before, "scheduling goes on"
    recorder.ends()
    writer.close()
    stopped = [entry for entry in caplog.records if "recording has stopped, scheduling continues" in entry.message]
    assert len(stopped) == 1
    assert stopped[0].levelno == logging.ERROR


def test_a_disk_that_is_too_slow_ends_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topo_scheduler.observability.segment_writer.MAX_QUEUE_BYTES", 10_000)
    monkeypatch.setattr("topo_scheduler.observability.segment_writer.PATIENCE_SECONDS", 0.0)
    writer = SegmentWriter(tmp_path, LARGE)
    try:
        for _ in range(20):
            writer.put(b"x" * 1000)
        assert "wait to be written: the disk is too slow" in writer.failed
    finally:
        writer.close()


def test_a_list_of_the_whole_cluster_is_taken_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topo_scheduler.observability.segment_writer.MAX_QUEUE_BYTES", 1000)
    record(tmp_path, lambda d, _: d.nodes(*fabric({"s1/l1": 100})))
    assert replay(tmp_path).notes == []


class Broken:
    """A listener that fails."""

    def __init__(self) -> None:
        self.calls = 0
        self.told: list[Exception] = []

    def engine_made(self, engine: Engine) -> None:
        """Nothing."""

    def call_starts(self, name: str, arguments: Any) -> None:
        self.calls += 1
        raise RuntimeError("odd")

    def call_ended(self, call: ObservedCall) -> None:
        """Nothing."""

    def ends(self) -> None:
        """Nothing."""

    def listener_failed(self, error: Exception) -> None:
        self.told.append(error)


def test_a_listener_that_fails_gets_no_more_calls(caplog: pytest.LogCaptureFixture) -> None:
    broken = Broken()
    d = HeardDriver([broken])
    three_gangs(d)
    assert len(d.decisions()) == 3
    assert broken.calls == len(broken.told) == 1
    assert "Broken failed, and gets no more calls" in caplog.text


# ---------------------------------------------------------------- the command


def test_the_command_says_how_many_were_repeated(tmp_path: Path) -> None:
    record(tmp_path, three_gangs)
    done = run("replay", str(tmp_path))
    assert done.exit_code == 0
    assert done.output.startswith("3 decisions in 1 file repeated, 0 differences, ")
    report = json.loads(run("replay", str(tmp_path), "-o", "json").output)
    assert (report["schema"], report["differences"], report["decisions"], report["first"]) == (1, 0, 3, None)


def test_the_command_says_where_it_first_differs(tmp_path: Path) -> None:
    record(tmp_path, three_gangs)
    lines = lines_of(segment(tmp_path))
    step = next(line for line in lines if line.get("out"))
    next(fields for kind, fields in step["out"] if kind == "Bind")["node"] = "elsewhere"
    rewrite(segment(tmp_path), lines)
    done = run("replay", str(tmp_path))
    assert done.exit_code == 1
    for expected in ("00000001.jsonl.zst, call", "field     Bind.node", "recorded  elsewhere", "replayed  s1-l1-"):
        assert expected in done.output
    result = run("replay", str(tmp_path), "-o", "json")
    assert result.exit_code == 1
    assert json.loads(result.output)["first"]["field"] == "Bind.node"


def test_the_command_names_what_can_not_be_read(tmp_path: Path) -> None:
    segment(tmp_path).write_bytes(b"hello")
    done = run("replay", str(tmp_path))
    assert done.exit_code == 2
    assert "00000001.jsonl.zst: byte 0: not a segment" in done.output


def test_members_of_enumerations_are_read_back_whatever_python_names_them_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11.2 pickles them by ``getattr``, which a checkpoint may not name."""
    monkeypatch.setattr(Stage, "__reduce_ex__", lambda self, _: (getattr, (Stage, self.name)))
    file = io.BytesIO()
    checkpoint._Pickler(file, {}).dump([Stage.BOUND, Stage.BOUND])
    loaded = checkpoint._Unpickler(io.BytesIO(file.getvalue()), {}).load()
    assert loaded[0] is loaded[1] is Stage.BOUND
