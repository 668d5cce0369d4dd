"""A pod that asks for one partition of a GPU gets the node where a GPU loses the least capacity."""

import random
from typing import Any

import msgspec
import pytest

from tests.helpers import make_node
from tests.scheduling.device_driver import DeviceDriver
from tests.scheduling.partitioned_nodes import PLACES, partitioned, profile
from topo_scheduler.api.selectors import Affinity
from topo_scheduler.scheduling.devices.mig_slots import MigSlots, SplitGpu
from topo_scheduler.state.devices.mig import MigGeometry, MigProfile

GEOMETRY = MigGeometry(
    7, 8, tuple(MigProfile(name, compute, size, tuple(starts), 7) for name, (compute, size, starts) in PLACES.items())
)


def cluster(nodes: int, gpus: int) -> DeviceDriver:
    names = [f"n{number}" for number in range(nodes)]
    made = [make_node(name, "s1/l1", gpus=0, labels={"name": name}) for name in names]
    d = DeviceDriver(made, 0)
    for name in names:
        d.drop_slice(f"{name}-gpus")
        d.slices(*partitioned(name, gpus))
    return d


def placed(d: DeviceDriver, name: str, size: str, **spec: Any) -> str:
    """Return the node and the device that a pod gets."""
    made = d.pod(name, profile(size))
    made.spec = msgspec.structs.replace(made.spec, **spec)
    d.run(made)
    assert made.spec.node_name
    (device,) = d.devices_of(f"{name}-claim")
    return f"{made.spec.node_name}/{device}"


@pytest.mark.parametrize("gpus", [1, 2])
def test_each_pod_gets_a_slot_that_loses_the_least_of_all_nodes(gpus: int) -> None:
    """Of equal ones, on a GPU with the most instances. Beside the tables of MIG over all GPUs."""
    rng, slots, nodes = random.Random(gpus), MigSlots(GEOMETRY), 4 // gpus
    d = cluster(nodes, gpus)
    states = {f"n{node}/gpu-{gpu}": SplitGpu() for node in range(nodes) for gpu in range(gpus)}
    running: list[tuple[str, str, str, int]] = []
    compared = 0
    for number in range(60):
        while running and rng.random() < 0.4:
            name, gpu, size, start = running.pop(rng.randrange(len(running)))
            d.delete(next(pod for pod in d.pods.values() if pod.metadata.name == name))
            d.drop_claim(f"{name}-claim")
            instance = GEOMETRY.profile(size)
            assert instance is not None
            states[gpu] = states[gpu].without_instance(instance, start)
        size = rng.choice(["1g", "1g", "2g", "3g", "7g"])
        instance = GEOMETRY.profile(size)
        assert instance is not None
        ranks = {
            (gpu, start): (slots.loss(state, instance, start), -state.instances)
            for gpu, state in states.items()
            for start in slots.starts(state, instance)
        }
        if not ranks:
            continue
        at, _, device = placed(d, f"p{number}", size).rpartition("/")
        _, index, _, first = device.split("-")
        gpu, start = f"{at}/gpu-{index}", int(first)
        assert ranks[gpu, start] == min(ranks.values())
        compared += len(ranks) > 1
        states[gpu] = states[gpu].with_instance(instance, start)
        running.append((f"p{number}", gpu, size, start))
    assert compared > 20


def test_the_node_that_is_split_is_filled_first_though_another_is_fuller() -> None:
    """The most of a large node is free, and it has the split GPU; the small one is whole."""
    d = cluster(2, 3)
    d.slices(*partitioned("n1", 1))
    first = placed(d, "first", "3g", node_selector={"name": "n0"})
    assert first.startswith("n0/")
    assert placed(d, "second", "3g").startswith(first[:8])


def test_the_explanation_has_the_capacity_that_is_kept() -> None:
    d = cluster(2, 1)
    placed(d, "first", "7g")
    (decision,) = d.decisions()
    assert decision.score is not None and decision.score.by_node
    assert decision.score.added == (("capacity-kept", 0),), "a whole GPU is lost"
    d.forget()
    placed(d, "second", "1g")
    state, instance = SplitGpu(), GEOMETRY.profiles[0]
    slots = MigSlots(GEOMETRY)
    kept = 1_000 - 1_000 * min(slots.loss(state, instance, start) for start in range(7)) // slots.capacity(state)
    (decision,) = d.decisions()
    assert decision.score is not None and decision.score.total == kept


def test_the_preferences_of_the_pod_come_first() -> None:
    d = cluster(2, 1)
    assert placed(d, "first", "1g", node_selector={"name": "n1"}).startswith("n1/")
    term = {"weight": 1, "preference": {"matchExpressions": [{"key": "name", "operator": "In", "values": ["n0"]}]}}
    affinity = msgspec.convert({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}, Affinity)
    assert placed(d, "second", "1g").startswith("n1/")
    assert placed(d, "third", "1g", affinity=affinity).startswith("n0/")
