"""Gangs with a spread constraint over hostnames, on up to 12 nodes, and every way to place them.

Kubernetes judges a constraint pod by pod. If each member goes to the lowest node, all may end wherever no node with a
member is more than ``maxSkew`` above the lowest. So ways are judged by their end.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from tests.scheduling.driver import Driver, configured
from topo_scheduler.api.labels import PREFIX
from topo_scheduler.api.objects import Node, Pod

Json = dict[str, Any]
LEAVES: Final = ("s1/l1", "s1/l2", "s2/l3")
GPUS: Final = 4
"""Of each node."""
PREFERRED: Final = configured("{topologyConstraints: {enforcement: preferred}}")
REQUIRED: Final = configured()
TAINT: Final = {"key": "x", "value": "y", "effect": "NoSchedule"}
CORDONED: Final = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}

Place = tuple[int, int]
"""Whether it lies in several spines, and in how many leaves."""


@dataclass(frozen=True)
class Machine:
    """A node of which GPUs are free, with pods of others that the constraint counts, ``strangers``."""

    leaf: str
    free: int
    strangers: int
    pool: str
    tainted: bool
    cordoned: bool


@dataclass(frozen=True)
class Case:
    """A gang of ``small`` members of one GPU and ``big`` ones of two. ``selects``: it wants nodes of pool a."""

    machines: tuple[Machine, ...]
    small: int
    big: int
    skew: int
    min_domains: int | None
    selects: bool
    affinity_policy: str
    taints_policy: str
    counts_itself: bool

    # ------------------------------------------------------------ every way

    def best(self, *, empty: bool = False) -> Place | None:
        """Return the nearest place of all ways, None where there is none; ``empty``: without other pods."""
        counted = [0 if empty else machine.strangers for machine in self.machines]
        free = [(GPUS if empty else m.free) if self._usable(m) else 0 for m in self.machines]
        domains = [at for at, machine in enumerate(self.machines) if self._is_domain(machine)]
        ways = {way for way in _ways(free, self.small, self.big) if self._holds(counted, domains, way)}
        return min((self.place([at for at, count in enumerate(way) if count]) for way in ways), default=None)

    def place(self, nodes: Sequence[int]) -> Place:
        """Return how near some nodes are."""
        leaves = {self.machines[at].leaf for at in nodes}
        return int(len({leaf[:2] for leaf in leaves}) > 1), len(leaves)

    def _usable(self, machine: Machine) -> bool:
        return (not self.selects or machine.pool == "a") and not machine.tainted and not machine.cordoned

    def _is_domain(self, machine: Machine) -> bool:
        if self.affinity_policy == "Honor" and self.selects and machine.pool != "a":
            return False
        return self.taints_policy != "Honor" or not (machine.tainted or machine.cordoned)

    def _holds(self, counted: Sequence[int], domains: Sequence[int], way: Sequence[int]) -> bool:
        final = [before + (new if self.counts_itself else 0) for before, new in zip(counted, way, strict=True)]
        few = self.min_domains is not None and len(domains) < self.min_domains
        lowest = 0 if few else min((final[at] for at in domains), default=0)
        return all(final[at] - lowest <= self.skew for at, new in enumerate(way) if new)

    # ------------------------------------------------------------ as objects

    def nodes(self) -> list[Json]:
        """Return the nodes: n0, n1 and so on."""
        return [_node(f"n{at}", machine) for at, machine in enumerate(self.machines)]

    def others(self) -> list[Json]:
        """Return the pods that are there already, of one GPU each."""
        return [
            _pod(f"there-{at}-{number}", 1, "web" if number < machine.strangers else "other", nodeName=f"n{at}")
            for at, machine in enumerate(self.machines)
            for number in range(GPUS - machine.free)
        ]

    def members(self) -> list[Json]:
        """Return the pods of the gang, the large ones first."""
        constraint = {
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "DoNotSchedule",
            "maxSkew": self.skew,
            "labelSelector": {"matchLabels": {"app": "web"}},
            "nodeAffinityPolicy": self.affinity_policy,
            "nodeTaintsPolicy": self.taints_policy,
        }
        if self.min_domains is not None:
            constraint["minDomains"] = self.min_domains
        spec: Json = {"topologySpreadConstraints": [constraint], "schedulerName": "topology-aware-scheduler"}
        if self.selects:
            spec["nodeSelector"] = {"pool": "a"}
        app = "web" if self.counts_itself else "gang"
        sizes = [2] * self.big + [1] * self.small
        pods = [_pod(f"g-{number}", gpus, app, **spec) for number, gpus in enumerate(sizes)]
        for pod in pods:
            annotations = {"gang-name": "g", "gang-size": str(len(sizes))}
            pod["metadata"]["annotations"] = {PREFIX + key: value for key, value in annotations.items()}
        return pods

    def decided(self, driver: Driver) -> dict[str, int]:
        """Return which node each member gets by the engine of an empty driver, none where it waits."""
        driver.nodes(*(msgspec.convert(node, Node) for node in self.nodes()))
        driver.apply(*(msgspec.convert(pod, Pod) for pod in self.others()))
        where = driver.run(*(msgspec.convert(pod, Pod) for pod in self.members()))
        return {name: int(node[1:]) for name, node in where.items()}


def _node(name: str, machine: Machine) -> Json:
    spine, leaf = machine.leaf.split("/")
    labels = {"kubernetes.io/hostname": name, "pool": machine.pool, f"{PREFIX}spine": spine, f"{PREFIX}leaf": leaf}
    allocatable = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": str(GPUS)}
    taints = [*[TAINT] * machine.tainted, *[CORDONED] * machine.cordoned]
    return {
        "metadata": {"name": name, "uid": name, "labels": labels},
        "spec": {"taints": taints, "unschedulable": machine.cordoned},
        "status": {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def _pod(name: str, gpus: int, app: str, **spec: Any) -> Json:
    amounts = {"nvidia.com/gpu": str(gpus), "cpu": "1"}
    container = {"name": "main", "image": "busybox", "resources": {"requests": amounts, "limits": amounts}}
    metadata = {"name": name, "namespace": "default", "uid": name, "labels": {"app": app}}
    spec = {"schedulerName": "other", "containers": [container], **spec}
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Running" if "nodeName" in spec else "Pending"}}


def _ways(free: Sequence[int], small: int, big: int) -> Iterator[tuple[int, ...]]:
    """Yield how many members each node gets, in every way that its GPUs allow."""
    if not free:
        if not small and not big:
            yield ()
        return
    if sum(free) < small + 2 * big:
        return
    for large in range(min(free[0] // 2, big) + 1):
        for others in range(min(free[0] - 2 * large, small) + 1):
            for rest in _ways(free[1:], small - others, big - large):
                yield large + others, *rest


def drawn(seed: int, most_nodes: int, most_members: int, *, mixed: bool = False) -> Case:
    """Return the case of a seed."""
    rng = random.Random(seed)
    machines = []
    for _ in range(rng.randint(2, most_nodes)):
        free = rng.choice([0, 0, 1, 1, 2, 3, 4])
        strangers = min(rng.choice([0, 0, 0, 0, 1, 2]), GPUS - free)
        leaf, pool = rng.choice(LEAVES[: rng.randint(1, 3)]), rng.choice("aab")
        machines.append(Machine(leaf, free, strangers, pool, rng.random() < 0.1, rng.random() < 0.08))
    members = rng.randint(2, most_members)
    big = rng.randint(1, members - 1) if mixed else 0
    return Case(
        tuple(machines),
        members - big,
        big,
        skew=rng.randint(1, 3),
        min_domains=rng.choice([None, None, 2, 4]),
        selects=rng.random() < 0.3,
        affinity_policy=rng.choice(["Honor", "Honor", "Ignore"]),
        taints_policy=rng.choice(["Ignore", "Ignore", "Honor"]),
        counts_itself=rng.random() < 0.85,
    )
