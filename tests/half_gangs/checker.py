"""Says of each gang how much of it is bound, from the API's objects alone: pods and Jobs, nothing of the scheduler."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.e2e.api import Api, Json
from tests.e2e.objects import PREFIX


@dataclass(frozen=True, slots=True)
class Standing:
    """A gang: how many members it is to have, how many pods are there, and how many of them have a node."""

    name: str
    size: int
    pods: int
    bound: int

    @property
    def half(self) -> bool:
        """Whether some are bound and some are not."""
        return 0 < self.bound < self.size


@dataclass(slots=True)
class Spells:
    """For how long gangs were half bound without a break."""

    longest_seconds: float = 0.0
    longest_gang: str = ""
    _since: dict[str, float] = field(default_factory=dict)

    def look(self, now: float, standing: Sequence[Standing]) -> None:
        """Take in how gangs stand at a moment, in seconds of any clock that does not go back."""
        half = {one.name for one in standing if one.half}
        self._since = {name: self._since.get(name, now) for name in half}
        for name, since in self._since.items():
            if now - since > self.longest_seconds:
                self.longest_seconds, self.longest_gang = now - since, name


async def standings(api: Api, namespace: str = "default") -> list[Standing]:
    """Return all gangs: Jobs, and bare pods by ``gang-name``. Finished members count as bound, deleted ones do not."""
    sizes: dict[str, int] = {}
    for job in await api.list("jobs", namespace):
        sizes[job["metadata"]["name"]] = int(job["spec"]["parallelism"])
    there: dict[str, list[bool]] = defaultdict(list)
    for pod in await api.list("pods", namespace):
        name, size = _gang_of(pod)
        if not name:
            continue
        sizes.setdefault(name, size)
        if not pod["metadata"].get("deletionTimestamp"):
            there[name].append(bool(pod["spec"].get("nodeName")))
    return [
        Standing(name, size, len(there[name]), sum(there[name])) for name, size in sorted(sizes.items()) if size > 1
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
    found = []
    for node in await api.list("nodes", None):
        name, has = node["metadata"]["name"], int(node["status"]["allocatable"].get(gpu, 0))
        if used[name] > has:
            found.append(f"{name}: {used[name]} of {has}")
    return found
