"""``simulate --gpu-topology``: which GPUs the pods of a run would get on their nodes."""

from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from rich.console import Console

from tests.cli.conftest import run
from tests.devices.kfd_files import kfd_files
from tests.devices.shapes import dgx_1v, folder
from topo_scheduler.simulation.cases.model import CaseError
from topo_scheduler.simulation.devices.replay import (
    POLICIES,
    DeviceFigures,
    read_device_policies,
    read_hardware,
    replay,
)
from topo_scheduler.simulation.results.device_table import device_table
from topo_scheduler.simulation.results.model import Run
from topo_scheduler.simulation.virtual.history import RunHistory, Stay
from topo_scheduler.state.devices.kfd_tree import read_tree

CLUSTER = ("simulate", "--cluster", "leaf-spine:spines=1,leaves=1,nodes=2,gpus=8")
WORKLOAD = ("--workload", "poisson:rate=60/h,jobs=20,sizes=1:0.4|2:0.6,duration=10m")


def _history(*stays: Stay, capacity: int = 8_000) -> RunHistory:
    return RunHistory(("n0", "n1"), (("l0",), ("l0",)), ("leaf",), (capacity, 4_000), stays=list(stays))


def _stay(milli: int, start: float, end: float, node: int = 0) -> Stay:
    return Stay(0, f"pod-{start}", node, milli, (), start, end)


def test_a_pod_gets_what_earlier_pods_left_on_its_node() -> None:
    """On a DGX-1 the best pair has two links. First fit takes 0 and then 1-2 (two links), or 0-1 (one link)."""
    alone = _history(_stay(2_000, 0.0, 9.0))
    after = _history(_stay(1_000, 0.0, 9.0), _stay(2_000, 1.0, 9.0))
    for history, share in ((alone, 0.5), (after, 1.0)):
        (figures,) = replay(dgx_1v(), history, ["first-fit"], 0)
        assert (figures.pods, figures.share, figures.ideal) == (1, share, float(share == 1.0))


def test_gpus_are_free_again_when_a_pod_ends() -> None:
    """Both pods get GPUs 0 and 1, as the second starts the moment the first ends."""
    (figures,) = replay(dgx_1v(), _history(_stay(2_000, 0.0, 5.0), _stay(2_000, 5.0, 9.0)), ["first-fit"], 0)
    assert (figures.pods, figures.share) == (2, 0.5)


def test_shares_of_gpus_and_other_nodes_are_left_out() -> None:
    history = _history(_stay(500, 0.0, 9.0), _stay(2_000, 0.0, 9.0, node=1))
    (figures,) = replay(dgx_1v(), history, ["ours"], 0)
    assert (figures.pods, figures.share, figures.ideal) == (0, None, None)


def test_our_choice_keeps_the_links_that_first_fit_breaks() -> None:
    """A pod with one GPU, then pairs until the node is full but for one."""
    pods = [_stay(1_000, 0.0, 99.0), *(_stay(2_000, float(number), 99.0) for number in range(1, 4))]
    ours, first = replay(dgx_1v(), _history(*pods), ["ours", "first-fit"], 0)
    assert ours.share == 1.0 and first.share is not None and first.share < 1.0


@pytest.mark.parametrize(
    ("names", "problem"),
    [("spread", "'spread' is unknown"), ("", "name each policy once"), ("ours,ours", "name each policy once")],
)
def test_policies_that_can_not_be_compared_are_refused(names: str, problem: str) -> None:
    with pytest.raises(CaseError, match=problem):
        read_device_policies(names)


def test_a_file_that_describes_no_node_is_refused(tmp_path: Path) -> None:
    for text in ("", "<graphs/>", "GPU0"):
        (tmp_path / "file").write_text(text)
        with pytest.raises(CaseError, match=r"--gpu-topology: .*file"):
            read_hardware(tmp_path / "file")
    with pytest.raises(CaseError, match="No such file"):
        read_hardware(tmp_path / "none")


@pytest.mark.parametrize("given", ["nodes", ".", ".."])
def test_the_tree_of_amds_driver_is_read_from_its_folder(tmp_path: Path, given: str) -> None:
    """That of the nodes, the one above, which is called topology, or the one above that."""
    topology = tmp_path / "topology"
    for name, text in kfd_files().items():
        (topology / name).parent.mkdir(parents=True, exist_ok=True)
        (topology / name).write_text(text)
    (topology / "nodes" / "2" / "gpu_id").write_text("4711")
    hardware = read_hardware(topology / given)
    assert hardware == read_tree(kfd_files())
    assert len(hardware.gpus) == 4 and len(hardware.links) == 2


def test_a_folder_without_a_tree_or_with_a_broken_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CaseError, match=r"--gpu-topology: .*there is no GPU; give"):
        read_hardware(tmp_path)
    node = tmp_path / "nodes" / "0"
    node.mkdir(parents=True)
    (node / "properties").write_bytes(b"\xff")
    with pytest.raises(CaseError, match=r"--gpu-topology: .*utf-8"):
        read_hardware(tmp_path)
    (node / "properties").unlink()
    (node / "properties").mkdir()
    with pytest.raises(CaseError, match=r"--gpu-topology: .*properties: Is a directory"):
        read_hardware(tmp_path)


def test_a_run_with_the_tree_of_amds_driver(tmp_path: Path) -> None:
    for name, text in kfd_files().items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    answer = run(*CLUSTER, *WORKLOAD, "--gpu-topology", str(tmp_path), "--device-policy", "ours,rocm")
    assert answer.exit_code == 0, answer.output
    assert "bandwidth inside nodes of 4 GPUs" in answer.output


def test_the_table_has_a_row_for_each_chooser() -> None:
    links = str(folder() / "rccl" / "topo_8p1h.xml")
    answer = run(*CLUSTER, *WORKLOAD, "--gpu-topology", links, "--device-policy", "ours,rocm")
    assert answer.exit_code == 0, answer.output
    assert "bandwidth inside nodes of 8 GPUs" in answer.output
    rows = [line.split("│") for line in answer.output.splitlines() if line.startswith("│ topo")]
    assert [row[3].strip() for row in rows if len(row) == 8] == ["ours", "rocm"]


def test_an_error_comes_before_the_run(tmp_path: Path) -> None:
    answer = run(*CLUSTER, *WORKLOAD, "--gpu-topology", str(tmp_path / "none.xml"))
    assert answer.exit_code == 2 and answer.output.startswith("Error: --gpu-topology: ")


def test_choosers_without_links_are_refused() -> None:
    answer = run(*CLUSTER, *WORKLOAD, "--device-policy", "ours")
    assert answer.exit_code == 2 and "--device-policy: name the links of a node too, by --gpu-topology" in answer.output


def test_at_80_columns_the_names_of_choosers_are_whole() -> None:
    of_run = cast("Run", SimpleNamespace(policy="topo", seed=42, what_if=None))
    figures = [DeviceFigures(name, 1000, 0.95, 0.875) for name in POLICIES]
    console = Console(width=80, record=True, file=StringIO())
    console.print(device_table([(of_run, figures)], 8))
    shown = console.export_text()
    assert all(f" {name} " in shown for name in POLICIES)
    assert max(map(len, shown.splitlines())) <= 80
