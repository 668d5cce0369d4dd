"""Says of each gang how much of it is bound, from the API's objects alone: pods and Jobs, nothing of the scheduler."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.e2e.api import Api, Json
from tests.e2e.objects import PREFIX


@dataclass(frozen=True, slots=True)
class Standing:
    """A gang: how many members it is to have, how many pods are there, and the uids of those that have a node."""

    name: str
    size: int
    pods: int
    uids: frozenset[str]

    @property
    def bound(self) -> int:
        """How many members have a node."""
        return len(self.uids)

    @property
    def half(self) -> bool:
        """Whether some are bound and some are not."""
        return 0 < self.bound < self.size


@dataclass(slots=True)
class Spell:
    """A time for which a gang was partially bound."""

    seconds: float = 0.0
    gang: str = ""


@dataclass(slots=True)
class Spells:
    """For how long gangs were partially bound."""

    unbroken: Spell = field(default_factory=Spell)
    """The longest one from the first look at which a gang was partially bound."""
    idle: Spell = field(default_factory=Spell)
    """The longest one from the look that found the last newly bound member: so long a rollback took."""
    _half: dict[str, tuple[float, float, frozenset[str]]] = field(default_factory=dict)
    """By gang: since when it is partially bound, when a member was bound last, and the members bound at some look."""

    def look(self, now: float, standing: Sequence[Standing]) -> None:
        """Take in how gangs stand at a moment, in seconds of any clock that does not go back."""
        half: dict[str, tuple[float, float, frozenset[str]]] = {}
        for gang in standing:
            if gang.half:
                since, progressed, seen = self._half.get(gang.name, (now, now, gang.uids))
                progressed = progressed if gang.uids <= seen else now
                half[gang.name] = (since, progressed, seen | gang.uids)
                self.unbroken = _longer(self.unbroken, Spell(now - since, gang.name))
                self.idle = _longer(self.idle, Spell(now - progressed, gang.name))
        self._half = half


def _longer(current: Spell, other: Spell) -> Spell:
    return max(current, other, key=lambda spell: spell.seconds)


async def standings(api: Api, namespace: str = "default") -> list[Standing]:
    """Return all gangs: Jobs, and bare pods by ``gang-name``. Finished members count as bound, deleted ones do not."""
    sizes: dict[str, int] = {}
    for job in await api.list("jobs", namespace):
        sizes[job["metadata"]["name"]] = int(job["spec"]["parallelism"])
    pod_counts: dict[str, int] = defaultdict(int)
    bound: dict[str, set[str]] = defaultdict(set)
    for pod in await api.list("pods", namespace):
        name, size = _gang_of(pod)
        if not name:
            continue
        sizes.setdefault(name, size)
        if not pod["metadata"].get("deletionTimestamp"):
            pod_counts[name] += 1
            if pod["spec"].get("nodeName"):
                bound[name].add(pod["metadata"]["uid"])
    return [
        Standing(name, size, pod_counts[name], frozenset(bound[name]))
        for name, size in sorted(sizes.items())
        if size > 1
    ]


def _gang_of(pod: Json) -> tuple[str, int]:
    owners = pod["metadata"].get("ownerReferences") or []
    if owners:
        return str(owners[0]["name"]), 0
    said = pod["metadata"].get("annotations") or {}
    return str(said.get(PREFIX + "gang-name", "")), int(said.get(PREFIX + "gang-size", 0))


async def overbooked(api: Api, gpu: str) -> list[str]:
    """Return the nodes with more GPUs bound than they have."""
    used: dict[str, int] = defaultdict(int)
    for pod in await api.list("pods", None):
        if pod["status"].get("phase") in ("Succeeded", "Failed"):
            continue
        for container in pod["spec"]["containers"]:
            used[pod["spec"].get("nodeName", "")] += int((container["resources"].get("limits") or {}).get(gpu, 0))
    problems = []
    for node in await api.list("nodes", None):
        name, has = node["metadata"]["name"], int(node["status"]["allocatable"].get(gpu, 0))
        if used[name] > has:
            problems.append(f"{name}: {used[name]} of {has}")
    return problems
