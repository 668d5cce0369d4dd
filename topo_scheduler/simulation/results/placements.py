"""``runs/….json.zst``: where every pod of a run was, and when; all else of a run can be told from it.

JSON compressed with zstandard, in columns: the n-th entries of the lists of ``jobs`` and ``placements`` belong
together. Times are in seconds, null for what never came; in a fill they are numbers of arrivals.
"""

import hashlib
import re
from math import inf
from pathlib import Path
from typing import Any, Final

import msgspec
import zstandard

from topo_scheduler.simulation.virtual.history import RunHistory, Stay, WorkloadOutcome

SCHEMA: Final = 1
FOLDER: Final = "runs"
_LEVEL: Final = 9
_LONGEST: Final = 160
"""Of what tells runs apart in the name of a file: with seed and ending it stays below what file systems take."""


class Jobs(msgspec.Struct):
    """Workloads in the order in which they came. ``milli`` thousandths of GPUs of all pods."""

    name: list[str]
    pods: list[int]
    milli: list[int]
    arrived: list[float]
    started: list[float | None]
    ended: list[float | None]
    restarts: list[int]


class Placements(msgspec.Struct):
    """Pods on nodes, in the order in which they began. ``job`` and ``node`` are positions, job -1 of who was there.

    ``milli`` thousandths of GPUs, ``devices`` indexes of them where they are told apart.
    """

    job: list[int]
    pod: list[str]
    node: list[int]
    milli: list[int]
    devices: list[list[int]]
    start: list[float]
    end: list[float | None]


class RunFile(msgspec.Struct):
    """The whole file. ``paths`` domains of each node, one a level; ``capacity`` thousandths of GPUs of each node.

    ``cordoned``: positions of nodes that take no new pods. ``order``: nobody leaves, and times are numbers of arrivals.
    """

    schema_version: int
    levels: list[str]
    nodes: list[str]
    paths: list[list[str]]
    capacity: list[int]
    cordoned: list[int]
    order: bool
    end: float
    jobs: Jobs
    placements: Placements


def encode(history: RunHistory) -> bytes:
    """Return the file of a run."""
    outcomes, stays = history.outcomes, history.stays
    whole = RunFile(
        SCHEMA,
        list(history.levels),
        list(history.nodes),
        [list(path) for path in history.paths],
        list(history.capacity),
        list(history.cordoned),
        history.order,
        history.end,
        Jobs(
            [one.name for one in outcomes],
            [one.pods for one in outcomes],
            [one.milli for one in outcomes],
            [one.arrived for one in outcomes],
            [_finite(one.started) for one in outcomes],
            [_finite(one.ended) for one in outcomes],
            [one.restarts for one in outcomes],
        ),
        Placements(
            [one.job for one in stays],
            [one.pod for one in stays],
            [one.node for one in stays],
            [one.milli for one in stays],
            [list(one.devices) for one in stays],
            [one.start for one in stays],
            [_finite(one.end) for one in stays],
        ),
    )
    return zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True).compress(msgspec.json.encode(whole))


def decode(data: bytes) -> RunHistory:
    """Return a run from its file.

    Raises:
        msgspec.MsgspecError: it is something else.
        ValueError: its version is another one, or its columns do not belong together.
        zstandard.ZstdError: it is not compressed so.
    """
    found = msgspec.json.decode(zstandard.ZstdDecompressor().decompress(data), type=RunFile)
    if found.schema_version != SCHEMA:
        raise ValueError(f"its schema_version is {found.schema_version}, this version reads {SCHEMA}")
    jobs, places = found.jobs, found.placements
    _check(found)
    history = RunHistory(
        tuple(found.nodes),
        tuple(tuple(path) for path in found.paths),
        tuple(found.levels),
        tuple(found.capacity),
        found.order,
        end=found.end,
        cordoned=tuple(found.cordoned),
    )
    columns: Any = zip(
        jobs.name, jobs.pods, jobs.arrived, jobs.milli, jobs.started, jobs.ended, jobs.restarts, strict=True
    )
    for name, pods, arrived, milli, started, ended, restarts in columns:
        history.outcomes.append(WorkloadOutcome(name, pods, arrived, milli, _known(started), _known(ended), restarts))
    rows: Any = zip(
        places.job, places.pod, places.node, places.milli, places.devices, places.start, places.end, strict=True
    )
    for job, pod, node, milli, devices, start, end in rows:
        history.stays.append(Stay(job, pod, node, milli, tuple(devices), start, _known(end)))
    return history


def _check(found: RunFile) -> None:
    nodes, jobs = len(found.nodes), len(found.jobs.name)
    for name, values, least, count in (
        ("placements.job", found.placements.job, -1, jobs),
        ("placements.node", found.placements.node, 0, nodes),
        ("cordoned", found.cordoned, 0, nodes),
    ):
        for one in values:
            if not least <= one < count:
                raise ValueError(f"{name}: there is no {one}")
    if not nodes == len(found.paths) == len(found.capacity):
        raise ValueError("nodes, paths and capacity are not of one length")


def read(path: Path) -> RunHistory:
    """Return a run from its file; raises as `decode`."""
    return decode(path.read_bytes())


def file_of(policy: str, seed: int, what_if: str = "") -> str:
    """Return the name of a run's file, relative to the result; a long one ends in a digest of it all."""
    parts = (re.sub(r"[^A-Za-z0-9._-]+", "-", part).strip("-.") for part in (policy, what_if) if part)
    told = "+".join(parts)
    if len(told) > _LONGEST:
        told = f"{told[:_LONGEST]}-{hashlib.sha256(told.encode()).hexdigest()[:12]}"
    return f"{FOLDER}/{told}.{seed}.json.zst"


def _finite(seconds: float) -> float | None:
    return seconds if seconds < inf else None


def _known(seconds: float | None) -> float:
    return inf if seconds is None else seconds
