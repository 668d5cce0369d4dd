"""Compute the figures of a run from its history. Percentiles are observed values, means are rounded."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from math import ceil, inf
from typing import Final

from topo_scheduler.scheduling.intake.pending import worded
from topo_scheduler.simulation.results.model import Slowdown, Span, Wait
from topo_scheduler.simulation.slowdown import GangSlowdown
from topo_scheduler.simulation.virtual.history import BEFORE, RunHistory, WorkloadOutcome
from topo_scheduler.state.topology.fabric import Path

ALL: Final = "all"
MAX_REASONS: Final = 10
"""Largest number of reasons listed for workloads that never ran."""


def size_of(milli: int) -> str:
    """Return the size class of a workload: its GPUs, from 3 on as ranges up to powers of two."""
    gpus = ceil(milli / 1000)
    if milli < 1000:
        return "<1" if milli else "0"
    if gpus <= 2:
        return str(gpus)
    top = 1 << (gpus - 1).bit_length()
    return f"{top // 2 + 1}-{top}"


def order_of_size(size: str) -> tuple[int, int]:
    """Return a sort key of the size classes of `size_of`, with `ALL` first."""
    if size in (ALL, "0", "<1"):
        return (0, (ALL, "0", "<1").index(size))
    return (1, int(size.split("-")[0]))


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest of sorted values that ``share`` percent of them do not exceed; None if there are none."""
    if not values:
        return None
    return values[max(0, ceil(share * len(values) / 100) - 1)]


def waits(history: RunHistory) -> list[Wait]:
    """Return the waits of workloads, of all sizes and by size."""
    groups: dict[str, list[WorkloadOutcome]] = defaultdict(list)
    for outcome in history.outcomes:
        groups[ALL].append(outcome)
        groups[size_of(outcome.milli)].append(outcome)
    return [_wait(size, groups[size]) for size in sorted(groups, key=order_of_size)]


def _wait(size: str, outcomes: Sequence[WorkloadOutcome]) -> Wait:
    seconds = sorted(round(outcome.started - outcome.arrived, 6) for outcome in outcomes if outcome.started < inf)
    return Wait(
        gpus=size,
        workloads=len(outcomes),
        never_ran=len(outcomes) - len(seconds),
        p50=percentile(seconds, 50),
        p95=percentile(seconds, 95),
        p99=percentile(seconds, 99),
        mean=round(sum(seconds) / len(seconds), 6) if seconds else None,
        max=seconds[-1] if seconds else None,
    )


def spans(history: RunHistory) -> dict[str, Span]:
    """Return how many leaves and spines gangs span, of all sizes and by size."""
    nodes: dict[int, set[int]] = defaultdict(set)
    for stay in history.stays:
        if stay.job == BEFORE:
            continue
        outcome = history.outcomes[stay.job]
        # Count only pods that remained to the end; pods evicted earlier are not part of the final placement.
        if outcome.pods > 1 and stay.end >= outcome.ended and outcome.started < inf:
            nodes[stay.job].add(stay.node)
    groups: dict[str, list[tuple[int, int]]] = {ALL: []}
    for job in sorted(nodes):
        paths: set[Path] = {history.paths[node] for node in nodes[job]}
        counts = (len(paths), len({path[:-1] for path in paths}))
        groups[ALL].append(counts)
        groups.setdefault(size_of(history.outcomes[job].milli), []).append(counts)
    has_spines = len(history.levels) > 1
    return {size: _span(groups[size], has_spines=has_spines) for size in sorted(groups, key=order_of_size)}


def _span(counts: Sequence[tuple[int, int]], *, has_spines: bool) -> Span:
    leaves, spines = [count for count, _ in counts], [count for _, count in counts]
    spines_known = bool(counts) and has_spines
    return Span(
        gangs=len(counts),
        leaves_mean=_mean(leaves),
        leaves_max=max(leaves, default=None),
        spines_mean=_mean(spines) if spines_known else None,
        spines_max=max(spines) if spines_known else None,
        crossing_leaf=sum(count > 1 for count in leaves),
        leaves={str(number): count for number, count in sorted(Counter(leaves).items())},
    )


def slowdown(history: RunHistory, gangs: Sequence[GangSlowdown]) -> dict[str, Slowdown]:
    """Return the slowdown of gangs by network contention, of all sizes and by size."""
    groups: dict[str, list[GangSlowdown]] = {ALL: list(gangs)}
    for gang in gangs:
        groups.setdefault(size_of(history.outcomes[gang.job].milli), []).append(gang)
    return {size: _slowdown(history, groups[size]) for size in sorted(groups, key=order_of_size)}


def _slowdown(history: RunHistory, gangs: Sequence[GangSlowdown]) -> Slowdown:
    if not gangs:
        return Slowdown(gangs=0, mean=None, p95=None, max=None, by_gpu_seconds=None, job_seconds=None)
    factors = sorted(round(gang.factor, 6) for gang in gangs)
    weights = [history.outcomes[gang.job].milli * gang.seconds for gang in gangs]
    weighted_sum = sum(weight * gang.factor for weight, gang in zip(weights, gangs, strict=True))
    return Slowdown(
        gangs=len(gangs),
        mean=round(sum(factors) / len(factors), 6),
        p95=percentile(factors, 95),
        max=factors[-1],
        by_gpu_seconds=round(weighted_sum / sum(weights), 6) if sum(weights) else None,
        job_seconds=round(sum(gang.seconds * gang.factor for gang in gangs) / len(gangs), 3),
    )


def allocated(history: RunHistory) -> float:
    """Return the percentage of GPUs that are allocated at the end."""
    held = sum(stay.milli for stay in history.stays if stay.end == inf)
    return round(100 * held / max(1, sum(history.capacity)), 4)


def utilisation(history: RunHistory, until: float, since: float = 0.0) -> float | None:
    """Return the percentage of GPU-seconds allocated from the first arrival to ``until``; None in a fill.

    ``since`` sets a later start, in seconds.
    """
    first = max(since, min((outcome.arrived for outcome in history.outcomes), default=0.0))
    if history.order or until <= first:
        return None
    held = sum(stay.milli * max(0.0, min(stay.end, until) - max(stay.start, first)) for stay in history.stays)
    return round(100 * held / (max(1, sum(history.capacity)) * (until - first)), 4)


def _mean(values: Iterable[int]) -> float | None:
    numbers = list(values)
    return round(sum(numbers) / len(numbers), 4) if numbers else None


def reasons(history: RunHistory) -> list[str]:
    """Return the most frequent reasons why workloads never ran, each with their number and an example."""
    groups: dict[str, list[WorkloadOutcome]] = {}
    for outcome in history.outcomes:
        if outcome.started == inf:
            groups.setdefault(worded(outcome.reason), []).append(outcome)
    most_frequent = sorted(groups.values(), key=len, reverse=True)[:MAX_REASONS]
    return [f"{_counted(outcomes)}: {outcomes[0].reason or 'no reason recorded'}" for outcomes in most_frequent]


def _counted(outcomes: Sequence[WorkloadOutcome]) -> str:
    return (
        f"1 workload {outcomes[0].name}" if len(outcomes) == 1 else f"{len(outcomes)} workloads, as {outcomes[0].name}"
    )
