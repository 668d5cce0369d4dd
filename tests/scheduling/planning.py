"""Plans on small clusters, without an engine around them."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from tests.helpers import make_node
from tests.scheduling.reference import Machine, Want
from topo_scheduler.api.annotations import Enforcement, PlacementStrategy
from topo_scheduler.api.labels import UNLABELLED
from topo_scheduler.api.objects import Node
from topo_scheduler.api.process import SchedulerConfig
from topo_scheduler.scheduling.placing.model.placement_query import (
    Placement,
    PlacementFailure,
    PlacementQuery,
    Segments,
    SizeRuleLimits,
)
from topo_scheduler.scheduling.placing.model.policy import Policy
from topo_scheduler.scheduling.placing.planner import Planner
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.nodes.resources import CPU, GPU, PODS
from topo_scheduler.state.pods.classes import PodClass

WEIGHTS = (400, 300, 200, 100)


class Small:
    """A cluster of some nodes, and what is planned on it."""

    def __init__(
        self,
        nodes: Iterable[Node],
        *,
        weights: Sequence[int] = WEIGHTS,
        max_nodes: int = 0,
        max_gpus: int = 0,
    ) -> None:
        self.world = World(SchedulerConfig())
        for node in nodes:
            assert self.world.put_node(node, 0) == []
        limits = SizeRuleLimits(Enforcement.REQUIRED, max_nodes, max_gpus)
        self.planner = Planner(self.world.around, self.world.history, Policy(np.array(weights, np.int64), limits))
        self._holds = 0

    def hold(self, node: str, *, gpus: int = 0, cpu: int = 0) -> None:
        """Take something of a node."""
        self._holds += 1
        amounts = tuple((column, amount) for column, amount in ((CPU, cpu), (GPU, gpus)) if amount)
        self.world.ledger.confirm(f"held-{self._holds}", node, amounts)

    def send(self, name: str, bandwidth: int, *nodes: str) -> None:
        """Reserve bandwidth for a gang on some nodes."""
        for number, node in enumerate(nodes):
            self.world.links.put(f"{name}-{number}", ("default", name), node, bandwidth)

    def plan(self, ask: PlacementQuery, now: float = 0) -> Placement | PlacementFailure:
        return self.planner.plan(ask, self.world.layout, now)

    def place(self, ask: PlacementQuery, now: float = 0) -> list[str]:
        """Return the nodes of the members in order; fail when there is no place."""
        placement = self.plan(ask, now)
        assert isinstance(placement, Placement), placement
        return [self.world.nodes.names[row] for rows in placement.rows for row in rows]

    def leaves(self, ask: PlacementQuery) -> list[str]:
        """Return the leaves used, as they are written by users."""
        placement = self.plan(ask)
        assert isinstance(placement, Placement), placement
        return ["/".join(self.world.layout.paths[leaf]) for leaf in placement.leaves]

    def rows(self, *names: str) -> list[int]:
        return [self.world.nodes.row_of[name] for name in names]


def pods(gpus: int = 8, *, cpu: int = 0) -> PodClass:
    """Return a class of pods that ask for GPUs and milli-CPU."""
    asked = ((CPU, cpu), (PODS, 1), (GPU, gpus))
    return PodClass(tuple((column, amount) for column, amount in asked if amount))


def gang(
    members: int,
    gpus: int = 8,
    *,
    strategy: PlacementStrategy = PlacementStrategy.BALANCED,
    required: bool = True,
    mixed: bool = False,
    running: Sequence[int] = (),
    preferred: tuple[int, int] | None = None,
    cpu: int = 0,
) -> PlacementQuery:
    """Ask for places for the members of a gang."""
    return PlacementQuery(
        [(pods(gpus, cpu=cpu), members)],
        gang=True,
        strategy=strategy,
        enforcement=Enforcement.REQUIRED if required else Enforcement.PREFERRED,
        mixed_models=mixed,
        running=running,
        preferred=preferred,
    )


def single(
    gpus: int = 8, *, strategy: PlacementStrategy = PlacementStrategy.BALANCED, siblings: Sequence[int] = ()
) -> PlacementQuery:
    """Ask for a place for one pod."""
    return PlacementQuery([(pods(gpus), 1)], gang=False, strategy=strategy, siblings=siblings)


def grid(spines: int, leaves: int, nodes: int, gpus: int = 8) -> list[Node]:
    """Return a regular fabric: ``s1/l1`` has ``s1l1n1`` and so on."""
    return [
        make_node(f"s{s}l{leaf}n{n}", f"s{s}/l{leaf}", gpus=gpus)
        for s in range(1, spines + 1)
        for leaf in range(1, leaves + 1)
        for n in range(1, nodes + 1)
    ]


def small_of(
    machines: Sequence[Machine],
    want: Want,
    weights: Sequence[int] = WEIGHTS,
    networks: Mapping[str, int] | None = None,
) -> Small:
    """Return the cluster of a reference. ``networks`` is Gbit/s by node; 0 and none where it is unknown."""
    known = networks or {}
    small = Small(
        (
            make_node(
                machine.name,
                "/".join("" if part == UNLABELLED else part for part in machine.place),
                gpus=machine.gpus,
                cpu=f"{machine.cpu}m",
                model=machine.model,
                unschedulable=not machine.usable,
                bandwidth=f"{known[machine.name]}Gb" if known.get(machine.name) else "",
            )
            for machine in machines
        ),
        weights=weights,
        max_nodes=want.max_nodes,
        max_gpus=want.max_gpus,
    )
    for machine in machines:
        small.hold(machine.name, gpus=machine.used_gpus, cpu=machine.used_cpu)
    return small


def ask_of(want: Want, strategy: PlacementStrategy = PlacementStrategy.BALANCED) -> PlacementQuery:
    """Return the ask of a reference."""
    return PlacementQuery(
        [(pods(want.gpus, cpu=want.cpu), want.members)],
        gang=want.gang,
        strategy=strategy,
        enforcement=Enforcement.REQUIRED if want.required else Enforcement.PREFERRED,
        mixed_models=want.mixed,
    )


def gang_in_segments(
    groups: Sequence[tuple[PodClass, int]], parts: Sequence[Sequence[int]], *, required: bool
) -> PlacementQuery:
    """Return the placement query of a gang whose segments have these members of each class."""
    return PlacementQuery(
        groups,
        gang=True,
        enforcement=Enforcement.REQUIRED if required else Enforcement.PREFERRED,
        segments=Segments(1, parts=tuple(map(tuple, parts))),
    )
