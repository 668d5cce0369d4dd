"""Writers of pods with claims: alone, as gangs, with claims of their own or one that they share; some give up early."""

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import Any, Final

from tests.bench.device_objects import GROUP, TEMPLATE
from tests.e2e import objects
from tests.e2e.api import Api, ApiError, Json

from .checker import Checker

THEIRS: Final = "default-scheduler"
THEIR_TEMPLATE: Final = "one-of-theirs"
GANG: Final = 4
MEMBERS: Final = "gang-size"
GIVES_UP: Final = 0.15
"""The part of the pods that are deleted after a random time, whatever became of them."""
PATIENCE_SECONDS: Final = 180.0
LOOK_SECONDS: Final = 0.1


@dataclass(slots=True)
class Work:
    """What is left to do, and what went wrong."""

    claims_left: int
    slow: list[str] = field(default_factory=list)
    """Pods that were not done in time."""


def claim(name: str, device_class_name: str, count: int = 1) -> Json:
    """A claim that is no template's."""
    exactly = {"deviceClassName": device_class_name, "allocationMode": "ExactCount", "count": count}
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": GROUP, "kind": "ResourceClaim", "metadata": metadata, "spec": spec}


class Writer:
    """One of the writers: a workload after the other, until enough claims were made."""

    def __init__(self, api: Api, checker: Checker, name: str, scheduler: str, device_class_name: str) -> None:
        self._api = api
        self._checker = checker
        self._name = name
        self._scheduler = scheduler
        self._class = device_class_name
        self._random = random.Random(name)
        self._number = 0

    async def run(self, work: Work) -> None:
        """Work until no claims are left to make."""
        while work.claims_left > 0:
            self._number += 1
            name = f"{self._name}-{self._number}"
            kind = self._random.random() if self._scheduler != THEIRS else 0.0
            if kind < 0.6:
                work.claims_left -= 1
                await self._play(work, [self._pod(name, **self._by_template())])
            elif kind < 0.75:
                work.claims_left -= GANG
                said = {"gang-name": name, MEMBERS: str(GANG)}
                pods = [self._pod(f"{name}-{member}", said, **self._by_template()) for member in range(GANG)]
                await self._play(work, pods)
            else:
                work.claims_left -= 1
                count = 1 if kind < 0.9 else 3  # alone, or shared by three pods
                pods = [self._pod(f"{name}-{member}", **_by_name(name)) for member in range(count)]
                await self._create("resourceclaims", claim(name, self._class, self._random.randint(1, 2)))
                await self._play(work, pods)
                await self._delete("resourceclaims", name)

    def _by_template(self) -> Json:
        template = THEIR_TEMPLATE if self._scheduler == THEIRS else TEMPLATE
        return {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": template}]}

    def _pod(self, name: str, said: Json | None = None, **spec: Any) -> Json:
        seconds = round(self._random.uniform(0.1, 1.0), 2)
        return objects.pod(name, annotations=said, run=seconds, cpu="10m", scheduler=self._scheduler, **spec)

    async def _play(self, work: Work, pods: list[Json]) -> None:
        """Create pods, wait until they are done or give up, and delete them."""
        names = [pod["metadata"]["name"] for pod in pods]
        for pod in pods:
            await self._create("pods", pod)
        if self._random.random() < GIVES_UP:
            await asyncio.sleep(self._random.uniform(0, 2))
        else:
            deadline = time.monotonic() + PATIENCE_SECONDS
            while not all(map(self._is_done, names)):
                if time.monotonic() > deadline:
                    work.slow += [name for name in names if not self._is_done(name)]
                    break
                await asyncio.sleep(LOOK_SECONDS)
        for name in names:
            await self._delete("pods", name)

    def _is_done(self, name: str) -> bool:
        pod = self._checker.pods.get(name)
        return pod is not None and pod["status"].get("phase") in ("Succeeded", "Failed")

    async def _create(self, plural: str, item: Json) -> None:
        await self._api.create(plural, item)

    async def _delete(self, plural: str, name: str) -> None:
        try:
            await self._api.delete(plural, name, grace=0)
        except ApiError as error:
            if error.status != 404:
                raise


async def meddle(api: Api, checker: Checker, per_second: float) -> None:
    """Annotate claims at random, so that versions which schedulers know are old."""
    chosen = random.Random("meddler")
    number = 0
    while True:
        await asyncio.sleep(1 / per_second)
        if names := sorted(checker.claims):
            number += 1
            change = {"metadata": {"annotations": {"example.com/seen": str(number)}}}
            try:
                await api.patch("resourceclaims", chosen.choice(names), change)
            except ApiError as error:
                if error.status not in (404, 409):
                    raise


def _by_name(name: str) -> Json:
    return {"resourceClaims": [{"name": "gpu", "resourceClaimName": name}]}
