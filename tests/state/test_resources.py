"""What a pod asks of its node, counted as Kubernetes counts it."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import NVIDIA, make_pod
from topo_scheduler.api.objects import Container, Pod, PodSpec, Quantity, ResourceRequirements
from topo_scheduler.api.quantity import QuantityError
from topo_scheduler.state.nodes.resources import CPU, GPU, MEMORY, PODS, ResourceTable, as_amounts
from topo_scheduler.state.pods.requests import pod_amounts

MI = 2**20
GI = 2**30
Requests = Mapping[str, Quantity]


def container(requests: Requests | None = None, limits: Requests | None = None, *, sidecar: bool = False) -> Container:
    resources = ResourceRequirements(dict(requests or {}), dict(limits or {}))
    return Container("c", resources, restart_policy="Always" if sidecar else None)


def pod(containers: Sequence[Container], init: Sequence[Container] = (), overhead: Requests | None = None) -> Pod:
    spec = PodSpec(containers=list(containers), init_containers=list(init), overhead=dict(overhead or {}))
    return make_pod("p", spec=spec)


def asked(of: Pod) -> dict[int, int]:
    return pod_amounts(ResourceTable([NVIDIA, "amd.com/gpu"]), of)


def test_the_frontend_of_the_documentation() -> None:
    # Managing Resources for Containers: two containers of 250m and 64Mi ask for 0.5 CPU and 128 MiB.
    each = container({"memory": "64Mi", "cpu": "250m"}, {"memory": "128Mi", "cpu": "500m"})
    assert asked(pod([each, each])) == {CPU: 500, MEMORY: 128 * MI, PODS: 1}


def test_the_kata_pod_of_the_documentation() -> None:
    # Pod Overhead: 2000m and 200Mi of containers, 250m and 120Mi of overhead, 2250m and 320Mi in all.
    containers = [
        container({"cpu": "500m", "memory": "100Mi"}),
        container({"cpu": "1500m", "memory": "100Mi"}),
    ]
    kata = pod(containers, overhead={"cpu": "250m", "memory": "120Mi"})
    assert asked(kata) == {CPU: 2250, MEMORY: 320 * MI, PODS: 1}


def test_the_pod_with_pod_level_resources_of_the_documentation() -> None:
    # Assign Pod-level CPU and memory: the pod asks for 1 CPU and 100Mi, whatever its containers say.
    spec = PodSpec(
        containers=[container({"cpu": "500m", "memory": "50Mi"}, {"cpu": "500m", "memory": "100Mi"}), container()],
        resources=ResourceRequirements({"cpu": "1", "memory": "100Mi"}, {"cpu": "1", "memory": "200Mi"}),
    )
    assert asked(make_pod("p", spec=spec)) == {CPU: 1000, MEMORY: 100 * MI, PODS: 1}


def test_pod_level_resources_leave_what_they_do_not_name_to_the_containers() -> None:
    spec = PodSpec(
        containers=[container({"cpu": "1", NVIDIA: 2}), container({"cpu": "1", NVIDIA: 2})],
        resources=ResourceRequirements({"cpu": "5"}),
        overhead={"cpu": "250m"},
    )
    amounts = asked(make_pod("p", spec=spec))
    assert (amounts[CPU], amounts[GPU]) == (5250, 4)


def test_init_containers_run_one_at_a_time_before_the_others() -> None:
    # The larger of the sum of the containers and the largest init container, resource by resource.
    init = [container({"cpu": "2", "memory": "1Gi"}), container({"cpu": "1", "memory": "3Gi"})]
    both = pod([container({"cpu": "1", "memory": "1Gi"}), container({"cpu": "2", "memory": "1Gi"})], init)
    assert asked(both) == {CPU: 3000, MEMORY: 3 * GI, PODS: 1}


def test_a_sidecar_runs_beside_all_that_starts_after_it() -> None:
    sidecar = container({"cpu": "1"}, sidecar=True)
    before, after = container({"cpu": "5"}), container({"cpu": "3"})
    main = container({"cpu": "1"})
    assert asked(pod([main], [sidecar]))[CPU] == 2000
    assert asked(pod([main], [before, sidecar]))[CPU] == 5000
    assert asked(pod([main], [sidecar, before]))[CPU] == 6000
    assert asked(pod([main], [sidecar, after, sidecar]))[CPU] == 4000


kinds = st.sampled_from(["init", "sidecar"])
sizes = st.fixed_dictionaries(
    {}, optional={"cpu": st.integers(1, 9), "memory": st.integers(1, 9), NVIDIA: st.integers(1, 4)}
)


@given(
    st.lists(st.tuples(kinds, sizes), max_size=5),
    st.lists(sizes, min_size=1, max_size=3),
    st.fixed_dictionaries({}, optional={"cpu": st.integers(1, 3)}),
)
def test_a_pod_asks_for_the_most_that_runs_at_any_moment_of_its_start(
    init: list[tuple[str, dict[str, int]]], main: list[dict[str, int]], overhead: dict[str, int]
) -> None:
    moments: list[list[Requests]] = []
    sidecars: list[Requests] = []
    for kind, size in init:
        moments.append([*sidecars, size])
        if kind == "sidecar":
            sidecars.append(size)
    moments.append([*sidecars, *main])
    amounts = asked(
        pod([container(size) for size in main], [container(s, sidecar=k == "sidecar") for k, s in init], overhead)
    )
    for name, column, scale in (("cpu", CPU, 1000), ("memory", MEMORY, 1), (NVIDIA, GPU, 1)):
        peak = max(sum(int(running.get(name, 0)) for running in moment) for moment in moments)
        assert amounts.get(column, 0) == (peak + overhead.get(name, 0)) * scale


def test_requests_count_and_not_limits() -> None:
    # The API server writes the request where there is a limit alone.
    amounts = asked(pod([container({"cpu": "1", NVIDIA: 4}, {"cpu": "2", NVIDIA: 4, "memory": "1Gi"})]))
    assert (amounts[CPU], amounts[GPU], amounts.get(MEMORY)) == (1000, 4, None)


def test_gpus_of_all_vendors_count_for_one_account_and_each_for_its_own() -> None:
    resources = ResourceTable([NVIDIA, "amd.com/gpu"])
    amounts = pod_amounts(
        resources, pod([container({NVIDIA: 2}), container({"amd.com/gpu": 1}), container({"x.io/gpu": 5})])
    )
    assert amounts[GPU] == 3
    assert [amounts[resources.column(name)] for name in (NVIDIA, "amd.com/gpu", "x.io/gpu")] == [2, 1, 5]


def test_every_pod_takes_one_place_and_no_zeros_are_kept() -> None:
    amounts = asked(pod([container({"cpu": "0"})]))
    assert as_amounts(amounts) == ((PODS, 1),)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (PodSpec(containers=[container({"cpu": "lots"})]), "container c: cpu: 'lots'"),
        (PodSpec(init_containers=[container({NVIDIA: "-1"})]), "container c: nvidia.com/gpu: '-1' is negative"),
        (PodSpec(overhead={"memory": "1Zi"}), "memory: '1Zi'"),
        (PodSpec(resources=ResourceRequirements({"memory": "x"})), "memory: 'x'"),
        (PodSpec(containers=[container({"memory": "100Ei"})]), "larger than any node"),
    ],
)
def test_what_can_not_be_read_is_named(spec: PodSpec, words: str) -> None:
    with pytest.raises(QuantityError, match=words.replace("(", r"\(")):
        asked(make_pod("p", spec=spec))
