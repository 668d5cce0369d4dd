"""Clusters whose running pods have devices by claims, and a search of all sets of victims as a reference."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import msgspec
from hypothesis import strategies as st

from tests.scheduling.device_driver import DRIVER, asking, slice_of
from tests.scheduling.planning import Small, grid
from tests.scheduling.preemption_scenes import PreemptionScene, RunningPod
from topo_scheduler.api.annotations import Enforcement
from topo_scheduler.api.devices import DELETE_PROTECTION, DeviceAttribute, DeviceClass, ResourceClaim, ResourceClaimSpec
from topo_scheduler.scheduling.placing.model.placement_query import Placement, PlacementQuery
from topo_scheduler.scheduling.preemption.victims import Key
from topo_scheduler.state.devices.pod_claims import PodClaim, encoded
from topo_scheduler.state.nodes.resources import CPU, PODS
from topo_scheduler.state.pods.classes import PodClass

GPUS_PER_NODE = 4
CPU_PER_NODE = 8000
Json = dict[str, Any]


@dataclass(frozen=True)
class ClaimHeld:
    """An allocated claim: its devices by index, on a node, and the numbers of the pods that use it."""

    node: str
    devices: tuple[int, ...]
    pods: tuple[int, ...]
    protected: bool = True


@dataclass(frozen=True)
class DeviceCase:
    """Running pods with their claims, what is asked for, and what each budget allows."""

    held: tuple[RunningPod, ...]
    claims: tuple[ClaimHeld, ...]
    ask: PlacementQuery
    budgets: tuple[tuple[str, int], ...] = ()
    gangs: tuple[tuple[str, int, str], ...] = ()
    leaves: int = 2
    nodes: int = 2

    def scene(self, without: Collection[int] = ()) -> PreemptionScene:
        """Return the cluster, without some of its pods and what only they used."""
        small = Small(grid(1, self.leaves, self.nodes, gpus=0))
        inventory = small.world.inventory
        spec = {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]}
        inventory.put(
            inventory.classes, "gpu", msgspec.convert({"metadata": {"name": "gpu"}, "spec": spec}, DeviceClass)
        )
        for name in small.world.nodes.names:
            item = slice_of(name, GPUS_PER_NODE)
            item.spec.devices[2].attributes["numa"] = item.spec.devices[3].attributes["numa"] = DeviceAttribute(int_=1)
            inventory.put(inventory.slices, item.metadata.name, item)
        scene = PreemptionScene(small, ())
        for number, running in enumerate(self.held):
            if number not in without:
                scene._add(f"v{number}", running)
        for name, allowed in self.budgets:
            scene.budget(name, allowed)
        for name, least, mode in self.gangs:
            if scene.workloads.get(name) is not None:
                scene.gang(name, least, mode)
        for number, claim in enumerate(self.claims):
            users = [pod for pod in claim.pods if pod not in without]
            if users or not claim.protected:
                inventory.put(inventory.claims, ("default", f"c{number}"), _claim(f"c{number}", claim, users))
        small.world.settle_devices()
        return scene

    def cheapest(self) -> Key | None:
        """Return the least key of all sets of victims without which the workload has a place: by trying them all."""
        candidates = self.scene().candidates()
        numbers = [int(pod.occupant.name[1:]) for pod in candidates.pods]
        sizes = range(1, len(numbers) + 1)
        sets = [chosen for size in sizes for chosen in combinations(range(len(numbers)), size)]
        closed = ((candidates.key(chosen), chosen) for chosen in sets if candidates.closed(chosen) == list(chosen))
        # In the order of their keys, so that the first that makes room is the one.
        ordered = sorted(closed)
        return next((key for key, chosen in ordered if self.has_place([numbers[n] for n in chosen])), None)

    def has_place(self, without: Collection[int]) -> bool:
        """Return whether the workload has a place once some pods are gone."""
        small = self.scene(without).small
        return isinstance(small.planner.plan(self.ask, small.world.layout, 0), Placement)


def _claim(name: str, claim: ClaimHeld, users: Sequence[int]) -> ResourceClaim:
    results = [
        {"request": "gpus", "driver": DRIVER, "pool": claim.node, "device": f"gpu-{number}"} for number in claim.devices
    ]
    reserved = [{"resource": "pods", "name": f"v{number}", "uid": f"v{number}"} for number in users]
    finalizers = [DELETE_PROTECTION] if claim.protected else []
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", "finalizers": finalizers}
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": reserved}
    return msgspec.convert({"metadata": metadata, "spec": asking(len(results)), "status": status}, ResourceClaim)


def class_asking(*specs: Json, cpu: int = 0) -> PodClass:
    """Return the class of a pod whose claims were made from templates."""
    claims = tuple(PodClaim(encoded(msgspec.convert(spec, ResourceClaimSpec))) for spec in specs)
    asked = ((CPU, cpu), (PODS, 1))
    return PodClass(tuple((column, amount) for column, amount in asked if amount), claims=claims)


def query(cls: PodClass, members: int = 1, *, required: bool = True) -> PlacementQuery:
    """Ask for a place for a pod, or for a gang of more."""
    enforcement = Enforcement.REQUIRED if required else Enforcement.PREFERRED
    return PlacementQuery([(cls, members)], gang=members > 1, enforcement=enforcement)


def on_one_socket(count: int) -> Json:
    """Return the spec of a claim for devices of one NUMA node."""
    spec = asking(count)
    spec["devices"]["constraints"] = [{"requests": ["gpus"], "matchAttribute": f"{DRIVER}/numa"}]
    return spec


@st.composite
def device_cases(draw: st.DrawFn, gangs: bool = False, budgets: bool = False, members: int = 1) -> DeviceCase:
    """Draw a cluster of two leaves with a node of four devices each, most of them in use, and what is asked for."""
    nodes = ["s1l1n1", "s1l2n1"]
    free = {node: list(range(GPUS_PER_NODE)) for node in nodes}
    cpu = Counter(dict.fromkeys(nodes, CPU_PER_NODE))
    held: list[RunningPod] = []
    claims: list[ClaimHeld] = []
    for number in range(draw(st.integers(4, 7))):
        node = nodes[number % 2]
        wants = draw(st.sampled_from([0, 1000, 2000]))
        cpu[node] -= wants
        held.append(
            RunningPod(
                node,
                gpus=0,
                cpu=wants,
                priority=draw(st.sampled_from([0, 0, 0, 1, 2, 20])),
                ran=draw(st.sampled_from([0, 10, 10, 20, 300])),
                gang=draw(st.sampled_from(["", "g", "h"])) if gangs else "",
                budget=draw(st.sampled_from(["", "b", "c"])) if budgets else "",
            )
        )
        beside = [at for at, claim in enumerate(claims) if claim.node == node]
        if beside and draw(st.integers(0, 4)) == 0:
            at = draw(st.sampled_from(beside))
            claims[at] = _shared(claims[at], number)
            continue
        count = min(draw(st.sampled_from([0, 1, 1, 2, 2, 3])), len(free[node]))
        if count:
            devices = draw(st.permutations(free[node]))[:count]
            free[node] = [device for device in free[node] if device not in devices]
            claims.append(ClaimHeld(node, tuple(sorted(devices)), (number,), draw(st.integers(0, 7)) > 0))
    spec = draw(st.one_of(st.integers(2, 4).map(asking), st.just(2).map(on_one_socket)))
    cls = class_asking(spec, cpu=draw(st.sampled_from([0, 1000, 5000])))
    ask = query(cls, members, required=draw(st.booleans()))
    allowed = tuple((name, draw(st.integers(0, 2))) for name in ("b", "c")) if budgets else ()
    sizes = tuple((name, draw(st.integers(1, 3)), draw(st.sampled_from(["pod", "gang"]))) for name in ("g", "h"))
    return DeviceCase(tuple(held), tuple(claims), ask, allowed, sizes if gangs else (), nodes=1)


def _shared(claim: ClaimHeld, number: int) -> ClaimHeld:
    return ClaimHeld(claim.node, claim.devices, (*claim.pods, number), claim.protected)
