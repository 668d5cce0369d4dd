"""``simulate`` on what users have: a live cluster, files, and what is wrong with them."""

import json
from pathlib import Path

from tests.cli.conftest import ROOT, Served, run

JOBS = "poisson:rate=60/h,jobs=20,sizes=1:0.5|8:0.5,duration=10m"


def test_a_live_cluster_and_what_runs_there(served: Served, tmp_path: Path) -> None:
    served.create_pod("worker", gpus=3)
    served.bind("worker", "node-1")
    before = served.call(lambda: served.server.store.revision)
    out = tmp_path / "out"
    answer = run(
        *("simulate", "--cluster", "live", "--kubeconfig", served.kubeconfig, "--workload", JOBS, "--out", str(out))
    )
    assert answer.exit_code == 0, answer.output
    (result,) = json.loads((out / "result.json").read_text())["runs"]
    assert (result["cluster"], result["arrived"], result["started"], result["ended"]) == ("live", 20, 20, 20)
    assert served.call(lambda: served.server.store.revision) == before, "nothing is written"


def test_bad_input_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes.csv"
    nodes.write_text("sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,2,P100\nn1,64000\n")
    out = tmp_path / "out"
    answer = run("simulate", "--cluster", str(nodes), "--workload", JOBS, "--out", str(out))
    assert answer.exit_code == 2
    assert answer.output == (
        f"Error: {nodes}:3: 2 of 5 fields, memory_mib is missing; the file seems to be cut short; fetch it again, or"
        " delete the line\n"
    )
    assert not out.exists()


def test_a_missing_cluster_is_reported_before_its_missing_workload(tmp_path: Path) -> None:
    answer = run("simulate", "--cluster", str(tmp_path / "nodes.csv"))
    assert answer.exit_code == 2
    assert "nodes.csv: there is no such file or directory; name live, leaf-spine:" in answer.output


def test_a_workload_larger_than_the_cluster() -> None:
    answer = run(
        *("simulate", "--cluster", "leaf-spine:nodes=2"),
        *("--workload", "poisson:rate=1/h,jobs=3,sizes=64,duration=1h"),
    )
    assert answer.exit_code == 2
    assert (
        "job-1 asks for 64 GPUs, and the cluster has 16; give it a larger cluster, or leave such out" in answer.output
    )


def test_a_cluster_that_does_not_answer(tmp_path: Path) -> None:
    answer = run("simulate", "--cluster", "live", "--kubeconfig", str(tmp_path / "none"), "--workload", JOBS)
    assert answer.exit_code == 2
    assert answer.output.startswith("Error: live: ")
    assert "Traceback" not in answer.output


def test_what_waits_in_a_live_cluster_is_the_workload_where_none_is_named(served: Served, tmp_path: Path) -> None:
    served.create_pod("worker", gpus=3)
    served.bind("worker", "node-1")
    served.create_pod("waits", gpus=8)
    for named in ((), ("--workload", "live@repeat=2")):
        out = tmp_path / str(len(named))
        answer = run("simulate", "--cluster", "live", "--kubeconfig", served.kubeconfig, *named, "--out", str(out))
        assert answer.exit_code == 0, answer.output
        (result,) = json.loads((out / "result.json").read_text())["runs"]
        assert (result["arrived"], result["started"]) == (1 + bool(named), 1 + bool(named))


def test_a_cluster_without_pending_pods_needs_a_workload() -> None:
    answer = run("simulate", "--cluster", "leaf-spine:nodes=2")
    assert answer.exit_code == 2
    assert "--workload: leaf-spine:nodes=2 contains no pending pods; name a workload" in answer.output
    answer = run("simulate", "--cluster", "leaf-spine:nodes=2", "--workload", "live")
    assert answer.exit_code == 2
    assert "--workload: live is what waits in a live cluster; it goes with --cluster live" in answer.output


def test_what_never_ran_is_reported_with_its_reason(tmp_path: Path) -> None:
    out = tmp_path / "out"
    answer = run(
        *("simulate", "--cluster", "leaf-spine:spines=2,leaves=2,nodes=4,gpus=8", "--policy", "topo,random"),
        *("--workload", str(ROOT / "examples" / "04-inference-deployment.yaml"), "--seeds", "1,2", "--out", str(out)),
    )
    assert answer.exit_code == 0, answer.output
    why = "never ran: 1 workload default/inference: 0/16 nodes are available: 16 node(s) had another GPU model."
    assert [line.partition(": ")[0] for line in answer.stderr.splitlines() if why in line] == ["topo", "random"]
    for result in json.loads((out / "result.json").read_text())["runs"]:
        assert result["never_ran_reasons"][0].startswith("1 workload default/inference: 0/16 nodes are available: ")
