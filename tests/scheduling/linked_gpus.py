"""DGX-1 nodes whose GPUs are in slices: each GPU has links to four others only."""

from collections.abc import Sequence
from itertools import permutations

from tests.helpers import make_node
from tests.scheduling.device_driver import DRIVER, Json, asking, slice_of
from tests.scheduling.extended_driver import ExtendedDriver
from topo_scheduler.api.devices import ResourceSlice
from topo_scheduler.api.objects import Pod

V100 = "Tesla-V100-SXM2-16GB"
GPU_TYPE: Json = {"type": {"string": "gpu"}}
LINKS = set(
    map(frozenset, ("01", "02", "03", "04", "12", "13", "15", "23", "26", "37", "45", "46", "47", "56", "57", "67"))
)
"""Pairs of GPUs of a DGX-1 with NVLink, by their numbers."""


def cluster(*nodes: str) -> ExtendedDriver:
    """Return DGX-1 nodes whose GPUs are in slices, see `numbered_slice`."""
    d = ExtendedDriver([make_node(name, "s1/l1", gpus=0, model=V100) for name in nodes], 8)
    d.engine.budgets_known()
    d.slices(*map(numbered_slice, nodes))
    d.step()
    return d


def numbered_slice(node: str) -> ResourceSlice:
    """Return the slice of a node whose GPUs have a number to ask for, and which half of the board they are on."""
    item = slice_of(node, 8, generation=2)
    for number, device in enumerate(item.spec.devices):
        attributes = {**GPU_TYPE, "number": {"int": number}, "half": {"int": number // 4}}
        device.attributes = slice_of(node, 1, attributes=attributes).spec.devices[0].attributes
    return item


def running(d: ExtendedDriver, name: str, gpus: Sequence[int], priority: int = 0) -> Pod:
    """Run a pod with certain GPUs, by a claim that was made for it."""
    expression = " || ".join(f"device.attributes['{DRIVER}'].number == {gpu}" for gpu in gpus)
    spec = asking(len(gpus), selectors=[{"cel": {"expression": expression}}])
    pod = d.pod(name, spec, priority=priority)
    assert d.run(pod)
    return pod


def numbers_of(d: ExtendedDriver, pod: Pod) -> set[int]:
    """Return the numbers of the GPUs that the claims for a pod's extended resources have."""
    return {
        int(result.device.removeprefix("gpu-"))
        for claim in d.claims.values()
        if any(owner.uid == pod.metadata.uid for owner in claim.metadata.owner_references)
        for result in (claim.status.allocation.devices.results if claim.status.allocation else ())
    }


def are_linked(gpus: Sequence[int]) -> bool:
    """Return whether links connect all of these GPUs, over each other."""
    reached = [gpus[0]]
    for gpu in reached:
        reached += [other for other in gpus if other not in reached and frozenset(f"{gpu}{other}") in LINKS]
    return len(reached) == len(gpus)


def best_ring(pairs: tuple[tuple[int, ...], ...], chosen: tuple[int, ...]) -> int:
    """Return the bandwidth of the best ring over every order of some GPUs."""
    first, *rest = chosen
    return max(
        min(pairs[a][b] for a, b in zip((first, *order), (*order, first), strict=True)) for order in permutations(rest)
    )
