"""Gangs whose members look at each other, on up to 12 nodes: against every way to share them between racks and leaves.

Which member of a class runs on which node of a leaf and rack makes no difference to the others. So ways are counted in
members of each leaf and rack: that is every placement there is, with as many members as the nodes hold.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, product

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from tests.helpers import make_node
from tests.kernels.arrays import grid, ints
from tests.scheduling.affinity_pods import (
    HOSTNAME,
    LAUNCHER_PODS,
    one_gpu_spec,
    pod_affinity,
    pod_anti_affinity,
    spread_constraint,
    web_gang,
    web_pod,
)
from tests.scheduling.driver import Driver, configured
from tests.scheduling.gang_pods import nodes_by_rank
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.scoring import ScoringWeights
from topo_scheduler.scheduling.placing.constrained.zone_counts import ZoneShare, flow_of

PREFERRED = configured("{topologyConstraints: {enforcement: preferred}}")
LEAVES = ("s1/l1", "s1/l2", "s2/l3")
RACKS = ("a", "b", "c", "d", "")
"""The last stands for nodes that do not tell theirs."""
TIES = ("apart", "apart and by node", "together", "together and by node", "spread", "launcher")


@dataclass(frozen=True)
class Machine:
    """A node of so many GPUs, of which some are free, and pods of others on it that count as members do."""

    leaf: str
    rack: str
    free: int
    strangers: int


Place = tuple[int, int, int, int, tuple[int, ...]]
"""How far out, how many leaves, how wide, minus the score, which leaves."""


@dataclass(frozen=True)
class Case:
    """A gang of so many segments of a size, and how its members are tied."""

    machines: tuple[Machine, ...]
    segments: int
    size: int
    tie: str
    skew: int

    @property
    def members(self) -> int:
        return self.segments * self.size

    # ------------------------------------------------------------ every way

    def best(self, rule: tuple[int, int] = (0, 1)) -> Place | None:
        """The lowest level, fewest leaves, least width, highest score and first leaves of all ways to place the gang.

        ``rule`` how far out and in how many leaves it would be on an empty cluster.
        """
        leaves = sorted({machine.leaf for machine in self.machines})
        sets = [used for count in range(1, len(leaves) + 1) for used in combinations(range(len(leaves)), count)]
        places = (
            self._place(leaves, used, rule)
            for used in sets
            if any(self._holds([leaves[at] for at in used], dealt) for dealt in _parts(self.segments, len(used)))
        )
        return min(places, default=None)

    def _place(self, leaves: Sequence[str], used: tuple[int, ...], rule: tuple[int, int]) -> Place:
        outward = int(len({leaves[at][:2] for at in used}) > 1)
        score = self._score([leaves[at] for at in used], max(outward, rule[0]), rule)
        return outward, len(used), used[-1] - used[0], -score, used

    def _score(self, leaves: Sequence[str], outward: int, rule: tuple[int, int]) -> int:
        """The score as docs/explanation/scoring.md has it."""
        asked = self.members - (self.tie == "launcher")

        def sums(machines: Iterable[Machine]) -> tuple[int, int]:
            taken = [5 - machine.free for machine in machines]
            return 5 * len(taken), sum(taken)

        all_has, all_used = sums(self.machines)
        whole, whole_used = sums(m for m in self.machines if outward or m.leaf[:2] == leaves[0][:2])
        has, used = sums(m for m in self.machines if m.leaf in leaves)
        available = max(0, 1000 * (whole - whole_used - asked) // whole)
        balanced = 1000 - abs(1000 * (used + asked) // has - 1000 * all_used // all_has)
        parts = (available, (1000 * rule[1] // len(leaves)) >> (outward - rule[0]), max(0, balanced), 1000)
        weights = ScoringWeights().milli()
        return sum(weight * part for weight, part in zip(weights, parts, strict=True)) // sum(weights)

    def _holds(self, leaves: Sequence[str], dealt: Sequence[int]) -> bool:
        """Whether these leaves hold so many segments each, at least one."""
        if not all(dealt):
            return False
        room = {(leaf, rack): self._room(leaf, rack) for leaf in leaves for rack in RACKS}
        for launcher in leaves if self.tie == "launcher" else [""]:
            workers = [count * self.size - (leaf == launcher) for leaf, count in zip(leaves, dealt, strict=True)]
            for ways in product(
                *(
                    _fill(count, [room[leaf, rack] for rack in RACKS])
                    for leaf, count in zip(leaves, workers, strict=True)
                )
            ):
                by_rack = [sum(counts) for counts in zip(*ways, strict=True)]
                if self._tied(by_rack, launcher):
                    return True
        return False

    def _room(self, leaf: str, rack: str) -> int:
        here = [machine for machine in self.machines if (machine.leaf, machine.rack) == (leaf, rack)]
        if not rack and not self.tie.startswith("apart"):
            return 0
        alone = self.tie.endswith("by node") or self.tie == "launcher"
        return sum(min(machine.free, 1) if alone else machine.free for machine in here)

    def _tied(self, by_rack: Sequence[int], launcher: str) -> bool:
        strangers = [sum(m.strangers for m in self.machines if m.rack == rack) for rack in RACKS]
        labelled = [bool(rack) and any(m.rack == rack for m in self.machines) for rack in RACKS]
        used = [at for at, count in enumerate(by_rack) if count]
        if self.tie.startswith("apart"):
            return max(by_rack[:-1]) <= 1
        if self.tie.startswith("together"):
            return len(used) == 1
        if self.tie == "launcher":
            mine = {m.rack for m in self.machines if m.leaf == launcher}
            return len(used) <= 1 and all(RACKS[at] in mine for at in used)
        now, left = list(strangers), list(by_rack)
        while any(left):
            at = min((at for at, count in enumerate(left) if count), key=lambda at: now[at])
            if (
                now[at] + 1 - min(count for count, is_labelled in zip(now, labelled, strict=True) if is_labelled)
                > self.skew
            ):
                return False
            now[at] += 1
            left[at] -= 1
        return True

    # ------------------------------------------------------------ as it is placed

    def pods(self) -> list[Pod]:
        affinity = None
        if self.tie.startswith("apart"):
            affinity = pod_anti_affinity("rack")
        elif self.tie.startswith("together"):
            affinity = pod_affinity("rack")
        elif self.tie == "launcher":
            affinity = pod_affinity("rack", LAUNCHER_PODS)
        if affinity is not None and (self.tie.endswith("by node") or self.tie == "launcher"):
            by_node = pod_anti_affinity(HOSTNAME).pod_anti_affinity
            assert by_node is not None
            if affinity.pod_anti_affinity is None:
                affinity.pod_anti_affinity = by_node
            else:
                affinity.pod_anti_affinity.required.extend(by_node.required)
        constraints = [spread_constraint("rack", self.skew)] if self.tie == "spread" else []
        pods = web_gang(self.members, one_gpu_spec(affinity=affinity, topology_spread_constraints=constraints))
        if self.tie == "launcher":
            pods[0] = web_pod("g-0", one_gpu_spec(), annotations={"gang-name": "g", "gang-size": str(self.members)})
            pods[0].metadata.labels = {"role": "launcher"}
            pods[0].spec.containers[0].resources.requests = {"cpu": "1"}
            pods[0].spec.containers[0].resources.limits = {}
        for pod in pods:
            if self.size > 1:
                pod.metadata.annotations["topology.scheduler/segment-size"] = str(self.size)
        return pods

    def cluster(self) -> Driver:
        d = Driver(
            [
                make_node(f"n{at}", m.leaf, gpus=5, labels={HOSTNAME: f"n{at}", **({"rack": m.rack} if m.rack else {})})
                for at, m in enumerate(self.machines)
            ],
            PREFERRED,
        )
        for at, machine in enumerate(self.machines):
            taken = 5 - machine.free
            for number in range(taken):
                pod = web_pod(f"there-{at}-{number}", node=f"n{at}")
                if number >= machine.strangers:
                    pod.metadata.labels.clear()
                d.apply(pod)
        return d

    def placed(self, nodes: Sequence[str], rule: tuple[int, int]) -> Place:
        """The same as `best` of what was chosen, which must hold."""
        chosen = [int(node[1:]) for node in nodes]
        workers = chosen[1:] if self.tie == "launcher" else chosen
        assert all(count <= self.machines[at].free for at, count in Counter(workers).items())
        for number in range(self.segments):
            assert len({self.machines[at].leaf for at in chosen[number * self.size : (number + 1) * self.size]}) == 1
        if self.tie.endswith("by node") or self.tie == "launcher":
            assert len(set(workers)) == len(workers)
        racks = Counter(self.machines[at].rack for at in workers)
        by_rack = [racks[rack] for rack in RACKS]
        if self.tie == "launcher":
            assert {self.machines[at].rack for at in chosen} == {self.machines[chosen[0]].rack}
        else:
            assert self._tied(by_rack, "")
        leaves = sorted({machine.leaf for machine in self.machines})
        used = sorted({leaves.index(self.machines[at].leaf) for at in chosen})
        return self._place(leaves, tuple(used), rule)


@cache
def _parts(total: int, places: int) -> list[tuple[int, ...]]:
    """Every way to write a number as a sum of so many."""
    return [parts for parts in product(range(total + 1), repeat=places) if sum(parts) == total]


def _fill(count: int, room: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every way to put so many into racks with so much room."""
    return (
        counts for counts in product(*(range(min(count, capacity) + 1) for capacity in room)) if sum(counts) == count
    )


@st.composite
def cases(draw: st.DrawFn, *, segments: bool) -> Case:
    tie = draw(st.sampled_from(TIES))
    counted = tie == "spread"
    machines = []
    for _ in range(draw(st.integers(2, 12))):
        free = draw(st.integers(0, 5))
        strangers = draw(st.sampled_from([0, 0, 0, 1])) if counted and free < 5 else 0
        rack = draw(st.sampled_from(RACKS * 2)) if draw(st.booleans()) else draw(st.sampled_from("ab"))
        machines.append(Machine(draw(st.sampled_from(LEAVES)), rack, free, strangers))
    if segments:
        size = draw(st.integers(2, 4))
        max_members = draw(st.sampled_from([4, 12]))
        return Case(tuple(machines), draw(st.integers(1, max_members // size)), size, tie, draw(st.integers(1, 2)))
    return Case(tuple(machines), draw(st.integers(2, draw(st.sampled_from([4, 12])))), 1, tie, draw(st.integers(1, 2)))


def compare(case: Case) -> None:
    d, pods = case.cluster(), case.pods()
    d.run(*pods)
    nodes = [pod.spec.node_name for pod in pods if pod.spec.node_name]
    empty = tuple(replace(machine, free=5, strangers=0) for machine in case.machines)
    rule = replace(case, machines=empty).best()
    best = case.best(rule[:2]) if rule is not None else None
    if best is None or rule is None:
        assert not nodes  # what not even the empty cluster could hold is refused, though others might make it possible
        event("no place")
        return
    assert len(nodes) == len(pods), f"{best} would do"
    assert case.placed(nodes_by_rank(pods) if case.size > 1 else nodes, rule[:2]) == best
    event(f"{case.tie}, {best[1]} leaves")


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases(segments=False))
def test_on_few_nodes_tied_gangs_of_up_to_twelve_are_placed_as_well_as_can_be(case: Case) -> None:
    compare(case)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases(segments=True))
def test_so_are_their_segments(case: Case) -> None:
    compare(case)


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 3), st.integers(1, 3), st.data())
def test_a_flow_is_found_wherever_there_is_one(leaves: int, zones: int, data: st.DataObject) -> None:
    number = st.integers(0, 3)
    room = [data.draw(st.lists(number, min_size=zones, max_size=zones)) for _ in range(leaves)]
    demand = data.draw(st.lists(number, min_size=leaves, max_size=leaves))
    least = data.draw(st.lists(st.integers(0, 2), min_size=zones, max_size=zones))
    upper = [low + data.draw(number) for low in least]
    flow = flow_of(grid(room, zones), ints(demand), ZoneShare(ints(least), ints(upper)))
    ways = [
        way
        for way in product(*(_fill(count, here) for count, here in zip(demand, room, strict=True)))
        if all(
            low <= sum(column) <= high for low, column, high in zip(least, zip(*way, strict=True), upper, strict=True)
        )
    ]
    assert (flow is not None) == bool(ways)
    if flow is not None:
        assert tuple(tuple(row) for row in flow.tolist()) in ways
