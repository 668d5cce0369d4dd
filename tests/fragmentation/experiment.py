"""One experiment: a cluster is filled in a shuffled order through the planner; what is allocated at the end."""

import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tests.fragmentation.openb import Machine, Want
from tests.helpers import make_node
from topo_scheduler.api.process import SchedulerConfig
from topo_scheduler.scheduling.placing.context.gpu_choice import choose_gpus
from topo_scheduler.scheduling.placing.model.placement_query import Placement, PlacementQuery, SizeRuleLimits
from topo_scheduler.scheduling.placing.model.policy import Policy
from topo_scheduler.scheduling.placing.planner import Planner
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.nodes.resources import CPU, GPU, GPU_SHARE, MEMORY, PODS, as_amounts
from topo_scheduler.state.pods.classes import PodClass
from topo_scheduler.state.statistics.typical_pods import Popular, kind_of, popular

WEIGHTS = (400, 300, 200, 100)
FILL = 1.3
"""GPUs that are asked for in the end, as a share of those there are."""


PUBLISHED: Final = {
    "default": 95.39,
    "cpu050": 95.21,
    "cpu100": 95.35,
    "gpushare40": 94.15,
    "gpushare60": 91.40,
    "gpuspec10": 94.95,
    "gpuspec20": 94.84,
    "multigpu20": 95.65,
    "multigpu30": 96.46,
}
"""Mean of seeds 42 to 51 of FGD alone, by the result files of its authors."""


@dataclass(frozen=True, slots=True)
class Result:
    """``allocated`` percent of all GPUs held at the end; ``learned``: typical pods were counted, not told."""

    trace: str
    seed: int
    scoring: str
    learned: bool
    allocated: float
    arrived: int
    placed: int
    seconds: float


def arrivals(pods: Sequence[Want], capacity: int, seed: int) -> list[Want]:
    """Return the pods in a shuffled order, then some of them again, until so much is asked (GPU-thousandths)."""
    draw = random.Random(seed)
    order = list(pods)
    draw.shuffle(order)
    asked, arrived = 0, list[Want]()
    while True:
        want = order[len(arrived)] if len(arrived) < len(order) else draw.choice(order)
        if asked + want.asked > FILL * capacity and len(arrived) >= len(order):
            return arrived
        arrived.append(want)
        asked += want.asked


def class_of(want: Want) -> PodClass:
    """Return the class of a pod of the trace."""
    shared = want.gpus == 1 and want.milli < 1000
    amounts = {CPU: want.cpu, MEMORY: want.memory << 20, PODS: 1}
    amounts |= {GPU_SHARE: want.milli} if shared else {GPU: want.gpus}
    return PodClass(as_amounts(amounts), models=want.models)


def typical(pods: Sequence[Want]) -> Popular:
    """Return the typical pods of a trace."""
    return popular(Counter(kind_of(dict(class_of(want).amounts), want.models) for want in pods))


def run(
    machines: Sequence[Machine], pods: Sequence[Want], trace: str, seed: int, scoring: str, *, learned: bool = False
) -> Result:
    """Fill a cluster."""
    world = World(SchedulerConfig())
    for machine in machines:
        node = make_node(
            machine.name,
            "all",
            gpus=machine.gpus,
            cpu=f"{machine.cpu}m",
            memory=f"{machine.memory}Mi",
            pods=100_000,
            model=machine.model,
            labels={"topology.scheduler/gpu-sharing": "true"},
        )
        assert world.put_node(node, 0.0) == []
    policy = Policy(
        np.array(WEIGHTS, np.int64), SizeRuleLimits(), alone=scoring, typical=() if learned else typical(pods)
    )
    planner, layout = Planner(world.around, world.history, policy), world.layout
    capacity = 1000 * sum(host.gpus for host in machines)
    order = arrivals(pods, capacity, seed)
    classes = {want: class_of(want) for want in set(pods)}
    held = placed = 0
    began = time.perf_counter()
    for number, want in enumerate(order):
        cls, uid = classes[want], str(number)
        if learned:
            world.around.kinds.put(uid, kind_of(dict(cls.amounts), want.models))
        outcome = planner.plan(PlacementQuery([(cls, 1)], gang=False), layout, 0.0)
        if not isinstance(outcome, Placement):
            continue
        row = outcome.rows[0][0]
        (devices,) = choose_gpus(planner, [(cls, row)])
        world.ledger.assume(uid, world.nodes.names[row], cls.amounts, devices=devices)
        held += want.asked
        placed += 1
    seconds = time.perf_counter() - began
    return Result(trace, seed, scoring, learned, 100 * held / capacity, len(order), placed, seconds)
