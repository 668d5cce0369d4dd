"""The audit log: one line for each thing asked, decided and done, in a file that operators may rotate."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import controlled_by, job_owner, make_job, make_pod, owner
from tests.recording.making import HeardDriver
from tests.scheduling.driver import configured, fabric, gang
from topo_scheduler.observability.audit_file import AuditFile, NotAppendable
from topo_scheduler.recording.audit import Audit
from topo_scheduler.scheduling.instructions import BindOutcome, EvictionOutcome

Json = dict[str, Any]


class Audited(HeardDriver):
    """A driver with an audit log."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = AuditFile(str(path))
        self.audit = Audit(self.file, clock=lambda: 1700000000.125)
        super().__init__([self.audit])

    def lines(self, *kinds: str) -> list[Json]:
        """Close the file and return its lines, of some kinds."""
        self.file.close()
        lines = [json.loads(line) for line in self.path.read_text().splitlines()]
        return [line for line in lines if not kinds or line["kind"] in kinds]


@pytest.fixture
def d(tmp_path: Path) -> Iterator[Audited]:
    driver = Audited(tmp_path / "audit.jsonl")
    driver.nodes(*fabric({"s1/l1": 2}))
    yield driver
    driver.file.close()


def test_the_audit_log_records_what_was_asked_decided_and_bound(d: Audited) -> None:
    pods = [make_pod(f"train-{n}", gpus=8, owner=controlled_by("Job", "train")) for n in range(2)]
    for pod in pods:
        pod.spec.service_account_name = "researchers"
    d.own(job_owner(make_job("train", parallelism=2, annotations={"gpu-count": "16"})))
    d.apply(*pods)
    d.settle()
    began, *asked_each, decided, bound, other = d.lines()
    assert {line["schema"] for line in (began, *asked_each, decided, bound, other)} == {1}
    assert began["kind"] == "began"
    assert began["time"] == "2023-11-14T22:13:20.125Z"
    assert [line["kind"] for line in asked_each] == ["asked", "asked"]
    asked = asked_each[0]
    assert (asked["namespace"], asked["workload"]) == ("default", "train")
    assert asked["pods"] == [{"name": "train-0", "uid": pods[0].metadata.uid}]
    assert asked["by"]["serviceAccount"] == "researchers"
    assert asked["by"]["owners"] == [{"kind": "Job", "namespace": "default", "name": "train", "uid": "uid-train"}]
    assert (decided["kind"], decided["verdict"], decided["leaves"]) == ("decided", "placed", ["s1/l1"])
    assert {seat["node"] for seat in decided["pods"]} == {"s1-l1-1", "s1-l1-2"}
    assert 0 < decided["score"] <= 1
    assert (bound["kind"], bound["outcome"], bound["id"]) == ("bound", "bound", "default/uid-train")
    assert bound["node"] == decided["pods"][0]["node"] == bound["pods"][0]["node"]
    assert bound["pods"][0]["domain"]
    assert bound["score"] == decided["score"]


def test_invisible_characters_of_tenants_are_written_as_escape_codes(d: Audited) -> None:
    kind, name, account = "Ki\u202end\x9b31m", "n\u202ex\u2028y\U000e0001\x7f", "a\u200bb"
    pod = make_pod("p", gpus=1, owner=controlled_by(kind, name))
    pod.spec.service_account_name = account
    bad = make_pod("bad", gpus=1, annotations={"gpu-count": "many\x9b31m"})
    d.own(owner(kind, name))
    d.apply(pod, bad)
    d.settle()
    d.file.close()
    text = d.path.read_text()
    assert all(line.isprintable() for line in text.split("\n"))
    lines = [json.loads(line) for line in text.splitlines()]
    of_pod = [line for line in lines if line.get("workload") != "bad" and "by" in line]
    assert {line["kind"] for line in of_pod} >= {"asked", "decided", "bound"}
    for line in of_pod:
        assert line["by"]["owners"][0]["kind"] == kind and line["by"]["owners"][0]["name"] == name
        assert line["by"]["serviceAccount"] == account


def test_what_was_refused_and_what_did_not_fit(d: Audited) -> None:
    bad = make_pod("bad", gpus=1, annotations={"gpu-count": "many"})
    d.apply(bad, *gang(3))
    d.settle()
    d.settle(30)
    (refused,) = d.lines("refused")
    assert refused["pods"][0]["name"] == "bad"
    assert "gpu-count" in refused["reason"]
    (decided,) = d.lines("decided")
    assert decided["verdict"] == "unschedulable", "said once, however many attempts follow"
    assert "0/2 nodes are available" in decided["reason"]


def test_binds_that_fail_and_those_that_the_watch_reports(d: Audited) -> None:
    d.apply(*gang(2, gpus=1))
    d.step()
    first, second = list(d.flight)
    bind = d.flight[second]
    d.answer(first, BindOutcome.REJECTED, "not today")
    d.answer(second, BindOutcome.UNKNOWN, "no answer")
    d.tell_again(d.write(bind))
    (rejected, unknown) = d.lines("not-bound")
    assert (rejected["outcome"], rejected["reason"]) == ("rejected", "not today")
    assert (unknown["outcome"], unknown["pods"][0]["uid"]) == ("unknown", second)
    (bound,) = d.lines("bound")
    assert bound["pods"][0]["uid"] == second


def test_a_gang_that_is_rolled_back(d: Audited) -> None:
    d.own(owner("ReplicaSet", "g", {"gang-size": "2"}))
    d.apply(*gang(2, controlled=True))
    d.step()
    uids = list(d.flight)
    d.answer(uids[0])
    node = d.flight[uids[1]].node
    d.drop_node(node)
    d.answer(uids[1], BindOutcome.WITHDRAWN, f"node {node} was deleted")
    for _ in range(4):
        d.settle(60)
    (rolled,) = d.lines("rolled-back")
    assert rolled["pods"][0]["uid"] == uids[0]
    assert "could not be completed" in rolled["reason"]
    (evicted,) = d.lines("evicted")
    assert evicted["pods"][0]["uid"] == uids[0]


def test_preemption(d: Audited) -> None:
    d.engine.budgets_known()
    low = [make_pod(f"low-{n}", gpus=8, priority=0) for n in range(2)]
    d.run(*low)
    high = make_pod("high", gpus=8, priority=10)
    high.spec.service_account_name = "urgent-team"
    d.apply(high)
    d.step()
    (victim,) = [pod for pod in low if pod.metadata.name in d.preempted()]
    d.evict(victim, outcome=EvictionOutcome.GOING)
    d.settle(1)
    (preempting,) = d.lines("preempting")
    assert preempting["pods"][0]["name"] == victim.metadata.name
    assert preempting["node"] and preempting["reason"]
    (nominated,) = d.lines("nominated")[:1]
    assert nominated["pods"][0]["name"] == "high"
    (preempted,) = d.lines("preempted")
    assert (preempted["pods"][0]["name"], preempted["outcome"]) == (victim.metadata.name, "going")
    for line in (preempting, preempted):
        assert line["preemptor"] == {"kind": "Pod", "namespace": "default", "name": "high", "uid": high.metadata.uid}
        assert line["by"]["serviceAccount"] == "urgent-team", "the user of the pod that fits then"


def test_every_line_about_a_pod_names_its_service_account(d: Audited) -> None:
    pods = gang(2, gpus=1)
    bad, large = make_pod("bad", gpus=1, annotations={"gpu-count": "many"}), make_pod("large", gpus=16)
    for pod in (*pods, bad, large):
        pod.spec.service_account_name = "team"
    d.apply(*pods, bad, large)
    d.step()
    for uid in list(d.flight):
        d.answer(uid, BindOutcome.REJECTED, "not today")
    d.settle(60)
    lines = d.lines("asked", "decided", "refused", "bound", "not-bound")
    assert {line["kind"] for line in lines} == {"asked", "decided", "refused", "bound", "not-bound"}
    for line in lines:
        assert line["by"] == {"serviceAccount": "team"}, line


def test_a_changed_configuration_and_the_end(d: Audited) -> None:
    d.engine.configure(configured("{topologyConstraints: {enforcement: preferred}}"))
    d.audit.ends()
    (changed,) = d.lines("configured")
    assert changed["spec"]["topologyConstraints"]["enforcement"] == "preferred"
    assert d.lines()[-1]["kind"] == "ended"


# ---------------------------------------------------------------- the file


def wait(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_file_that_is_renamed_is_created_again(tmp_path: Path) -> None:
    path, old = tmp_path / "audit.jsonl", tmp_path / "audit.jsonl.1"
    path.write_text("what was there before\n")
    file = AuditFile(str(path))
    file.put(b"one")
    wait(lambda: file.lines == 1)
    path.rename(old)
    file.put(b"two")
    file.close()
    assert old.read_text() == "what was there before\none\n"
    assert path.read_text() == "two\n"


def test_a_file_that_is_truncated_goes_on_at_its_start(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    file = AuditFile(str(path))
    file.put(b"one")
    wait(lambda: file.lines == 1)
    path.write_text("")
    file.reopen()
    file.put(b"two")
    file.close()
    assert path.read_text() == "two\n"


def test_lines_of_two_writers_do_not_mix(tmp_path: Path) -> None:
    path = str(tmp_path / "audit.jsonl")
    files = [AuditFile(path), AuditFile(path)]

    def write(file: AuditFile, letter: bytes) -> None:
        for _ in range(200):
            file.put(letter * 20_000)
        file.close()

    threads = [threading.Thread(target=write, args=(file, b"ab"[n : n + 1])) for n, file in enumerate(files)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = Path(path).read_bytes().splitlines()
    assert len(lines) == 400
    assert set(lines) == {b"a" * 20_000, b"b" * 20_000}


def test_a_file_that_can_not_be_used(tmp_path: Path) -> None:
    with pytest.raises(NotAppendable, match=r"name a file this process may append to, or - for stdout"):
        AuditFile(str(tmp_path / "no" / "such" / "folder"))


def test_a_full_disk_loses_lines_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    file = AuditFile("/dev/full")
    for _ in range(3):
        file.put(b"line")
    wait(lambda: file.dropped == 3)
    file.put(b"line")
    file.close()
    assert (file.lines, file.dropped) == (0, 4)
    assert [record.message for record in caplog.records if "audit log" in record.message] == [
        "lines of the audit log are lost, scheduling continues: /dev/full: No space left on device"
    ]


def test_standard_output(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setattr(sys.stdout, "fileno", lambda: 1, raising=False)
    file = AuditFile("-")
    file.put(b'{"kind":"asked"}')
    file.close()
    assert capfd.readouterr().out == '{"kind":"asked"}\n'
