"""What an API server and the processes around it did between two moments: requests by kind, and CPU time."""

import re
import time
from dataclasses import dataclass
from typing import Final

import psutil

from tests.controlplane import ControlPlane

from .objects import Json
from .server import Server

_REQUESTS: Final = re.compile(r"^apiserver_request_total\{(.*)\} (\S+)$", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')
_NEVER_ENDING: Final = ("WATCH", "CONNECT")


@dataclass(frozen=True, slots=True)
class Moment:
    """Totals since the processes started: CPU seconds by process, requests by kind and status code."""

    at: float
    cpu: dict[str, float]
    requests: dict[str, float]

    def since(self, before: "Moment", pods: int) -> Json:
        """Return what happened since another moment, for each pod."""
        cpu = {name: seconds - before.cpu.get(name, 0.0) for name, seconds in self.cpu.items()}
        made = {name: count - before.requests.get(name, 0.0) for name, count in self.requests.items()}
        return {
            "seconds": round(self.at - before.at, 2),
            "cpu_ms_per_pod": {name: round(1000 * seconds / pods, 2) for name, seconds in cpu.items() if seconds},
            "requests_per_pod": {
                name: round(count / pods, 2) for name, count in sorted(made.items()) if count >= 0.05 * pods
            },
        }


async def moment(plane: ControlPlane, server: Server, scheduler: psutil.Process) -> Moment:
    """Read the totals as they are now."""
    cpu = {name: used.cpu_seconds for name, used in plane.usage().items()}
    cpu["scheduler"] = sum(scheduler.cpu_times()[:2])
    at = time.monotonic()
    return Moment(at, cpu, _requests(await server.text("/metrics")))


def _requests(exposition: str) -> dict[str, float]:
    """Return how many requests were answered, by verb, resource and status code."""
    made: dict[str, float] = {}
    for labels, count in _REQUESTS.findall(exposition):
        of = dict(_LABEL.findall(labels))
        if of["verb"] in _NEVER_ENDING:
            continue
        resource = f"{of['resource']}/{of['subresource']}" if of.get("subresource") else of["resource"]
        name = f"{of['verb']} {resource} {of['code']}"
        made[name] = made.get(name, 0.0) + float(count)
    return made
