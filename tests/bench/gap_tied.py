"""How far the search for gangs whose members look at each other is from the optimum, on 24 to 60 nodes.

The optimum is that of HiGHS, as for gangs of different pods: the fewest leaves of one spine, or of the whole fabric
where no spine holds the gang. A spread can be kept while members are seated in turn if it holds once all are there:
a member that goes to the emptiest domain first breaks nothing on the way.
"""

import random
import time
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Final

from tests.bench.gap import gap
from tests.bench.milp import Model
from tests.bench.objects import Json
from tests.helpers import NVIDIA, make_node
from tests.scheduling.affinity_pods import HOSTNAME, WEB_PODS, pod_affinity, pod_anti_affinity, web_pod
from tests.scheduling.driver import Driver, configured
from topo_scheduler.api.objects import Container, Pod, PodSpec, Quantity, ResourceRequirements
from topo_scheduler.api.selectors import Affinity, LabelSelector, TopologySpreadConstraint

SPINES: Final = 3
LEAVES: Final = 4
GPUS: Final = 8
ZONE: Final = "zone"
TIES: Final = ("apart by node", "apart by zone", "together in a zone", "spread by zone", "spread by node", "launcher")
"""How members are tied. With a launcher, workers are in its zone and keep apart by node; it asks for no GPU."""
LAUNCHER: Final = LabelSelector({"role": "launcher"})


class Tied:
    """Nodes in zones that nest in leaves or lie across them, partly taken, and a gang whose members look at each other.

    ``size`` of segments, 1 for none.
    """

    def __init__(self, seed: int, *, segments: bool) -> None:
        draw = random.Random(seed)
        self.tie = TIES[seed % len(TIES)]
        each = draw.randint(2, 5)
        self.leaf = [leaf for leaf in range(SPINES * LEAVES) for _ in range(each)]
        self.zone = self._zones(draw)
        self.free = [draw.choice((0, 0, 1, 2, 2, 4, 6, 8)) for _ in self.leaf]
        self.gpus = draw.choice((1, 1, 2))
        largest = 8 if self.tie in ("apart by zone", "launcher") else 16
        self.size = draw.choice((2, 3, 4)) if segments else 1
        self.members = self.size * draw.randint(2, max(2, largest // self.size))
        self.skew = draw.randint(1, 2)
        self.strangers = [0] * len(self.leaf)
        """Pods of others on each node that count as members do, in half of the instances with a spread."""
        if self.tie.startswith("spread") and draw.random() < 0.5:
            for at in draw.sample(range(len(self.leaf)), 3):
                self.strangers[at] = draw.randint(1, 2)

    def _zones(self, draw: random.Random) -> list[int]:
        across, zones = draw.random() < 0.5, draw.randint(4, 10)
        if across:
            return [draw.randrange(3 if self.tie == "launcher" else zones) for _ in self.leaf]
        if self.tie in ("together in a zone", "launcher"):
            return [leaf // 2 for leaf in self.leaf]
        return [leaf * 2 + at % 2 for at, leaf in enumerate(self.leaf)]

    @property
    def _launchers(self) -> int:
        return int(self.tie == "launcher")

    # ------------------------------------------------------------ as it is placed

    def planned(self) -> tuple[tuple[int, int] | None, float]:
        """Return (1 beyond a spine, leaves) as the gang is placed, None where it is not; and seconds."""
        d = self._cluster()
        pods = [self._member(number) for number in range(self.members)]
        d.apply(*pods)
        began = time.thread_time()
        d.step()
        seconds = time.thread_time() - began
        nodes = [int(bind.node[1:]) for bind in d.flight.values()]
        if not nodes:
            return None, seconds
        d.settle()
        self._check([int(pod.spec.node_name[1:]) for pod in pods])
        leaves = {self.leaf[at] for at in nodes}
        return (int(len({leaf // LEAVES for leaf in leaves}) > 1), len(leaves)), seconds

    def _cluster(self) -> Driver:
        d = Driver(
            [
                make_node(
                    f"n{at}",
                    f"s{leaf // LEAVES}/l{leaf}",
                    gpus=GPUS,
                    labels={HOSTNAME: f"n{at}", ZONE: f"z{self.zone[at]}"},
                )
                for at, leaf in enumerate(self.leaf)
            ],
            configured("{topologyConstraints: {enforcement: preferred}}"),
        )
        for at, free in enumerate(self.free):
            d.apply(*(web_pod(f"stranger-{at}-{n}", _spec(0), node=f"n{at}") for n in range(self.strangers[at])))
            if free < GPUS:
                busy = web_pod(f"busy-{at}", _spec(GPUS - free), node=f"n{at}")
                busy.metadata.labels.clear()
                d.apply(busy)
        return d

    def _member(self, number: int) -> Pod:
        annotations = {"gang-name": "g", "gang-size": str(self.members)}
        if self.size > 1:
            annotations["segment-size"] = str(self.size)
        if number < self._launchers:
            pod = web_pod(f"g-{number:03}", _spec(0), annotations=annotations)
            pod.metadata.labels = {"role": "launcher"}
            return pod
        key = HOSTNAME if self.tie.endswith("node") else ZONE
        affinity: Affinity | None = None
        spread: list[TopologySpreadConstraint] = []
        if self.tie.startswith("apart"):
            affinity = pod_anti_affinity(key)
        elif self.tie.startswith("together"):
            affinity = pod_affinity(key)
        elif self.tie.startswith("spread"):
            spread = [TopologySpreadConstraint(key, "DoNotSchedule", self.skew, label_selector=WEB_PODS)]
        else:
            affinity = pod_affinity(ZONE, LAUNCHER)
            affinity.pod_anti_affinity = pod_anti_affinity(HOSTNAME).pod_anti_affinity
        return web_pod(f"g-{number:03}", _spec(self.gpus, affinity, spread), annotations=annotations)

    def _check(self, chosen: Sequence[int]) -> None:
        """Hold a placement to the limits of the solver: so that both mean the same gang."""
        model = self._model(range(SPINES * LEAVES))
        workers = Counter(chosen[self._launchers :])
        for at in range(len(self.leaf)):
            model.limit({("worker", at): 1}, workers[at], workers[at])
        assert model.least({}) is not None, (self.tie, chosen)

    # ------------------------------------------------------------ as the solver does

    def optimum(self) -> tuple[int, int] | None:
        """Return (1 beyond a spine, leaves) of the best placement there is."""
        inside = [self._fewest(range(s * LEAVES, (s + 1) * LEAVES)) for s in range(SPINES)]
        if any(inside):
            return 0, min(leaves for leaves in inside if leaves)
        beyond = self._fewest(range(SPINES * LEAVES))
        return None if beyond is None else (1, beyond)

    def _fewest(self, leaves: Sequence[int]) -> int | None:
        return self._model(leaves).least({("leaf", leaf): 1 for leaf in leaves})

    def _model(self, leaves: Sequence[int]) -> Model:
        model = Model()
        for leaf in range(SPINES * LEAVES):
            model.variable(("leaf", leaf), int(leaf in leaves))
            model.variable(("segments", leaf))
        for at, leaf in enumerate(self.leaf):
            fit = self.free[at] // self.gpus
            model.variable(("worker", at), fit)
            model.variable(("launcher", at), self._launchers)
            model.limit({("worker", at): 1, ("leaf", leaf): -fit}, upper=0)
            model.limit({("launcher", at): 1, ("leaf", leaf): -1}, upper=0)
        everywhere = range(len(self.leaf))
        model.limit({("launcher", at): 1 for at in everywhere}, self._launchers, self._launchers)
        workers = self.members - self._launchers
        model.limit({("worker", at): 1 for at in everywhere}, workers, workers)
        for leaf in range(SPINES * LEAVES):
            inside = [(kind, at) for kind in ("worker", "launcher") for at in everywhere if self.leaf[at] == leaf]
            model.limit({**dict.fromkeys(inside, 1), ("segments", leaf): -self.size}, 0, 0)
        self._tie(model)
        return model

    def _tie(self, model: Model) -> None:
        by_node = self.tie.endswith("node")
        domains: dict[int, list[int]] = {}
        for at, zone in enumerate(self.zone):
            domains.setdefault(at if by_node else zone, []).append(at)
        if self.tie.startswith("apart"):
            for inside in domains.values():
                model.limit({("worker", at): 1 for at in inside}, upper=1)
            return
        if self.tie.startswith("spread"):
            model.variable("least")
        for domain, inside in domains.items():
            model.variable(("open", domain), 1)
            model.limit({**{("worker", at): 1 for at in inside}, ("open", domain): -self.members}, upper=0)
            if self.tie.startswith("spread"):
                strangers, far = sum(self.strangers[at] for at in inside), self.members + 2 * len(self.leaf)
                count: dict[Hashable, float] = {("worker", at): 1 for at in inside}
                model.limit({**count, "least": -1}, least=-strangers)
                # Only where a member goes: others may have more there as it is.
                model.limit({**count, "least": -1, ("open", domain): far}, upper=self.skew - strangers + far)
            else:
                model.limit({**{("launcher", at): 1 for at in inside}, ("open", domain): -1}, upper=0)
        if not self.tie.startswith("spread"):
            model.limit({("open", domain): 1 for domain in domains}, upper=1)
        if self._launchers:
            for at in range(len(self.leaf)):
                model.limit({("worker", at): 1}, upper=1)


def _spec(gpus: int, affinity: Affinity | None = None, spread: Sequence[TopologySpreadConstraint] = ()) -> PodSpec:
    requests: dict[str, Quantity] = {"cpu": "1m", **({NVIDIA: gpus} if gpus else {})}
    container = Container("main", ResourceRequirements(requests, requests))
    return PodSpec(containers=[container], affinity=affinity, topology_spread_constraints=list(spread))


def gap_tied(instances: int = 240) -> Json:
    """Compare both on so many instances, of gangs as such and of gangs in segments, by what ties them."""
    return {"tied": _gap(instances, segments=False), "tied_in_segments": _gap(instances, segments=True)}


def _gap(instances: int, *, segments: bool) -> Json:
    count: dict[str, Counter[str]] = {tie: Counter() for tie in TIES}
    seconds: list[float] = []
    for seed in range(instances):
        instance = Tied(seed, segments=segments)
        optimum = instance.optimum()
        planned, took = instance.planned()
        seconds.append(took)
        if optimum is None:
            assert planned is None
            result = "impossible"
        elif planned is None:
            result = "missed"
        elif planned == optimum:
            result = "optimal"
        else:
            assert planned > optimum, (seed, planned, optimum)
            result = "level_too_wide" if planned[0] > optimum[0] else "leaves_too_many"
        count[instance.tie][result] += 1
    seconds.sort()
    results = ("impossible", "optimal", "missed", "level_too_wide", "leaves_too_many")
    return {
        "instances": instances,
        **{name: sum(tally[name] for tally in count.values()) for name in results},
        "by_tie": {tie: dict(sorted(tally.items())) for tie, tally in count.items()},
        "p50_ms": round(1e3 * seconds[len(seconds) // 2], 1),
        "max_ms": round(1e3 * seconds[-1], 1),
    }


def gaps() -> Json:
    """All of it, also of what `gap` compares."""
    return {**gap(), **gap_tied()}
