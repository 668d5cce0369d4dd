"""Strings of tenants in the output of every command: no markup, no escape codes, no forged lines."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.cli.conftest import RECOVERS, ROOT, Served, run
from topo_scheduler.cli.common import CommandFailure

HOSTILE: Final = {
    "markup": "[red]free[/] [/] [link=http://x]y[/link]",
    "escape": "\x1b[2J\x1b]0;owned\x07",
    "carriage-return": "\rall is well",
    "line": "x\nnode-1  8 of 8 free",
    "bidi": "\u202etxt.exe\u2066",
    "c1": "\x9b2J\x85",
    "separators": "a\u2028b\u2029c",
    "emoji-code": ":warning: \u200b",
}

COMMANDS: Final = (
    ("explain", "bound"),
    ("explain", "bound", "-o", "json"),
    ("explain", "bound", "-o", "yaml"),
    ("explain", "pending"),
    ("explain", "default/*"),
    ("topology", "-o", "wide"),
    ("topology", "-o", "json"),
    ("topology", "-o", "yaml"),
    ("drain", "node-1", "--dry-run"),
    ("drain", "node-1", "--dry-run", "-o", "yaml"),
)


def check(output: str) -> None:
    """Fail where a character is not visible."""
    unseen = {character for character in output if character != "\n" and not character.isprintable()}
    assert not unseen, (unseen, output)


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_commands_of_a_cluster(served: Served, text: str) -> None:
    served.configure(RECOVERS)
    served.create_pod("bound", annotations={"topology.scheduler/gang-name": text})
    served.create_pod(
        "pending", annotations={"topology.scheduler/gang-name": text, "topology.scheduler/strategy": text}
    )
    served.create_pod("other", schedulerName=text, annotations={"topology.scheduler/movable": text})
    served.bind("bound", "node-1", address=text, score=text, gang_id=text, rank="0", spanned_level=text, hops="1")
    served.bind("other", "node-1")
    _tell(served, "bound", text)
    _tell(served, "pending", text)
    for command in COMMANDS:
        answer = run(*(part.replace("*", text) for part in command), "--kubeconfig", served.kubeconfig)
        assert answer.exception is None or isinstance(answer.exception, SystemExit), answer.exception
        check(answer.output)
        if text is HOSTILE["markup"] and command[:2] == ("explain", "bound"):
            assert text in answer.output
        if text is HOSTILE["line"]:
            assert not any(line.startswith("node-1  8 of 8") for line in answer.output.splitlines())


def _tell(served: Served, pod: str, text: str) -> None:
    record = served.call(lambda: served.server.store.find("pods", pod, "default"))
    assert record is not None
    regarding = {"kind": "Pod", "namespace": "default", "name": pod, "uid": record.obj["metadata"]["uid"]}
    event = {"metadata": {"name": f"{pod}.1"}, "involvedObject": regarding, "type": "Warning", "reason": "Hostile",
             "message": text}  # fmt: skip
    served.call(lambda: served.server.store.create("events", event, "default"))


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_simulate(tmp_path: Path, text: str) -> None:
    workload = tmp_path / "job.yaml"
    workload.write_text(
        f"apiVersion: v1\nkind: Pod\nmetadata: {{name: {_quoted(text)}, annotations:"
        f" {{topology.scheduler/gang-name: {_quoted(text)}, topology.scheduler/gpu-count: {_quoted(text)}}}}}\n"
        "spec: {schedulerName: topology-aware-scheduler, containers: [{name: c, image: busybox}]}\n"
    )
    answer = run("simulate", "--cluster", "leaf-spine:spines=1,leaves=1,nodes=1,gpus=8", "--workload", str(workload))
    assert answer.exception is None or isinstance(answer.exception, SystemExit), answer.exception
    check(answer.output)


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_check_config(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        "apiVersion: topology.scheduler/v1alpha1\nkind: TopologySchedulerConfig\nspec:\n"
        f"  scoringWeights: {{plugins: {{{_quoted(text)}: 1}}}}\n"
        f"---\napiVersion: topology.scheduler/v1alpha1\nkind: SchedulerConfig\n{_quoted(text)}: 1\n"
    )
    answer = run("check-config", str(path))
    assert answer.exit_code == 1
    check(answer.output)


def _quoted(text: str) -> str:
    return '"' + "".join(f"\\U{ord(character):08x}" for character in text) + '"'


def test_a_failure_keeps_its_lines_and_shows_the_rest_as_codes() -> None:
    assert CommandFailure("these failed:\n  a\x1b[2J").message == "these failed:\n  a\\x1b[2J"


ONE_LEAF: Final = "leaf-spine:spines=1,leaves=1,nodes=2,gpus=8"


@pytest.mark.parametrize(
    "command",
    [
        ("topology", "-o", "wide"),
        ("explain", "bound"),
        ("explain", "pending"),
        ("drain", "node-1", "--dry-run"),
        ("simulate", "--cluster", ONE_LEAF, "--workload", "examples"),
    ],
    ids=lambda command: command[0] + command[1],
)
def test_a_locale_of_ascii_gets_other_characters(served: Served, command: tuple[str, ...]) -> None:
    served.configure(RECOVERS)
    served.create_pod("bound")
    served.bind("bound", "node-1")
    served.create_pod("pending", annotations={"topology.scheduler/gpu-count": "64"})
    environment = {**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    where = () if command[0] == "simulate" else ("--kubeconfig", served.kubeconfig)
    answer = subprocess.run(
        [sys.executable, "-m", "topo_scheduler", *command, *where],
        capture_output=True, cwd=ROOT, env=environment, timeout=60,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    output = answer.stdout.decode("ascii")
    assert "\\u" not in output and "\\x" not in output
    if command[0] == "topology":
        assert "........" in output
