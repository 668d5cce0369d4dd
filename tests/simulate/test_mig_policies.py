"""``simulate --mig-policy``: which MIG slots the workloads of a case would get, by several choosers."""

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cli.conftest import run
from tests.helpers import make_node, make_pod
from topo_scheduler.api.devices import (
    CELSelector,
    DeviceClaim,
    DeviceRequest,
    ExactDeviceRequest,
    ResourceClaimSpec,
    SelectorSource,
)
from topo_scheduler.api.objects import Container, PodResourceClaim, PodSpec, ResourceRequirements
from topo_scheduler.simulation.cases.model import Arrival, CaseError, ClusterCase, WorkloadCase
from topo_scheduler.simulation.devices.mig_repacking import MigRepacking, maximal_sets
from topo_scheduler.simulation.devices.mig_replay import MIG_POLICIES, MigFigures, read_mig_policies, replay_mig
from topo_scheduler.simulation.devices.mig_requests import gpus_of, instances_of
from topo_scheduler.state.devices.mig import GIB, MigGeometry, geometry_of

PRODUCT = "NVIDIA-H100-80GB-HBM3"


def _geometry(product: str = PRODUCT, gib: int = 80) -> MigGeometry:
    geometry = geometry_of(product, gib * GIB)
    assert geometry is not None
    return geometry


def _cluster(nodes: int = 1, gpus: int = 2, product: str = PRODUCT) -> ClusterCase:
    made = [make_node(f"n{number}", gpus=gpus, model=product) for number in range(nodes)]
    return ClusterCase("small", tuple(made))


def _job(name: str, at: float, seconds: float | None, *profiles: str) -> Arrival:
    """Return a workload with a pod for each profile; ``+`` in it joins those of one pod."""
    pods = []
    for number, joined in enumerate(profiles):
        limits = {f"nvidia.com/mig-{profile}": count for profile, count in Counter(joined.split(" + ")).items()}
        spec = PodSpec(containers=[Container("main", ResourceRequirements(dict(limits), dict(limits)))])
        pods.append(make_pod(f"{name}-{number}", spec=spec))
    return Arrival(name, at, seconds, tuple(pods))


def _figures(policy: str, cluster: ClusterCase, *arrivals: Arrival) -> MigFigures:
    (figures,), foreign = replay_mig(cluster, WorkloadCase("few", arrivals), [policy], 0)
    assert not foreign
    return figures


@pytest.mark.parametrize(("policy", "blocked", "wait"), [("spread", 1, 30.0), ("first-fit", 0, 0.0), ("ours", 0, 0.0)])
def test_two_small_instances_spread_over_two_gpus_block_a_whole_one(policy: str, blocked: int, wait: float) -> None:
    small = [_job(f"s{number}", float(number), 100.0, "1g.10gb") for number in range(2)]
    figures = _figures(policy, _cluster(), *small, _job("large", 70.0, 10.0, "7g.80gb"))
    assert (figures.workloads, figures.blocked, figures.full, figures.never) == (3, blocked, 0, 0)
    assert figures.mean_wait_seconds == pytest.approx(wait / 3)


def test_our_choice_leaves_the_place_that_first_fit_takes() -> None:
    """One GPU: an instance of 1g at slice 0 closes the place of 4g; at slice 6 it does not."""
    arrivals = _job("small", 0.0, None, "1g.10gb"), _job("large", 1.0, None, "4g.40gb")
    assert _figures("first-fit", _cluster(gpus=1), *arrivals).blocked == 1
    assert _figures("ours", _cluster(gpus=1), *arrivals).blocked == 0


def test_what_would_not_fit_after_a_repack_is_no_fault_of_a_chooser() -> None:
    arrivals = [_job(f"w{number}", float(number), None, "7g.80gb") for number in range(3)]
    figures = _figures("ours", _cluster(), *arrivals)
    assert (figures.blocked, figures.full, figures.never) == (0, 1, 1)


def test_a_workload_gets_all_of_its_instances_or_none() -> None:
    """Three pods of 3g on one GPU do not fit, so the workload waits, and holds nothing meanwhile."""
    gang, small = _job("gang", 0.0, None, *["3g.40gb"] * 3), _job("small", 1.0, None, "7g.80gb")
    figures = _figures("ours", _cluster(gpus=1), gang, small)
    assert (figures.full, figures.never) == (1, 1)


def test_the_instances_of_a_pod_are_on_one_node() -> None:
    """Each node has one GPU with room for one of 3g: not for a pod with two, though for two pods."""
    fillers = [_job(f"f{number}", 0.0, None, "4g.40gb") for number in range(2)]
    joined = _figures("spread", _cluster(nodes=2, gpus=1), *fillers, _job("j", 1.0, None, "3g.40gb + 3g.40gb"))
    apart = _figures("spread", _cluster(nodes=2, gpus=1), *fillers, _job("j", 1.0, None, "3g.40gb", "3g.40gb"))
    assert (joined.never, apart.never) == (1, 0)


def test_waiting_workloads_start_when_instances_end_in_the_order_of_arrival() -> None:
    whole = [_job(f"w{number}", float(number), 10.0, "7g.80gb") for number in range(3)]
    figures = _figures("ours", _cluster(gpus=1), *whole)  # they start at 0, 10 and 20
    assert figures.mean_wait_seconds == pytest.approx((0 + 9 + 18) / 3)


def test_a_pod_asks_by_resource_annotation_or_claim() -> None:
    by_annotation = make_pod("a", gpus=2, annotations={"mig-profile": "1g.10gb"})
    expression = "device.attributes['gpu.nvidia.com'].profile == '2g.20gb'"
    request = ExactDeviceRequest(
        device_class_name="mig.nvidia.com", selectors=[SelectorSource(CELSelector(expression))], count=2
    )
    spec = PodSpec(resource_claims=[PodResourceClaim("mig", resource_claim_template_name="two")])
    by_claim = make_pod("c", spec=spec)
    arrival = Arrival(
        "w",
        0.0,
        None,
        (*_job("r", 0.0, None, "1g.10gb.me").pods, by_annotation, by_claim, make_pod("whole", gpus=1)),
        templates={(by_claim.metadata.namespace, "two"): ResourceClaimSpec(DeviceClaim([DeviceRequest("r", request)]))},
    )
    assert instances_of(arrival) == [("1g.10gb+me",), ("1g.10gb", "1g.10gb"), ("2g.20gb", "2g.20gb")]


def test_gpus_of_two_products_are_kept_apart() -> None:
    nodes = (*_cluster(2).nodes, make_node("a", gpus=1, model="NVIDIA-A30"), make_node("v", gpus=8, model="Tesla-V100"))
    gpu_groups = gpus_of(ClusterCase("mixed", nodes))
    assert [(item.geometry, item.nodes) for item in gpu_groups] == [
        (_geometry(), (0, 0, 1, 1)),
        (_geometry("NVIDIA-A30", 24), (2,)),
    ]
    arrivals = _job("h", 0.0, None, "7g.80gb"), _job("a", 0.0, None, "4g.24gb"), _job("none", 0.0, None, "9g.99gb")
    (figures,), foreign = replay_mig(ClusterCase("mixed", nodes), WorkloadCase("few", arrivals), ["ours"], 0)
    assert (figures.workloads, figures.never, foreign) == (2, 0, 1)


@pytest.mark.parametrize(
    ("cluster", "arrivals", "problem"),
    [
        (_cluster(product="Tesla-V100"), [_job("j", 0.0, None, "1g.10gb")], "no GPUs of which the MIG geometry"),
        (_cluster(), [Arrival("plain", 0.0, None, (make_pod("p", gpus=1),))], "no pod of few asks for a MIG instance"),
        (_cluster(), [_job("j", 0.0, None, " + ".join(["1g.10gb"] * 2000))], "2000 MIG instances"),
    ],
)
def test_a_case_without_mig_is_an_error(cluster: ClusterCase, arrivals: Sequence[Arrival], problem: str) -> None:
    with pytest.raises(CaseError, match=problem):
        replay_mig(cluster, WorkloadCase("few", tuple(arrivals)), ["ours"], 0)


@pytest.mark.parametrize(
    ("names", "problem"),
    [("rocm", "'rocm' is unknown"), ("", "name each policy once"), ("ours,ours", "name each policy once")],
)
def test_policies_that_can_not_be_compared_are_refused(names: str, problem: str) -> None:
    with pytest.raises(CaseError, match=problem):
        read_mig_policies(names)


# ---------------------------------------------------------------- a repack


def _fits_by_trying(sets: Sequence[tuple[int, ...]], counts: tuple[int, ...], gpus: int) -> bool:
    """Return whether instances fit, by all ways to fill the GPUs."""
    if not any(counts):
        return True
    return gpus > 0 and any(
        _fits_by_trying(sets, left, gpus - 1)
        for held in sets
        if (left := tuple(max(0, count - more) for count, more in zip(counts, held, strict=True))) != counts
    )


@pytest.mark.parametrize("geometry", [_geometry(), _geometry("NVIDIA-A30", 24)])
def test_a_repack_fits_exactly_if_some_way_to_fill_the_gpus_does(geometry: MigGeometry) -> None:
    sets, rng, seen = maximal_sets(geometry), random.Random(1), set()
    for _ in range(60):
        counts = tuple(rng.choice((0, 0, 1, 2, 3)) for _ in geometry.profiles)
        asked = Counter({profile.name: count for profile, count in zip(geometry.profiles, counts, strict=True)})
        fits = MigRepacking(geometry, 2).fits(asked)
        assert fits is _fits_by_trying(sets, counts, 2), counts
        seen.add(fits)
    assert seen == {True, False}


# ---------------------------------------------------------------- command


MANIFEST = """
apiVersion: v1
kind: Pod
metadata:
  name: p{number}
  annotations: {{simulate.topology.scheduler/arrives: {number}m, simulate.topology.scheduler/runs: 1h}}
spec:
  containers: [{{name: main, image: x, resources: {{limits: {{nvidia.com/mig-{profile}: 1}}}}}}]
---
"""
CLUSTER = ("simulate", "--cluster", "leaf-spine:spines=1,leaves=1,nodes=1,gpus=2,model=H100-80GB")


def _manifests(folder: Path, *profiles: str) -> str:
    path = folder / "jobs.yaml"
    path.write_text("".join(MANIFEST.format(number=number, profile=name) for number, name in enumerate(profiles)))
    return str(path)


def test_the_table_has_a_row_for_each_chooser(tmp_path: Path) -> None:
    workload = _manifests(tmp_path, "1g.10gb", "1g.10gb", "7g.80gb")
    answer = run(*CLUSTER, "--workload", workload, "--mig-policy", ",".join(MIG_POLICIES))
    assert answer.exit_code == 0, answer.output
    assert "workloads that ask for MIG instances" in answer.output
    cells = [[cell.strip() for cell in line.split("│")] for line in answer.output.splitlines()]
    blocked = {row[2]: row[4] for row in cells if len(row) > 4 and row[2] in MIG_POLICIES}
    assert list(blocked) == list(MIG_POLICIES)
    assert (blocked["ours"], blocked["spread"]) == ("0.00", "33.33")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--mig-policy", "best"), "Error: --mig-policy: 'best' is unknown"),
        (("--mig-policy", "ours", "--fill", "1.2"), "Error: --mig-policy and --fill: "),
    ],
)
def test_an_error_comes_before_the_run(tmp_path: Path, options: tuple[str, ...], problem: str) -> None:
    answer = run(*CLUSTER, "--workload", _manifests(tmp_path, "1g.10gb"), *options)
    assert answer.exit_code == 2 and answer.output.startswith(problem), answer.output
