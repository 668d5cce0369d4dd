"""The hostile tenant, as a process of its own: creates what the attacks need and replaces some of it until it ends.

Run by `tests.attacks`; it has the rights of a ServiceAccount of the namespace `hostile`, and no others.
"""

import argparse
import asyncio
import itertools
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import aiohttp

from tests.e2e.api import Api, ApiError, Json
from tests.e2e.objects import PLURALS, SCHEDULER

from . import hostile, hostile_devices

CHURNING_GANGS: Final = 12
"""Gangs of the ninth attack that exist at a time."""
CREATORS: Final = 4
"""Requests under way at once for one attack."""
MIGRATIONS: Final = 300
"""Migrations of the ninth attack that exist at a time."""


SHARES: Final = {6: 6.0, 7: 3.0, 2: 1.5, 9: 1.5}
DEVICE_SHARES: Final = {3: 2.5, 4: 4.0, 5: 1.5, 6: 2.0}
"""How many times the requests of other attacks those get that need more objects."""


Attacks = dict[int, Callable[[str], Awaitable[None]]]


class Tenant:
    """Creates objects in its namespace, each attack at a rate of its own."""

    def __init__(
        self, api: Api, rate: float, weights: Mapping[int, float], only: Sequence[int], scheduler: str
    ) -> None:
        self._api = api
        self._scheduler = scheduler
        shares = {str(number): weights.get(number, 1.0) for number in only}
        self._pauses = {attack: sum(shares.values()) / (share * rate) for attack, share in shares.items()}
        """Seconds between two requests of an attack."""
        self._fair_queue: dict[str, float] = {}
        self.created: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    async def create(self, attack: str, plural: str, item: Json) -> bool:
        """Create an object; return whether the API server took it."""
        if plural == "pods":
            item["spec"]["schedulerName"] = self._scheduler
        await self._turn(attack)
        try:
            await self._api.create(plural, item, hostile.NAMESPACE)
        except ApiError as error:
            self.refused[f"{attack} {error.status}"] += 1
            if self.refused[f"{attack} {error.status}"] == 1:
                print(f"{attack}: {error}", file=sys.stderr)
            return False
        except (aiohttp.ClientError, OSError, TimeoutError):
            self.refused[f"{attack} connection"] += 1
            return False
        self.created[attack] += 1
        return True

    async def _turn(self, attack: str) -> None:
        """Wait until the attack may make its next request; time that a slow answer took is made up for."""
        now = time.monotonic()
        turn = max(self._fair_queue.get(attack, now), now - 1.0)
        self._fair_queue[attack] = turn + self._pauses[attack]
        await asyncio.sleep(max(0.0, turn - now))

    async def delete(self, attack: str, plural: str, name: str) -> None:
        """Delete an object, if it exists."""
        await self._turn(attack)
        with suppress(ApiError, aiohttp.ClientError, OSError, TimeoutError):
            await self._api.delete(plural, name, hostile.NAMESPACE, grace=0)

    async def keep(self, attack: str, objects: Callable[[], Iterator[Json]]) -> None:
        """Create the pods and claims of an attack, and then replace one after the other for ever."""
        items = objects()
        async with asyncio.TaskGroup() as group:
            for _ in range(CREATORS):
                group.create_task(self._create_all(attack, items))
        for item in itertools.chain.from_iterable(objects() for _ in itertools.count()):
            plural = PLURALS[item["kind"]]
            await self.delete(attack, plural, item["metadata"]["name"])
            await self.create(attack, plural, item)
            await asyncio.sleep(10 * self._pauses[attack])

    async def _create_all(self, attack: str, items: Iterator[Json]) -> None:
        for item in items:
            await self.create(attack, PLURALS[item["kind"]], item)

    async def churn_claims(self, attack: str, count: int) -> None:
        """Delete claims whose pods run, without their finalizer, and create them again; replace the pods as well."""
        for number in itertools.count():
            item, consumer = hostile_devices.churning(number % count)
            name = item["metadata"]["name"]
            if number >= count:
                await self._turn(attack)
                with suppress(ApiError, aiohttp.ClientError, OSError, TimeoutError):
                    change = {"metadata": {"finalizers": None}}
                    await self._api.patch("resourceclaims", name, change, hostile.NAMESPACE)
                await self.delete(attack, "resourceclaims", name)
                if number % 3 == 0:
                    await self.delete(attack, "pods", name)
            await self.create(attack, "resourceclaims", item)
            if number < count or number % 3 == 0:
                await self.create(attack, "pods", consumer)

    async def churn(self, attack: str) -> None:
        """Create and delete gangs that ask for whole nodes, and Migrations of their pods."""
        alive: list[list[str]] = []
        for number in itertools.count():
            pods = hostile.churning(number)
            names = [item["metadata"]["name"] for item in pods]
            for item in pods:
                await self.create(attack, "pods", item)
            alive.append(names)
            for part in range(5):
                moved = random.sample(names, min(8, len(names)))
                await self.create(attack, "migrations.topology.scheduler", hostile.migration(5 * number + part, moved))
                if 5 * number + part >= MIGRATIONS:
                    await self.delete(
                        attack, "migrations.topology.scheduler", f"churn-{5 * number + part - MIGRATIONS}"
                    )
            if len(alive) > CHURNING_GANGS:
                for name in alive.pop(random.randrange(len(alive))):
                    await self.delete(attack, "pods", name)


def nine_attacks(tenant: Tenant, options: argparse.Namespace, nodes: list[str]) -> Attacks:
    """Return the attacks of the first set."""
    scale, uid = options.scale, options.borrowed_uid
    return {
        1: lambda name: tenant.keep(name, lambda: hostile.numbers(max(2, round(100 * scale)))),
        2: lambda name: tenant.keep(name, lambda: hostile.gangs_of_classes(scale)),
        3: lambda name: tenant.keep(name, lambda: hostile.terms(scale)),
        4: lambda name: tenant.keep(name, lambda: hostile.resource_names(scale)),
        5: lambda name: tenant.keep(name, lambda: hostile.selector_keys(scale)),
        6: lambda name: tenant.keep(name, lambda: hostile.classes(scale)),
        7: lambda name: tenant.keep(name, lambda: hostile.owner_kinds(scale)),
        8: lambda name: tenant.keep(name, lambda: hostile.forged(scale, uid, nodes)),
        9: tenant.churn,
    }


def device_attacks(tenant: Tenant, options: argparse.Namespace, nodes: list[str]) -> Attacks:
    """Return the attacks of the second set, by means of devices."""
    scale, uid = options.scale, options.borrowed_uid
    return {
        1: lambda name: tenant.keep(name, lambda: hostile_devices.selectors(scale)),
        2: lambda name: tenant.keep(name, lambda: hostile_devices.alternatives(scale)),
        3: lambda name: tenant.keep(name, lambda: hostile_devices.mappings(scale)),
        4: lambda name: tenant.keep(name, lambda: hostile_devices.unmatched(scale)),
        5: lambda name: tenant.keep(name, lambda: hostile_devices.annotations(scale, uid, nodes)),
        6: lambda name: tenant.churn_claims(name, hostile_devices.count_of(6, scale)),
    }


async def attack(api: Api, options: argparse.Namespace) -> Json:
    """Run the attacks for a time; return how much was created and refused."""
    weights, of = (DEVICE_SHARES, device_attacks) if options.devices else (SHARES, nine_attacks)
    tenant = Tenant(api, options.rate, weights, options.only, options.scheduler)
    attacks = of(tenant, options, [f"n{number}" for number in range(options.nodes)])
    began = time.monotonic()
    running = [asyncio.ensure_future(start(str(number))) for number, start in attacks.items() if number in options.only]
    done, _ = await asyncio.wait(running, timeout=options.seconds, return_when=asyncio.FIRST_EXCEPTION)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    for task in done:
        task.result()
    took = time.monotonic() - began
    return {"seconds": round(took, 1), "created": dict(tenant.created), "refused": dict(tenant.refused)}


async def _main(options: argparse.Namespace) -> None:
    async with Api(options.kubeconfig) as api:
        print(json.dumps(await attack(api, options)))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.attacks.tenant", description=__doc__)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--rate", type=float, required=True, help="requests a second of all attacks together")
    parser.add_argument("--scale", type=float, required=True)
    parser.add_argument("--nodes", type=int, required=True, help="how many there are: n0, n1 and so on")
    parser.add_argument("--borrowed-uid", required=True)
    parser.add_argument("--only", type=int, nargs="*", required=True)
    parser.add_argument("--devices", action="store_true", help="the second set of attacks, by means of devices")
    parser.add_argument("--scheduler", default=SCHEDULER, help="schedulerName of the tenant's pods")
    asyncio.run(_main(parser.parse_args()))


if __name__ == "__main__":
    main()
