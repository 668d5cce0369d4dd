"""``runs/….json.zst``: the node and the times of every pod of a run. All figures of a run can be computed from it.

The file is JSON compressed with zstandard, in columns: the n-th entries of the lists of ``jobs`` and ``placements``
belong together. Times are in seconds, null for what never happened; in a fill they are arrival numbers.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from math import inf
from typing import Any, Final

import msgspec
import zstandard

from topo_scheduler.simulation.virtual.history import RunHistory, Stay, WorkloadOutcome

SCHEMA: Final = 1
FOLDER: Final = "runs"
_COMPRESSION_LEVEL: Final = 9
_MAY_NEVER_COME: Final = ("started", "ended", "end")
_MAX_STEM_CHARACTERS: Final = 160
"""Longest stem of a file name, in characters; with seed and suffix it stays below the limits of file systems."""


class Jobs(msgspec.Struct):
    """Workloads in order of arrival. ``milli`` is the sum over all pods in thousandths of GPUs."""

    name: list[str]
    pods: list[int]
    milli: list[int]
    arrived: list[float]
    started: list[float | None]
    ended: list[float | None]
    restarts: list[int]


class Placements(msgspec.Struct):
    """Pods on nodes, in the order in which they started. ``job`` and ``node`` are positions.

    Job -1 marks pods that ran before the first arrival. ``milli`` is in thousandths of GPUs. ``devices`` are GPU
    indexes, empty if the scheduler did not choose them.
    """

    job: list[int]
    pod: list[str]
    node: list[int]
    milli: list[int]
    devices: list[list[int]]
    start: list[float]
    end: list[float | None]


class RunFile(msgspec.Struct):
    """The whole file. ``paths`` has the domains of each node, one per level; ``capacity`` its thousandths of GPUs.

    ``cordoned`` are positions of nodes that accept no new pods. ``order`` marks a fill: times are arrival numbers.
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
    run_file = RunFile(
        SCHEMA,
        list(history.levels),
        list(history.nodes),
        [list(path) for path in history.paths],
        list(history.capacity),
        list(history.cordoned),
        history.order,
        history.end,
        Jobs(*_columns(Jobs, history.outcomes)),
        Placements(*_columns(Placements, history.stays)),
    )
    return zstandard.ZstdCompressor(level=_COMPRESSION_LEVEL, write_content_size=True).compress(
        msgspec.json.encode(run_file)
    )


def decode(data: bytes) -> RunHistory:
    """Return a run from its file.

    Raises:
        msgspec.MsgspecError: the content is not of this format.
        ValueError: its schema version differs, or its columns do not match.
        zstandard.ZstdError: it is not compressed with zstandard.
    """
    run_file = msgspec.json.decode(zstandard.ZstdDecompressor().decompress(data), type=RunFile)
    if run_file.schema_version != SCHEMA:
        raise ValueError(f"its schema_version is {run_file.schema_version}, this version reads {SCHEMA}")
    jobs, placements = run_file.jobs, run_file.placements
    _check(run_file)
    history = RunHistory(
        tuple(run_file.nodes),
        tuple(tuple(path) for path in run_file.paths),
        tuple(run_file.levels),
        tuple(run_file.capacity),
        run_file.order,
        end=run_file.end,
        cordoned=tuple(run_file.cordoned),
    )
    for name, pods, milli, arrived, started, ended, restarts in zip(*msgspec.structs.astuple(jobs), strict=True):
        history.outcomes.append(WorkloadOutcome(name, pods, arrived, milli, _known(started), _known(ended), restarts))
    for job, pod, node, milli, devices, start, end in zip(*msgspec.structs.astuple(placements), strict=True):
        history.stays.append(Stay(job, pod, node, milli, tuple(devices), start, _known(end)))
    return history


def _columns(kind: type[msgspec.Struct], rows: Sequence[WorkloadOutcome | Stay]) -> Iterator[list[Any]]:
    """Yield the column of each field of a table; times that never came are null."""
    for field in kind.__struct_fields__:
        column = [getattr(row, field) for row in rows]
        yield [None if value == inf else value for value in column] if field in _MAY_NEVER_COME else column


def _check(run_file: RunFile) -> None:
    nodes, jobs = len(run_file.nodes), len(run_file.jobs.name)
    for name, values, least, count in (
        ("placements.job", run_file.placements.job, -1, jobs),
        ("placements.node", run_file.placements.node, 0, nodes),
        ("cordoned", run_file.cordoned, 0, nodes),
    ):
        for value in values:
            if not least <= value < count:
                raise ValueError(f"{name}: there is no {value}")
    if not nodes == len(run_file.paths) == len(run_file.capacity):
        raise ValueError("nodes, paths and capacity are not of one length")


def file_of(policy: str, seed: int, what_if: str = "") -> str:
    """Return the path of a run's file, relative to the result. A long name is cut and ends in a digest of the whole."""
    parts = (re.sub(r"[^A-Za-z0-9._-]+", "-", part).strip("-.") for part in (policy, what_if) if part)
    stem = "+".join(parts)
    if len(stem) > _MAX_STEM_CHARACTERS:
        stem = f"{stem[:_MAX_STEM_CHARACTERS]}-{hashlib.sha256(stem.encode()).hexdigest()[:12]}"
    return f"{FOLDER}/{stem}.{seed}.json.zst"


def _known(seconds: float | None) -> float:
    return inf if seconds is None else seconds
