"""The commands as a whole: what --help costs, and configurations good and bad."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import ROOT, Served, run
from topo_scheduler import __version__
from topo_scheduler.cli.main import COMMANDS

COST_OF_PYTHON = 15
"""What ``--help`` may cost, as a multiple of an interpreter that does nothing: 0.3 s where that one takes 0.02 s."""


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_help_imports_nothing_heavy(flag: str) -> None:
    heavy = "{'numba', 'numpy', 'urllib3', 'aiohttp', 'asyncio', 'pydantic', 'rich'}"
    program = (
        "import sys, atexit\n"
        f"atexit.register(lambda: print('heavy:', sorted({heavy} & set(sys.modules))))\n"
        "from topo_scheduler.cli.main import main\n"
        f"main(['{flag}'])\n"
    )
    command, python = ([_started(code) for _ in range(3)] for code in (program, "pass"))
    assert all(output.endswith("heavy: []\n") for _, output in command), command
    assert min(command)[0] < COST_OF_PYTHON * min(python)[0], (command, python)


def _started(code: str) -> tuple[float, str]:
    """Run a program; return the seconds of CPU that it took, and what it printed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, answer.stdout


def test_every_command_has_its_help() -> None:
    listed = run("--help")
    assert listed.exit_code == 0
    for name, line in COMMANDS.items():
        assert f"{name} " in listed.output and line in " ".join(listed.output.split())
        assert run(name, "--help").exit_code == 0
    assert __version__ in run("--version").output


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is a device of Linux")
@pytest.mark.parametrize("command", [["--help"], ["check-config", "examples/10-scheduler-config.yaml"]])
def test_a_full_disk_is_one_line(command: list[str]) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        program = [sys.executable, "-m", "topo_scheduler", *command]
        answer = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, text=True, check=False, cwd=ROOT)
    assert (answer.returncode, answer.stderr) == (1, "Error: the output can't be written: No space left on device\n")


def test_closed_standard_files_are_no_place_for_sockets(served: Served) -> None:
    command = f"{sys.executable} -m topo_scheduler topology --kubeconfig {served.kubeconfig} <&- >&-"
    answer = subprocess.run(
        command, shell=True, stderr=subprocess.PIPE, text=True, check=False, cwd=ROOT, executable="/bin/bash"
    )
    assert answer.returncode == 0, answer.stderr


def test_unknown_command() -> None:
    answer = run("rnu")
    assert answer.exit_code == 2 and "rnu" in answer.output


def test_check_config_of_the_example() -> None:
    path = ROOT / "examples" / "10-scheduler-config.yaml"
    answer = run("check-config", str(path))
    assert (answer.exit_code, answer.output) == (0, f"{path}: ok\n")


@pytest.mark.parametrize("manifest", ["base/config.yaml", "install.yaml"])
def test_check_config_opens_config_maps(manifest: str, tmp_path: Path) -> None:
    path = ROOT / "manifests" / manifest
    answer = run("check-config", str(path))
    assert (answer.exit_code, answer.stdout) == (0, f"{path}: ok\n")
    bad = tmp_path / "bad.yaml"
    bad.write_text(path.read_text().replace("enforcement: required", "enforcment: required"))
    answer = run("check-config", str(bad))
    assert answer.exit_code == 1
    assert f"{bad}: ConfigMap topology-scheduler-config: config.yaml: TopologySchedulerConfig is" in answer.output
    assert "did you mean enforcement?" in answer.output


def test_check_config_names_what_it_skips_and_what_is_empty(tmp_path: Path) -> None:
    base = ROOT / "manifests" / "base"
    answer = run("check-config", str(base))
    assert (answer.exit_code, answer.stdout) == (0, f"{base}: ok\n")
    assert "skipped, as they are no configuration: Deployment topology-scheduler, " in answer.stderr
    empty = tmp_path / "empty.yaml"
    for text in ("# nothing\n", "", "---\n"):
        empty.write_text(text)
        for command in (("check-config",), ("run", "--config")):
            answer = run(*command, str(empty))
            assert answer.exit_code in (1, 2), command
            assert f"{empty}: no configuration in it; if every field is to have its default, write" in answer.output
    empty.write_text("apiVersion: topology.scheduler/v1alpha1\nkind: TopologySchedulerConfig\n")
    assert run("check-config", str(empty)).exit_code == 0, "all defaults, but on purpose"
    answer = run("check-config", str(base / "deployment.yaml"))
    assert answer.exit_code == 1 and "no configuration among the objects in it (Deployment " in answer.output


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kind: SchedulerConfig\n", "apiVersion is missing; write topology.scheduler/v1alpha1"),
        ("a: [1\n", "not valid YAML"),
        (
            "apiVersion: topology.scheduler/v1alpha1\nkind: TopologySchedulerConfig\nspec: {scoringWeight: {}}\n",
            "spec.scoringWeight: unknown key; did you mean scoringWeights?",
        ),
        (
            "apiVersion: topology.scheduler/v1alpha1\nkind: SchedulerConfig\nmetrics: {port: 70000}\n",
            "metrics.port: must be at most 65535 (found 70000)",
        ),
    ],
)
def test_check_config_of_a_bad_one(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    answer = run("check-config", str(path))
    assert answer.exit_code == 1
    assert answer.output.startswith(f"Error: {path}: ") and expected in answer.output


def test_check_config_reports_what_would_be_ignored(tmp_path: Path) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text(
        "apiVersion: topology.scheduler/v1alpha1\nkind: TopologySchedulerConfig\n"
        "spec: {smallPods: {scoring: fragmantation}, scoringWeights: {plugins: {Locality: 0.3}}}\n"
    )
    answer = run("check-config", str(path))
    assert (answer.exit_code, answer.stdout) == (0, f"{path}: ok\n")
    assert "spec.smallPods.scoring: no plugin that is loaded has a score called fragmantation" in answer.stderr
    assert "spec.scoringWeights.plugins.Locality: no plugin that is loaded has a score of this name" in answer.stderr


def test_check_config_of_a_file_that_is_not_there(tmp_path: Path) -> None:
    answer = run("check-config", str(tmp_path / "none.yaml"))
    assert answer.exit_code == 1 and "No such file" in answer.output


def test_check_config_compares_with_the_nodes_of_a_cluster(served: Served, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        "apiVersion: topology.scheduler/v1alpha1\nkind: TopologySchedulerConfig\nspec:\n"
        "  topologyConstraints: {maxNodesPerLeaf: 1}\n"
    )
    assert run("check-config", str(path)).stderr == ""
    answer = run("check-config", "--live", "--kubeconfig", served.kubeconfig, str(path))
    assert answer.exit_code == 0, answer.output
    assert "warning: spec.topologyConstraints.maxNodesPerLeaf is 1, but " in answer.stderr
    assert "remove maxNodesPerLeaf, or set it to the size of a leaf" in answer.stderr
    assert answer.stdout.endswith("config.yaml: ok\n")
    assert "nodes have no labels" not in answer.stderr
    served.call(lambda: served.server.store.create("nodes", {"metadata": {"name": "stray"}}))
    answer = run("check-config", "--live", "--kubeconfig", served.kubeconfig, str(path))
    assert answer.exit_code == 0
    assert "warning: 1 of 9 nodes have no labels that give their position in the fabric (stray)" in answer.stderr
    path.write_text(
        "apiVersion: topology.scheduler/v1alpha1\nkind: TopologySchedulerConfig\nspec:\n"
        "  quotas: [{namespaces: [a], domain: nowhere, hard: {gpus: 1}}]\n"
        "  domainAccess: [{domain: leaf-9, namespaces: [a]}, {domain: spine-1, namespaces: [a]}]\n"
    )
    answer = run("check-config", "--live", "--kubeconfig", served.kubeconfig, str(path))
    assert answer.exit_code == 0
    assert "warning: spec.quotas: no domain is called nowhere, so this has no effect; write a path" in answer.stderr
    assert "warning: spec.domainAccess: no domain is called leaf-9" in answer.stderr
    assert "called spine-1" not in answer.stderr
    path.write_text(
        "apiVersion: topology.scheduler/v1alpha1\nkind: SchedulerConfig\n"
        "topology: {levels: [{name: leaf, labels: [topology.scheduler/leaf]}, {name: rack, labels: [example.com/r]}]}\n"
    )
    answer = run("check-config", "--live", "--kubeconfig", served.kubeconfig, str(path))
    assert "topology.levels: rack: no node has the label example.com/r, so this level does not exist" in answer.stderr
    nobody = run("check-config", "--live", "--kubeconfig", str(tmp_path / "none"), str(path))
    assert nobody.exit_code == 2 and "none does not exist" in nobody.output
