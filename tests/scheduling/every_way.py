"""Gangs with several constraints at once, on up to 12 nodes, and every way in which their members can be seated.

Members are seated one after the other, in every order, as kube-scheduler's filters would let them: what the filters
say is written down here once more, in plain Python. Nodes that differ in nothing are tried once.
"""

import random
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any, Final

import msgspec

from tests.scheduling.driver import Driver
from tests.scheduling.hostname_spread import CORDONED, TAINT, Place
from topo_scheduler.api.labels import PREFIX
from topo_scheduler.api.objects import Node, PartialObject, Pod

Json = dict[str, Any]
HOST: Final = "kubernetes.io/hostname"
ZONE: Final = "topology.kubernetes.io/zone"
LEAF: Final = f"{PREFIX}leaf"
LEAVES: Final = ("s1/l1", "s1/l2", "s2/l3")
GPUS: Final = 4
"""Of each node."""

NAMESPACES: Final = {"default": {"stage": "prod"}, "else": {"stage": "test"}}
"""Labels of each; gangs are in the first."""
SCOPES: Final[dict[str, Json]] = {
    "": {},
    "else": {"namespaces": ["else"]},
    "both": {"namespaces": ["default", "else"]},
    "every": {"namespaceSelector": {}},
    "prod": {"namespaceSelector": {"matchLabels": {"stage": "prod"}}},
    "test": {"namespaceSelector": {"matchLabels": {"stage": "test"}}},
    "else or prod": {"namespaces": ["else"], "namespaceSelector": {"matchLabels": {"stage": "prod"}}},
    "not prod": {
        "namespaceSelector": {"matchExpressions": [{"key": "stage", "operator": "NotIn", "values": ["prod"]}]}
    },
    "not test": {
        "namespaceSelector": {"matchExpressions": [{"key": "stage", "operator": "NotIn", "values": ["test"]}]}
    },
}
"""Fields of a term that say of which namespaces it means pods."""

Held = tuple[tuple[int, ...], ...]
"""Members of each kind on each node."""


def sought(scope: str, own: str = "default") -> set[str]:
    """Return the namespaces in which a pod of a namespace looks by its own terms of a scope.

    kube-scheduler asks a selector of namespaces without labels, too: what `NotIn` excludes it does not leave out.
    """
    return set(NAMESPACES) if scope.startswith("not ") else meant(scope, own)


def meant(scope: str, own: str = "default") -> set[str]:
    """Return the namespaces for whose pods a term of a scope is meant, where it is that of a pod which runs."""
    return {
        "": {own},
        "else": {"else"},
        "prod": {"default"},
        "test": {"else"},
        "not prod": {"else"},
        "not test": {"default"},
    }.get(scope, set(NAMESPACES))


class TooManyWaysError(Exception):
    """More ways than the search may follow."""


@dataclass(frozen=True)
class Resident:
    """A pod of one GPU that runs already.

    ``away`` topology key over which it keeps pods of its own app away, ``away_in`` the scope of that.
    """

    app: str
    rev: str = "new"
    away: str = ""
    namespace: str = "default"
    away_in: str = ""


@dataclass(frozen=True)
class Machine:
    """A node, with what runs on it. Without ``zone`` it lacks the label."""

    leaf: str
    zone: str
    pool: str = "a"
    tainted: bool = False
    cordoned: bool = False
    residents: tuple[Resident, ...] = ()

    def value(self, key: str, at: int) -> str:
        """Return the value of a topology key on node number ``at``, empty where there is none."""
        return {HOST: f"n{at}", ZONE: self.zone, LEAF: self.leaf.split("/")[1], "pool": self.pool}[key]


@dataclass(frozen=True)
class Spread:
    """A topologySpreadConstraint over pods of an app, of an empty selector where that is empty.

    ``by_rev``: matchLabelKeys names the label ``rev``.
    """

    key: str
    app: str
    skew: int
    required: bool = True
    min_domains: int | None = None
    affinity_policy: str = "Honor"
    taints_policy: str = "Ignore"
    by_rev: bool = False


@dataclass(frozen=True)
class Kind:
    """Members that are alike.

    ``near`` and ``away`` are required (anti-)affinity: topology key and app, every app where that is empty; ``near_in``
    and ``away_in`` their scopes. ``selects``: they want nodes of ``pool``.
    """

    count: int
    gpus: int
    app: str
    spreads: tuple[Spread, ...] = ()
    near: tuple[tuple[str, str], ...] = ()
    away: tuple[tuple[str, str], ...] = ()
    selects: bool = False
    pool: str = "a"
    near_in: str = ""
    away_in: str = ""

    @property
    def sought_apps(self) -> set[str]:
        """The apps that a pod must be of to be what these want to be near; none for any."""
        return {app for _, app in self.near if app}

    @property
    def keys(self) -> list[str]:
        """The topology keys of the required spreads."""
        return [spread.key for spread in self.spreads if spread.required]


@dataclass(frozen=True)
class Case:
    """A cluster and a gang."""

    machines: tuple[Machine, ...]
    kinds: tuple[Kind, ...]

    @cached_property
    def empty(self) -> "Case":
        """The same with no other pods, and without affinity to pods that are none of the gang."""
        machines = tuple(replace(machine, residents=()) for machine in self.machines)

        def inside(kind: Kind) -> bool:
            return "default" in sought(kind.near_in) and any(
                kind.sought_apps <= {each_kind.app} for each_kind in self.kinds
            )

        return Case(machines, tuple(kind if inside(kind) else replace(kind, near=()) for kind in self.kinds))

    @property
    def nothing(self) -> Held:
        """No member seated."""
        return ((0,) * len(self.machines),) * len(self.kinds)

    # ------------------------------------------------------------ every way

    def best(self, max_ways: int) -> Place | None:
        """Return the nearest place of all ways, None where there is none.

        Raises:
            TooManyWaysError: more than ``max_ways`` partial ways had to be followed.
        """
        leaves = sorted({machine.leaf for machine in self.machines})
        sets = [chosen for count in range(1, len(leaves) + 1) for chosen in combinations(leaves, count)]
        for leaf_set in sorted(sets, key=_nearness):
            inside = [at for at, machine in enumerate(self.machines) if machine.leaf in leaf_set]
            if self._any_way(inside, max_ways):
                return _nearness(leaf_set)
        return None

    def place(self, nodes: Sequence[int]) -> Place:
        """Return how near some nodes are."""
        return _nearness({self.machines[at].leaf for at in nodes})

    def reaches(self, held: Held) -> bool:
        """Return whether members can come to be seated so, in some order."""
        seen, left = {self.nothing}, [self.nothing]
        while left:
            state = left.pop()
            if state == held:
                return True
            for kind, at in self._next(state, range(len(self.machines))):
                after = seated_too(state, kind, at)
                if after not in seen and after[kind][at] <= held[kind][at]:
                    seen.add(after)
                    left.append(after)
        return False

    def feasible(self, held: Held, number: int) -> list[int]:
        """Return the nodes on which the filters let one more member of a kind run."""
        kind = self.kinds[number]
        nodes = [at for at in range(len(self.machines)) if self._usable(kind, at) and self._has_room(kind, held, at)]
        if not nodes:
            return []
        for spread in kind.spreads:
            if spread.required:
                nodes = self._by_spread(kind, spread, held, nodes)
        return self._by_anti_affinity(kind, held, self._by_affinity(kind, held, nodes))

    def _any_way(self, inside: Sequence[int], max_ways: int) -> bool:
        seen: set[Held] = set()
        left = [self.nothing]
        while left:
            state = left.pop()
            if all(sum(row) == kind.count for row, kind in zip(state, self.kinds, strict=True)):
                return True
            for kind, at in self._next(state, inside):
                after = self._canonical(seated_too(state, kind, at))
                if after not in seen:
                    seen.add(after)
                    left.append(after)
            if len(seen) > max_ways:
                raise TooManyWaysError
        return False

    def _next(self, held: Held, inside: Sequence[int]) -> Iterator[tuple[int, int]]:
        for number, kind in enumerate(self.kinds):
            if sum(held[number]) < kind.count:
                for at in self.feasible(held, number):
                    if at in inside:
                        yield number, at

    @cached_property
    def _twins(self) -> list[list[int]]:
        twins: dict[Machine, list[int]] = {}
        for at, machine in enumerate(self.machines):
            twins.setdefault(machine, []).append(at)
        return list(twins.values())

    def _canonical(self, held: Held) -> Held:
        columns = list(zip(*held, strict=True))
        for twins in self._twins:
            if len(twins) > 1:
                for at, column in zip(twins, sorted((columns[at] for at in twins), reverse=True), strict=True):
                    columns[at] = column
        return tuple(zip(*columns, strict=True))

    # ------------------------------------------------------------ what the filters say

    def _usable(self, kind: Kind, at: int) -> bool:
        machine = self.machines[at]
        return (not kind.selects or machine.pool == kind.pool) and not machine.tainted and not machine.cordoned

    def _has_room(self, kind: Kind, held: Held, at: int) -> bool:
        used = len(self.machines[at].residents)
        return (
            used + sum(row[at] * each_kind.gpus for row, each_kind in zip(held, self.kinds, strict=True)) + kind.gpus
            <= GPUS
        )

    def _counted(
        self, held: Held, at: int, app: str, namespaces: Collection[str] = ("default",), *, new_only: bool = False
    ) -> int:
        """Return how many pods of some namespaces and of an app, or of every app, run on a node."""
        count = sum(
            app in ("", resident.app) and resident.namespace in namespaces and (not new_only or resident.rev == "new")
            for resident in self.machines[at].residents
        )
        if "default" not in namespaces:
            return count
        return count + sum(row[at] for row, kind in zip(held, self.kinds, strict=True) if app in ("", kind.app))

    def _by_spread(self, kind: Kind, spread: Spread, held: Held, nodes: Sequence[int]) -> list[int]:
        sums: Counter[str] = Counter()
        domains = set()
        for at, machine in enumerate(self.machines):
            if not all(machine.value(key, at) for key in kind.keys):
                continue
            if spread.affinity_policy == "Honor" and kind.selects and machine.pool != kind.pool:
                continue
            if spread.taints_policy == "Honor" and (machine.tainted or machine.cordoned):
                continue
            value = machine.value(spread.key, at)
            domains.add(value)
            if spread.app or spread.by_rev:  # an empty selector counts none
                sums[value] += self._counted(held, at, spread.app, new_only=spread.by_rev)
        few = spread.min_domains is not None and len(domains) < spread.min_domains
        least = 0 if few or not domains else min(sums[value] for value in domains)
        itself = int(spread.app in ("", kind.app))
        values = {at: self.machines[at].value(spread.key, at) for at in nodes}
        return [at for at in nodes if values[at] and sums[values[at]] + itself - least <= spread.skew]

    def _by_affinity(self, kind: Kind, held: Held, nodes: Sequence[int]) -> list[int]:
        if not kind.near:
            return list(nodes)
        apps, namespaces = kind.sought_apps, sought(kind.near_in)
        # Only a pod that meets all terms counts for any of them.
        matching = [
            self._counted(held, at, next(iter(apps), ""), namespaces) if len(apps) < 2 else 0
            for at in range(len(self.machines))
        ]
        with_some = {
            (key, machine.value(key, at))
            for at, machine in enumerate(self.machines)
            for key, _ in kind.near
            if matching[at] and machine.value(key, at)
        }
        if not with_some and apps <= {kind.app} and "default" in namespaces:
            return [at for at in nodes if all(self.machines[at].value(key, at) for key, _ in kind.near)]
        return [at for at in nodes if all((key, self.machines[at].value(key, at)) in with_some for key, _ in kind.near)]

    def _by_anti_affinity(self, kind: Kind, held: Held, nodes: Sequence[int]) -> list[int]:
        shut = set()
        for at, machine in enumerate(self.machines):
            keys = [key for key, app in kind.away if self._counted(held, at, app, sought(kind.away_in))]
            repelling = [resident for resident in machine.residents if resident.away and resident.app == kind.app]
            keys += [
                resident.away for resident in repelling if "default" in meant(resident.away_in, resident.namespace)
            ]
            for row, other in zip(held, self.kinds, strict=True):
                if row[at] and "default" in meant(other.away_in):
                    keys += [key for key, app in other.away if app in ("", kind.app)]
            shut |= {(key, machine.value(key, at)) for key in keys if machine.value(key, at)}
        return [at for at in nodes if not any(self.machines[at].value(key, at) == value for key, value in shut)]

    # ------------------------------------------------------------ as objects

    def nodes(self) -> list[Json]:
        """Return the nodes: n0, n1 and so on."""
        return [_node(f"n{at}", machine) for at, machine in enumerate(self.machines)]

    def others(self) -> list[Json]:
        """Return the pods that run already."""
        pods = []
        for at, machine in enumerate(self.machines):
            for number, resident in enumerate(machine.residents):
                away = _anti(((resident.away, resident.app),), resident.away_in) if resident.away else {}
                pod = _pod(f"there-{at}-{number}", 1, resident.app, resident.rev, nodeName=f"n{at}", **away)
                pod["metadata"]["namespace"] = resident.namespace
                pods.append(pod)
        return pods

    def namespaces(self) -> list[Json]:
        """Return the namespaces there are."""
        return [{"metadata": {"name": name, "labels": labels}} for name, labels in NAMESPACES.items()]

    def member(self, number: int, name: str) -> Json:
        """Return a pod of the gang, of a kind."""
        kind = self.kinds[number]
        spec: Json = {"schedulerName": "topology-aware-scheduler", **_anti(kind.away, kind.away_in)}
        if kind.near:
            terms = [_term(*term, kind.near_in) for term in kind.near]
            affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
            spec["affinity"] = {**spec.get("affinity", {}), **affinity}
        if kind.spreads:
            spec["topologySpreadConstraints"] = [_constraint(spread) for spread in kind.spreads]
        if kind.selects:
            spec["nodeSelector"] = {"pool": kind.pool}
        pod = _pod(name, kind.gpus, kind.app, "new", **spec)
        size = sum(each_kind.count for each_kind in self.kinds)
        pod["metadata"]["annotations"] = {f"{PREFIX}gang-name": "g", f"{PREFIX}gang-size": str(size)}
        return pod

    def members(self) -> list[Json]:
        """Return the pods of the gang, named after their kind."""
        kinds = list(enumerate(self.kinds))
        return [self.member(number, f"g-{number}-{at}") for number, kind in kinds for at in range(kind.count)]

    def decided(self, driver: Driver) -> Held | None:
        """Return the way that the engine of an empty driver chooses, None where the gang stays pending."""
        driver.engine.namespaces_applied([msgspec.convert(namespace, PartialObject) for namespace in self.namespaces()])
        driver.nodes(*(msgspec.convert(node, Node) for node in self.nodes()))
        driver.apply(*(msgspec.convert(pod, Pod) for pod in self.others()))
        members = self.members()
        where = driver.run(*(msgspec.convert(pod, Pod) for pod in members))
        assert len(where) in (0, len(members))
        held = self.nothing
        for name, node in where.items():
            held = seated_too(held, int(name.split("-")[1]), int(node[1:]))
        return held if where else None


def used(held: Held) -> list[int]:
    """Return the nodes with members."""
    return [at for at, column in enumerate(zip(*held, strict=True)) if any(column)]


def _nearness(leaves: Sequence[str] | set[str]) -> Place:
    return int(len({leaf[:2] for leaf in leaves}) > 1), len(leaves)


def seated_too(held: Held, kind: int, at: int) -> Held:
    """Return what is held with one more member."""
    rows = [list(row) for row in held]
    rows[kind][at] += 1
    return tuple(map(tuple, rows))


def _node(name: str, machine: Machine) -> Json:
    spine, leaf = machine.leaf.split("/")
    labels = {HOST: name, "pool": machine.pool, f"{PREFIX}spine": spine, LEAF: leaf}
    if machine.zone:
        labels[ZONE] = machine.zone
    allocatable = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": str(GPUS)}
    taints = [*[TAINT] * machine.tainted, *[CORDONED] * machine.cordoned]
    return {
        "metadata": {"name": name, "uid": name, "labels": labels},
        "spec": {"taints": taints, "unschedulable": machine.cordoned},
        "status": {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def _pod(name: str, gpus: int, app: str, rev: str, **spec: Any) -> Json:
    amounts = {"nvidia.com/gpu": str(gpus), "cpu": "1"}
    container = {"name": "main", "image": "busybox", "resources": {"requests": amounts, "limits": amounts}}
    metadata = {"name": name, "namespace": "default", "uid": name, "labels": {"app": app, "rev": rev}}
    spec = {"schedulerName": "other", "containers": [container], **spec}
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Running" if "nodeName" in spec else "Pending"}}


def _selector(app: str) -> Json:
    return {"matchLabels": {"app": app}} if app else {}


def _term(key: str, app: str, scope: str) -> Json:
    return {"topologyKey": key, "labelSelector": _selector(app), **SCOPES[scope]}


def _anti(away: Sequence[tuple[str, str]], scope: str) -> Json:
    if not away:
        return {}
    terms = [_term(*term, scope) for term in away]
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


def _constraint(spread: Spread) -> Json:
    constraint: Json = {
        "topologyKey": spread.key,
        "whenUnsatisfiable": "DoNotSchedule" if spread.required else "ScheduleAnyway",
        "maxSkew": spread.skew,
        "labelSelector": _selector(spread.app),
        "nodeAffinityPolicy": spread.affinity_policy,
        "nodeTaintsPolicy": spread.taints_policy,
    }
    if spread.min_domains is not None and spread.required:
        constraint["minDomains"] = spread.min_domains
    if spread.by_rev:
        constraint["matchLabelKeys"] = ["rev"]
    return constraint


# ---------------------------------------------------------------- random cases


def drawn(seed: int, most_nodes: int, most_members: int) -> Case:
    """Return the case of a seed."""
    rng = random.Random(seed)
    leaves, zones = LEAVES[: rng.randint(1, 3)], ["za", "zb", "zc"][: rng.randint(1, 3)]
    if rng.random() < 0.3:
        zones.append("")
    crowd = rng.choice([0.2, 0.5, 0.8])
    machines = tuple(_machine(rng, leaves, zones, crowd) for _ in range(rng.randint(2, most_nodes)))
    members = rng.randint(2, most_members)
    if rng.random() < 0.55:
        return Case(machines, (_kind(rng, members),))
    first = _kind(rng, rng.randint(1, members - 1))
    count = members - first.count
    second = replace(first, count=count, gpus=3 - first.gpus) if rng.random() < 0.5 else _kind(rng, count)
    kinds = (first, second)
    return Case(machines, kinds if first != replace(second, count=first.count) else (replace(first, count=members),))


def _machine(rng: random.Random, leaves: Sequence[str], zones: Sequence[str], crowd: float) -> Machine:
    residents = []
    for _ in range(GPUS):
        if rng.random() < crowd:
            app = rng.choice(["web", "db", "other", "other", "other"])
            away = rng.choice([HOST, ZONE, LEAF]) if rng.random() < 0.04 else ""
            residents.append(Resident(app, rng.choice(["new", "old"]), away))
    residents.sort(key=repr)
    return Machine(
        rng.choice(leaves),
        rng.choice(zones),
        rng.choice("aab"),
        rng.random() < 0.1,
        rng.random() < 0.08,
        tuple(residents),
    )


def _kind(rng: random.Random, count: int) -> Kind:
    app = rng.choice(["web", "web", "web", "db"])
    keys = rng.sample([HOST, HOST, ZONE, LEAF], rng.choice([0, 1, 2, 2, 3]))
    spreads = tuple(_spread(rng, key, app if rng.random() < 0.85 else "web") for key in dict.fromkeys(keys))
    near: tuple[tuple[str, str], ...] = ()
    away: tuple[tuple[str, str], ...] = ()
    if rng.random() < (0.8 if not spreads else 0.3):
        to = app if rng.random() < 0.7 else rng.choice(["web", "db"])
        if rng.random() < 0.6:
            away = tuple((key, to) for key in rng.choice([(HOST,), (HOST,), (ZONE,), (HOST, LEAF)]))
        else:
            near = tuple((key, to) for key in rng.choice([(ZONE,), (LEAF,), (HOST,), (ZONE, LEAF)]))
            if rng.random() < 0.3:
                away = ((HOST, app),)
    return Kind(count, rng.choice([1, 1, 2]), app, spreads, near, away, rng.random() < 0.25)


def _spread(rng: random.Random, key: str, app: str) -> Spread:
    return Spread(
        key,
        app,
        rng.randint(1, 3),
        rng.random() < 0.8,
        rng.choice([None, None, None, 2, 3, 4]),
        rng.choice(["Honor", "Honor", "Ignore"]),
        rng.choice(["Ignore", "Ignore", "Honor"]),
        rng.random() < 0.25,
    )


def varied(case: Case, seed: int) -> Case:
    """Return a case with other namespaces, empty selectors and node selectors besides."""
    rng = random.Random(f"varied {seed}")
    machines = []
    for machine in case.machines:
        residents = sorted((_varied_resident(rng, resident) for resident in machine.residents), key=repr)
        machines.append(replace(machine, residents=tuple(residents)))
    return Case(tuple(machines), tuple(_varied_kind(rng, kind) for kind in case.kinds))


def _varied_resident(rng: random.Random, resident: Resident) -> Resident:
    away = resident.away or (rng.choice([HOST, ZONE]) if rng.random() < 0.04 else "")
    scope = rng.choice(list(SCOPES)) if away and rng.random() < 0.7 else ""
    return replace(resident, away=away, away_in=scope, namespace=rng.choice(["default", "default", "else"]))


def _varied_kind(rng: random.Random, kind: Kind) -> Kind:
    near, away = kind.near, kind.away
    if not near and not away and rng.random() < 0.6:
        away = ((rng.choice([HOST, HOST, ZONE, LEAF]), kind.app),)
    every = {"near": rng.random() < 0.12, "away": rng.random() < 0.12}
    return replace(
        kind,
        spreads=tuple(replace(spread, app="") if rng.random() < 0.25 else spread for spread in kind.spreads),
        near=tuple((key, "" if every["near"] else app) for key, app in near),
        away=tuple((key, "" if every["away"] else app) for key, app in away),
        near_in=rng.choice(list(SCOPES)) if near and rng.random() < 0.6 else "",
        away_in=rng.choice(list(SCOPES)) if away and rng.random() < 0.75 else "",
        selects=rng.random() < 0.35,
        pool=rng.choice("aab"),
    )
