"""FGD's table: nine lists of pods, ten seeds, three policies of its authors and ours.

``python -m tests.simulate.published --data DIR [--trace default,cpu050] [--policy random,best-fit,fgd,topo]
[--seeds 42..51]``: for each list and policy the mean of GPUs allocated, beside what was published.
"""

import argparse
import sys
from pathlib import Path
from statistics import mean
from typing import Final

from topo_scheduler.simulation.policies.names import read_policies, seeds_of
from topo_scheduler.simulation.tasks import Task, run

FILL: Final = 1.3
NODES: Final = "openb_node_list_gpu_node.csv"
POLICIES: Final = ("random", "best-fit", "fgd")
PUBLISHED: Final = {
    "default": (87.47, 93.08, 95.39),
    "cpu050": (91.24, 93.79, 95.21),
    "cpu100": (89.11, 93.44, 95.35),
    "gpushare40": (86.00, 91.69, 94.15),
    "gpushare60": (83.65, 89.36, 91.40),
    "gpuspec10": (87.43, 93.30, 94.95),
    "gpuspec20": (87.24, 93.30, 94.84),
    "multigpu20": (88.69, 93.93, 95.65),
    "multigpu30": (89.27, 94.72, 96.46),
}
"""Means of seeds 42 to 51 of Random, BestFit and FGD, by the result files of the authors (USENIX ATC 2023)."""


def allocated(data: Path, trace: str, policy: str, seeds: list[int]) -> float:
    """Return the mean percentage of GPUs that are allocated in the end."""
    (parsed_policy,) = read_policies(policy)
    cluster, workload = str(data / NODES), str(data / f"openb_pod_list_{trace}.csv")
    return mean(run(Task(parsed_policy, seed, cluster, workload, FILL)).run.gpu_allocated_percent for seed in seeds)


def main(arguments: list[str]) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulate.published")
    parser.add_argument("--data", type=Path, required=True, help="folder of the openb lists")
    parser.add_argument("--trace", default=",".join(PUBLISHED))
    parser.add_argument("--policy", default=",".join(POLICIES))
    parser.add_argument("--seeds", default="42..51")
    options = parser.parse_args(arguments)
    for trace in options.trace.split(","):
        for policy in options.policy.split(","):
            measured = allocated(options.data, trace, policy, seeds_of(options.seeds))
            known = PUBLISHED[trace][POLICIES.index(policy)] if policy in POLICIES else PUBLISHED[trace][-1]
            who = policy if policy in POLICIES else "FGD"
            sys.stdout.write(
                f"{trace} {policy}: {measured:.2f}, published for {who} {known:.2f}, {measured - known:+.2f}\n"
            )
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
