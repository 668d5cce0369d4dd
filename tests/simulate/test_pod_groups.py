"""Every policy places PodGroups of every API all or none; what they ask of topology only this scheduler understands."""

from pathlib import Path
from typing import Final

import pytest

from tests.simulate.cases import run
from topo_scheduler.simulation.cases.model import CaseError, ClusterCase
from topo_scheduler.simulation.cases.reading import read_cluster, read_workload
from topo_scheduler.simulation.policies.names import NAMES, TOPO

PODS: Final = 4
NATIVE: Final = """
apiVersion: scheduling.k8s.io/v1alpha2
kind: PodGroup
metadata: {{name: g, namespace: default}}
spec:
  schedulingPolicy: {{gang: {{minCount: {minimum}}}}}
  {topology}
"""
PLUGINS: Final = """
apiVersion: scheduling.x-k8s.io/v1alpha1
kind: PodGroup
metadata: {{name: g, namespace: default}}
spec: {{minMember: {minimum}}}
"""
VOLCANO: Final = """
apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata: {{name: g, namespace: default}}
spec:
  minMember: {minimum}
  {topology}
"""
POD: Final = """
---
apiVersion: v1
kind: Pod
metadata: {{name: p-{number}, labels: {{{labels}}}, annotations: {{{annotations}}}}}
spec:
  schedulerName: topology-aware-scheduler
  {group}
  containers:
    - {{name: work, image: busybox, resources: {{limits: {{nvidia.com/gpu: 8}}}}}}
"""
NAMED: Final = {
    NATIVE: {"group": "schedulingGroup: {podGroupName: g}"},
    PLUGINS: {"labels": "scheduling.x-k8s.io/pod-group: g"},
    VOLCANO: {"annotations": "scheduling.k8s.io/group-name: g"},
}
ASKED: Final = {
    NATIVE: "schedulingConstraints: {topology: [{key: topology.scheduler/leaf}]}",
    VOLCANO: "networkTopology: {mode: hard, highestTierAllowed: 1}",
}
"""One leaf for all pods."""
SUBGROUPS: Final = (
    "subGroupPolicy: [{name: pair, labelSelector: {matchLabels: {pair: a}},"
    " networkTopology: {mode: hard, highestTierAllowed: 1}}]"
)
"""One leaf for the pods that have the label."""


def _file(folder: Path, kind: str, minimum: float, topology: str = "", labels: str = "") -> str:
    named = {"labels": labels, "annotations": "", "group": "", **NAMED[kind]}
    pods = [POD.format(number=number, **named) for number in range(PODS)]
    file = folder / "group.yaml"
    file.write_text(kind.format(minimum=minimum, topology=topology) + "".join(pods))
    return str(file)


def _placed(policy: str, cluster: ClusterCase, file: str) -> int:
    return sum(stay.job >= 0 for stay in run(policy, cluster, read_workload(file).arrivals).stays)


@pytest.fixture(scope="module")
def narrow() -> ClusterCase:
    """Return a cluster of which each leaf has one node."""
    return read_cluster("leaf-spine:spines=2,leaves=2,nodes=1,gpus=8")


@pytest.fixture(scope="module")
def wide() -> ClusterCase:
    """Return a cluster of which each leaf has room for the group."""
    return read_cluster("leaf-spine:spines=2,leaves=2,nodes=4,gpus=8")


@pytest.mark.parametrize("policy", NAMES)
@pytest.mark.parametrize("kind", NAMED, ids=["native", "plugins", "volcano"])
def test_every_policy_honours_the_size(policy: str, kind: str, narrow: ClusterCase, tmp_path: Path) -> None:
    for minimum, expected in ((2, PODS), (PODS, PODS), (PODS + 1, 0)):
        assert _placed(policy, narrow, _file(tmp_path, kind, minimum)) == expected, minimum
    small = read_cluster("leaf-spine:spines=1,leaves=3,nodes=1,gpus=8")
    assert _placed(policy, small, _file(tmp_path, kind, PODS)) == 0


@pytest.mark.parametrize("policy", NAMES)
@pytest.mark.parametrize("kind", ASKED, ids=["native", "volcano"])
def test_topology_is_what_only_topo_understands(
    policy: str, kind: str, narrow: ClusterCase, wide: ClusterCase, tmp_path: Path
) -> None:
    file = _file(tmp_path, kind, PODS, ASKED[kind])
    assert _placed(policy, narrow, file) == (0 if policy == TOPO else PODS)
    assert _placed(policy, wide, file) == PODS


@pytest.mark.parametrize("policy", NAMES)
def test_so_it_is_with_subgroups(policy: str, narrow: ClusterCase, wide: ClusterCase, tmp_path: Path) -> None:
    file = _file(tmp_path, VOLCANO, PODS, SUBGROUPS, labels="pair: a")
    assert _placed(policy, narrow, file) == (0 if policy == TOPO else PODS)
    assert _placed(policy, wide, file) == PODS


def test_a_group_that_no_policy_could_place_is_refused_with_the_field(tmp_path: Path) -> None:
    two = "schedulingConstraints: {topology: [{key: a}, {key: b}]}"
    with pytest.raises(CaseError, match=r"spec\.schedulingConstraints\.topology: .* correct it"):
        read_workload(_file(tmp_path, NATIVE, PODS, two))
    with pytest.raises(CaseError, match=r"spec\.minMember: 0\.5 is not a whole number"):
        read_workload(_file(tmp_path, VOLCANO, 0.5))
