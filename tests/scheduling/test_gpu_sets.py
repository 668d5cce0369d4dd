"""Free GPUs of nodes by index, while pods come and go: what must hold at any time."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import make_node, make_pod
from tests.scheduling.driver import Driver
from topo_scheduler.api.annotations import GPU_INDEX, PREDICTED_GPUS
from topo_scheduler.api.gpu_needs import GpuLocality, GpuNeeds
from topo_scheduler.api.labels import GPU_SHARING
from topo_scheduler.api.objects import Pod
from topo_scheduler.scheduling.devices.gpu_closeness import is_close
from topo_scheduler.scheduling.devices.gpu_tables import GpuTables
from topo_scheduler.scheduling.devices.plugin_choice import predicted, prediction_operations, set_of

MODELS = ("Tesla-V100-SXM2-32GB", "NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-80GB", "AMD-Instinct-MI300X-OAM")
LOCALITIES = ("nvlink", "same-socket", "same-pcie-switch")
Step = tuple[str, int, str]


def indexes(pod: Pod, annotation: str = PREDICTED_GPUS) -> list[int]:
    text = pod.metadata.annotations.get(annotation, "")
    return [int(index) for index in text.split(",")] if text else []


def free_gpus(d: Driver, name: str) -> int:
    sets = d.engine.world.around.gpu_sets
    assert sets is not None
    return int(sets.free(np.array([d.engine.world.nodes.row_of[name]], np.int64))[0])


steps = st.lists(
    st.one_of(
        st.tuples(st.just("come"), st.integers(1, 8), st.sampled_from((*LOCALITIES, ""))),
        st.tuples(st.just("go"), st.integers(0, 20), st.just("")),
    ),
    max_size=14,
)


@settings(max_examples=60, deadline=None)
@given(models=st.lists(st.sampled_from(MODELS), min_size=1, max_size=3), moves=steps)
def test_each_pod_has_gpus_of_its_own_as_close_as_it_asks(models: list[str], moves: list[Step]) -> None:
    d = Driver([make_node(f"n{number}", "s1/l1", model=model) for number, model in enumerate(models)])
    pods: list[Pod] = []
    for move, number, locality in moves:
        if move == "come":
            annotations = {"gpu-locality": locality} if locality else {}
            pods.append(make_pod(f"p{len(pods)}", gpus=number, annotations=annotations))
            d.apply(pods[-1])
        elif number < len(pods) and pods[number].metadata.uid in d.pods:
            d.delete(pods[number])
        d.settle()
        d.settle(300)
    held: dict[str, list[int]] = defaultdict(list)
    world = d.engine.world
    for pod in d.pods.values():
        gpus = sum(int(str(container.resources.limits.get("nvidia.com/gpu", 0))) for container in pod.spec.containers)
        locality = pod.metadata.annotations.get("topology.scheduler/gpu-locality", "")
        needs = GpuNeeds(GpuLocality(locality)) if locality else None
        if pod.spec.node_name:
            node = world.hardware.of(world.nodes.row_of[pod.spec.node_name])
            assert node is not None
            held[pod.spec.node_name] += indexes(pod)
            if needs is not None and gpus > 1:
                assert len(indexes(pod)) == gpus
                assert is_close(node, needs, set_of(indexes(pod)))
            continue
        for name, row in world.nodes.row_of.items():
            node, free = world.hardware.of(row), free_gpus(d, name)
            assert node is not None
            chosen = predicted(node.hardware, node.vendor, free, gpus)
            assert chosen < 0 or (needs is not None and not is_close(node, needs, chosen)), (pod.metadata.name, name)
    for name, given_indexes in held.items():
        assert len(given_indexes) == len(set(given_indexes)), name
        assert not free_gpus(d, name) & set_of(given_indexes)


@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(st.integers(1, 4), max_size=5), order=st.randoms(use_true_random=False))
def test_free_gpus_follow_from_the_pods_in_whatever_order_they_are_seen(sizes: list[int], order: object) -> None:
    pods = [make_pod(f"p{number}", gpus=size, node="n") for number, size in enumerate(sizes)]
    shuffled = list(pods)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    free = []
    for sequence in (pods, shuffled):
        d = Driver([make_node("n", "s1/l1", model=MODELS[0])])
        d.apply(*sequence)
        free.append(free_gpus(d, "n"))
    assert free[0] == free[1]
    assert free[0].bit_count() == max(0, 8 - sum(sizes)) or sum(sizes) > 8


@pytest.mark.parametrize("requirements", ["required", "preferred"])
def test_on_nodes_that_share_gpus_they_are_chosen_and_not_predicted(requirements: str) -> None:
    """GPUs 0 and 1 are free, of one board with one link; 0 and 3 have two. A plugin would choose by its own rule."""
    d = Driver([make_node("n", "s1/l1", model=MODELS[0], labels={GPU_SHARING: "true"})])
    d.apply(make_pod("x", gpus=4, node="n", annotations={GPU_INDEX: "4,5,6,7"}))
    asks = {"gpu-locality": "nvlink", "gpu-min-bandwidth": "100G", "gpu-requirements": requirements}
    pod = make_pod("p", gpus=2, annotations=asks)
    assert d.run(pod) == {"p": "n"}
    assert indexes(pod, GPU_INDEX) in ([0, 3], [1, 2], [2, 3])
    assert not indexes(pod)


@pytest.mark.parametrize(("labels", "suffix"), [({"nvidia.com/gpu.replicas": "4"}, ""), ({}, "-SHARED"), ({}, "")])
def test_replicas_of_gpus_are_no_gpus_that_are_close(labels: dict[str, str], suffix: str) -> None:
    """Also without a hint: two GPUs of which the node offers eight."""
    labels = {**labels, "nvidia.com/gpu.count": "2"}
    d = Driver([make_node("n", "s1/l1", model=f"{MODELS[1]}{suffix}", gpus=8, labels=labels)])
    pod = make_pod("p", gpus=2, annotations={"gpu-locality": "nvlink"})
    assert d.run(pod) == {}


@pytest.mark.parametrize("replicas", ["4", "3", ""])
def test_nothing_is_predicted_for_replicas_of_gpus(replicas: str) -> None:
    """Not either if no label has the number of GPUs: of eight replicas it is not known which GPU each is of."""
    labels = {"nvidia.com/gpu.replicas": replicas} if replicas else {}
    d = Driver([make_node("n", "s1/l1", model="Tesla-V100-SXM2-32GB-SHARED", gpus=8, labels=labels)])
    gpus = d.engine.world.hardware.of(0)
    assert gpus is not None and gpus.shared_by_time and gpus.count == (2 if replicas == "4" else 0)
    plain = make_pod("plain", gpus=2)
    asks = {"gpu-locality": "nvlink", "gpu-requirements": "preferred"}
    close = make_pod("close", gpus=2, annotations=asks)
    assert d.run(plain, close) == {"plain": "n", "close": "n"}
    assert not indexes(plain) and not indexes(close)


def test_a_node_with_fewer_gpus_than_described_offers_what_is_left() -> None:
    """One of eight is unhealthy: the node offers seven, and does not say which."""
    labels = {"nvidia.com/gpu.count": "8"}
    d = Driver([make_node("n", "s1/l1", model=MODELS[1], gpus=7, labels=labels)])
    pods = [make_pod(f"p{number}", gpus=4, annotations={"gpu-locality": "nvlink"}) for number in range(2)]
    assert len(d.run(*pods)) == 1


def test_hardware_that_changes_is_noticed() -> None:
    d = Driver([make_node("n", "s1/l1", model="NVIDIA-L40S")])
    pod = make_pod("p", gpus=2, annotations={"gpu-locality": "nvlink"})
    assert d.run(pod) == {}
    d.nodes(make_node("n", "s1/l1", model=MODELS[1]))
    d.settle(300)
    assert d.where(pod) == {"p": "n"}


def test_predictions_for_many_large_nodes_are_charged() -> None:
    """Each takes a millisecond, and no limit of an attempt would see it otherwise."""
    nodes = [make_node(f"n{number}", "s1/l1", gpus=16, model="AMD-Instinct-MI300X-OAM") for number in range(40)]
    d = Driver(nodes)
    d.apply(make_pod("p", gpus=8, annotations={"gpu-locality": "nvlink"}))
    d.step()
    assert d.engine.attempting.spent > prediction_operations((1 << 16) - 1, 8) > 100


def test_a_choice_by_index_considers_which_gpus_running_pods_have(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[int]] = []
    beside = GpuTables.choose_beside

    def recorded(self: GpuTables, free: int, chosen: int, running: Sequence[int], *accepts: Any) -> int:
        seen.append(list(running))
        return beside(self, free, chosen, running, *accepts)

    monkeypatch.setattr(GpuTables, "choose_beside", recorded)
    d = Driver([make_node("n", "s1/l1", model="Tesla-V100-SXM2-32GB", labels={GPU_SHARING: "true"})])
    pods = [make_pod(f"p{number}", gpus=2, annotations={"gpu-locality": "nvlink"}) for number in range(3)]
    for pod in pods:
        d.run(pod)
    held = [set_of(indexes(pod, GPU_INDEX)) for pod in pods]
    assert [sorted(running) for running in seen] == [[], sorted(held[:1]), sorted(held[:2])]
