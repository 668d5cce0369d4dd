"""What is seen of the daemon from outside: its memory, its CPU, how long /livez takes, and whether it lives."""

import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import aiohttp

from tests.controlplane import ControlPlane
from tests.e2e.api import Api, ApiError, Json

from . import api_requests
from .victim import spread

EVERY_SECONDS: Final = 0.2
ANSWER_SECONDS: Final = 5.0
"""How long the kubelet waits for an answer of the probe, by the manifests; three without end the container."""


class Watching:
    """Samples a process. Times in seconds, memory in MiB."""

    def __init__(self, pid: int, port: int, api: Api, plane: ControlPlane) -> None:
        self._pid = pid
        self._url = f"http://127.0.0.1:{port}"
        self._api = api
        self._plane = plane
        self._tasks: list[asyncio.Task[None]] = []
        self.rss_mib = 0.0
        self.anonymous_mib = 0.0
        self.livez: list[float] = []
        self.unanswered = 0
        self.api_seconds: list[float] = []
        self.died = False
        self._cpu = self._queued = 0.0
        self._used: dict[str, float] = {}
        self._requests: api_requests.Totals = {}
        self._began = 0.0

    async def start(self) -> None:
        """Begin a phase."""
        self.livez, self.api_seconds, self.unanswered = [], [], 0
        self.rss_mib = self.anonymous_mib = 0.0
        self._used, self._requests = self._usage(), await self._counted()
        self._cpu, self._queued, self._began = self._cpu_seconds(), self._queued_seconds(), time.monotonic()
        self._tasks = [asyncio.create_task(coroutine) for coroutine in (self._memory(), self._probe(), self._ask())]

    async def stop(self) -> Json:
        """End the phase; return what was seen."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        took = time.monotonic() - self._began
        requests = api_requests.between(self._requests, await self._counted())
        return {
            "requests": requests,
            "seconds": round(took, 1),
            "rss_mib": round(self.rss_mib),
            "anonymous_mib": round(self.anonymous_mib),
            "cpus": round((self._cpu_seconds() - self._cpu) / took, 2),
            "waited_for_cpu": round((self._queued_seconds() - self._queued) / took, 2),
            "cpus_of": {name: round((cpu - self._used[name]) / took, 2) for name, cpu in self._usage().items()},
            "load_average": round(os.getloadavg()[0], 1),
            "livez": {**spread(self.livez), "unanswered": self.unanswered},
            "api_server": spread(self.api_seconds),
            "died": self.died,
        }

    async def metrics(self) -> str:
        """Return what the daemon counted so far."""
        async with aiohttp.ClientSession() as session, session.get(self._url + "/metrics") as answer:
            return await answer.text()

    async def _counted(self) -> api_requests.Totals:
        return api_requests.totals(await self._api.text("/metrics"))

    def _usage(self) -> dict[str, float]:
        """Return the CPU seconds of each component of the control plane."""
        return {name: usage.cpu_seconds for name, usage in self._plane.usage().items()}

    def _cpu_seconds(self) -> float:
        try:
            fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            self.died = True
            return self._cpu
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _queued_seconds(self) -> float:
        """Return for how long all its threads were ready to run and others ran."""
        total = 0.0
        with suppress(OSError):
            for thread in Path(f"/proc/{self._pid}/task").iterdir():
                total += int((thread / "schedstat").read_text().split()[1]) / 1e9
        return total

    async def _memory(self) -> None:
        while True:
            try:
                status = _status(self._pid)
            except OSError:
                self.died = True
                return
            self.rss_mib = max(self.rss_mib, _mib(status.get("VmRSS", "0 kB")))
            self.anonymous_mib = max(self.anonymous_mib, _mib(status.get("RssAnon", "0 kB")))
            await asyncio.sleep(EVERY_SECONDS)

    async def _probe(self) -> None:
        """Ask /livez: the loop that decides answers it, so it takes as long as the loop stands still."""
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                begun = time.monotonic()
                try:
                    async with session.get(self._url + "/livez") as answer:
                        await answer.read()
                        if answer.status != 200:
                            self.unanswered += 1
                except (aiohttp.ClientError, TimeoutError, OSError):
                    self.unanswered += 1
                self.livez.append(time.monotonic() - begun)
                await asyncio.sleep(EVERY_SECONDS)

    async def _ask(self) -> None:
        """Ask the API server for one object: what it takes is not the scheduler's."""
        while True:
            begun = time.monotonic()
            with suppress(ApiError, aiohttp.ClientError, OSError):
                await self._api.get("namespaces", "default")
                self.api_seconds.append(time.monotonic() - begun)
            await asyncio.sleep(0.5)


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _mib(text: str) -> float:
    return int(text.split()[0]) / 1024
