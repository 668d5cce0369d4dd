"""From what is named on the command line to clusters and workloads."""

from topo_scheduler.simulation.cases import generated
from topo_scheduler.simulation.cases.model import CaseError, ClusterCase, WorkloadCase


def read_cluster(spec: str) -> ClusterCase:
    """Return the cluster that a spec names.

    Raises:
        CaseError: it can't be used.
    """
    if spec.partition(":")[0] == generated.LEAF_SPINE:
        return generated.leaf_spine(spec)
    raise CaseError(f"--cluster: {spec!r} is no cluster; write leaf-spine:spines=8,leaves=16,nodes=16,gpus=8")


def read_workload(spec: str, seed: int = 42) -> WorkloadCase:
    """Return the workload that a spec names; ``seed`` of what is generated.

    Raises:
        CaseError: it can't be used.
    """
    if spec.partition(":")[0] == generated.JOBS:
        return generated.jobs(spec, seed)
    raise CaseError(f"--workload: {spec!r} is no workload; write jobs:count=200,every=60,seconds=3600,gpus=1+8+64")
