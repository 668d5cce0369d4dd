"""Churn with hostile pods: a share of all pods is made by a tenant that tries to harm the others."""

import asyncio
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from tests.attacks import hostile
from tests.breaking.world import MIGRATIONS
from tests.soak.churn import Churn
from topo_scheduler.simulation.apiserver import Json, StoreEvent
from topo_scheduler.simulation.apiserver.deletion import DeleteOptions
from topo_scheduler.simulation.apiserver.errors import StatusError

LIVES_SECONDS: Final = 1_800.0
"""After which the tenant deletes what it made, to make more of it."""
SCALE: Final = 0.02
"""Of the attacks that are made of many objects: at 1 % of the pods of a day there are hundreds, not thousands."""


def _alone(pods: Iterator[Json]) -> Iterator[list[Json]]:
    return ([pod] for pod in pods)


def _gangs(pods: Iterator[Json]) -> Iterator[list[Json]]:
    """Yield the pods of each gang together."""
    return (list(members) for _, members in itertools.groupby(pods, lambda pod: pod["metadata"]["name"].split("-")[1]))


def _circle(number: int) -> list[Json]:
    """Return pods that claim to be controlled by themselves, and by one another."""
    made = [hostile._pod(f"circle-{number}-{part}", 1) for part in range(2)]
    for pod, other in zip(made, reversed(made), strict=True):
        owner = {"apiVersion": "v1", "kind": "Pod", "name": other["metadata"]["name"], "uid": f"circle-{number}"}
        pod["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
    return made


@dataclass
class HostileChurn(Churn):
    """Churn in which ``share`` of all pods, at most, are hostile. They are in a namespace of their own."""

    share: float = 0.01
    made: int = 0
    """Hostile pods so far."""
    others: int = 0
    """Pods of all other tenants so far."""
    refused: int = 0
    """Objects that the API server did not take."""
    _hostile_alive: int = 0
    _room: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._room = self.pods
        self.seconds = 200.0
        self.world.store.create("namespaces", {"metadata": {"name": hostile.NAMESPACE}})
        self.world.gang("anchor", 1, gpus=0)
        self._anchor = next(
            str(job["metadata"]["uid"])
            for job in self.world.store.list("jobs.batch")
            if job["metadata"]["name"] == "anchor"
        )

    def _notice(self, table: str, event: StoreEvent) -> None:
        super()._notice(table, event)
        if table != "pods":
            return
        record = event.after if event.after is not None else event.before
        assert record is not None
        change = (event.before is None) - (event.after is None)
        if record.key.namespace == hostile.NAMESPACE:
            # The others keep their number.
            self._hostile_alive += change
            self.pods = self._room + self._hostile_alive
        else:
            self.others += change > 0

    async def run(self) -> None:
        """Go on until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(super().run())
            if self.share:
                group.create_task(self._attack())

    async def _attack(self) -> None:
        draw = random.Random(self.seed + 1)
        makers: list[tuple[str, Callable[[], Iterator[list[Json]]]]] = [
            ("numbers", lambda: _alone(hostile.numbers(16))),
            ("gangs of classes", lambda: _gangs(hostile.gangs_of_classes(SCALE))),
            ("terms", lambda: _alone(hostile.terms(SCALE))),
            ("resource names", lambda: _alone(hostile.resource_names(SCALE))),
            ("selector keys", lambda: _alone(hostile.selector_keys(SCALE))),
            ("classes", lambda: _alone(hostile.classes(SCALE))),
            ("owner kinds", lambda: _alone(hostile.owner_kinds(SCALE))),
            ("forged", lambda: _alone(hostile.forged(SCALE, self._anchor, sorted(self.world.node_names())))),
            ("whole nodes", lambda: (hostile.churning(number) for number in itertools.count())),
            ("circles", lambda: (_circle(number) for number in itertools.count())),
        ]
        going = {what: make() for what, make in makers}
        next_ = {what: next(going[what]) for what, _ in makers}
        for number in itertools.count():
            # What is too large for now, as gangs of 140 are at first, comes once there were enough other pods.
            fit = [(what, make) for what, make in makers if len(next_[what]) <= self._allowed()]
            if not fit:
                await asyncio.sleep(5.0)
                continue
            what, make = max(fit, key=lambda maker: len(next_[maker[0]])) if draw.random() < 0.1 else draw.choice(fit)
            if draw.random() < 0.5:
                await asyncio.sleep(draw.expovariate(1 / 600.0))  # allowance is saved up for large gangs
            self._make(what, next_[what], number)
            items = next(going[what], None)
            if items is None:
                going[what] = make()
                items = next(going[what])
            next_[what] = items

    def _allowed(self) -> float:
        """Return how many more pods may be hostile by now."""
        return self.share * (self.made + self.others) - self.made

    def _make(self, what: str, items: list[Json], number: int) -> None:
        self._count(f"hostile: {what}")
        names = []
        for item in items:
            item["spec"]["nodeSelector"] = {
                key: value for key, value in (item["spec"].get("nodeSelector") or {}).items() if key != hostile.POOL
            }
            item["metadata"]["name"] += f"-{number}"
            self.made += 1
            if self._create("pods", item):
                names.append(item["metadata"]["name"])
        if names and number % 5 == 0 and self._create(MIGRATIONS, hostile.migration(number, names[:8])):
            self._later(MIGRATIONS, f"churn-{number}", LIVES_SECONDS * self.random.random())
        for name in names:
            self._later("pods", name, LIVES_SECONDS)

    def _create(self, table: str, item: Json) -> bool:
        try:
            self.world.store.create(table, item, hostile.NAMESPACE)
        except StatusError:
            self.refused += 1
            return False
        return True

    def _later(self, table: str, name: str, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self._delete, table, name)

    def _delete(self, table: str, name: str) -> None:
        if self.world.store.find(table, name, hostile.NAMESPACE) is not None:
            self.world.store.delete(table, name, hostile.NAMESPACE, DeleteOptions(propagation="Background"))
