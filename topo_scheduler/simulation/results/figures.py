"""From what happened in a run to its figures: percentiles are values that occurred, means are rounded."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from math import ceil, inf
from typing import Final

from topo_scheduler.scheduling.intake.pending import worded
from topo_scheduler.simulation.results.model import Assumptions, Slowdown, Span, Wait
from topo_scheduler.simulation.slowdown import Assumed, Slow
from topo_scheduler.simulation.virtual.history import BEFORE, RunHistory, WorkloadOutcome
from topo_scheduler.state.fabric import Path

ALL: Final = "all"
MOST_REASONS: Final = 10
"""Reasons that are kept of workloads that never ran."""


def size_of(milli: int) -> str:
    """Return the size of a workload as tables call it: its GPUs, from 3 on in ranges up to powers of two."""
    gpus = ceil(milli / 1000)
    if milli < 1000:
        return "<1" if milli else "0"
    if gpus <= 2:
        return str(gpus)
    top = 1 << (gpus - 1).bit_length()
    return f"{top // 2 + 1}-{top}"


def order_of_size(size: str) -> tuple[int, int]:
    """Return a sort key of what `size_of` returns, and of `ALL` before."""
    if size in (ALL, "0", "<1"):
        return (0, (ALL, "0", "<1").index(size))
    return (1, int(size.split("-")[0]))


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest value that so many percent of sorted values are not above; None where there are none."""
    if not values:
        return None
    return values[max(0, ceil(share * len(values) / 100) - 1)]


def waits(history: RunHistory) -> list[Wait]:
    """Return how long workloads waited, of all sizes and by size."""
    groups: dict[str, list[WorkloadOutcome]] = defaultdict(list)
    for outcome in history.outcomes:
        groups[ALL].append(outcome)
        groups[size_of(outcome.milli)].append(outcome)
    return [_wait(size, groups[size]) for size in sorted(groups, key=order_of_size)]


def _wait(size: str, outcomes: Sequence[WorkloadOutcome]) -> Wait:
    waited = sorted(round(one.started - one.arrived, 6) for one in outcomes if one.started < inf)
    return Wait(
        gpus=size,
        workloads=len(outcomes),
        never=len(outcomes) - len(waited),
        p50=percentile(waited, 50),
        p95=percentile(waited, 95),
        p99=percentile(waited, 99),
        mean=round(sum(waited) / len(waited), 6) if waited else None,
        most=waited[-1] if waited else None,
    )


def spans(history: RunHistory) -> dict[str, Span]:
    """Return over how much of the fabric gangs lie, of all sizes and by size."""
    nodes: dict[int, set[int]] = defaultdict(set)
    for stay in history.stays:
        if stay.job == BEFORE:
            continue
        outcome = history.outcomes[stay.job]
        # Where a gang ran whole: pods that were evicted before are not where it lies.
        if outcome.pods > 1 and stay.end >= outcome.ended and outcome.started < inf:
            nodes[stay.job].add(stay.node)
    groups: dict[str, list[tuple[int, int]]] = {ALL: []}
    for job in sorted(nodes):
        paths: set[Path] = {history.paths[node] for node in nodes[job]}
        spanned = (len(paths), len({path[:-1] for path in paths}))
        groups[ALL].append(spanned)
        groups.setdefault(size_of(history.outcomes[job].milli), []).append(spanned)
    above = len(history.levels) > 1
    return {size: _span(groups[size], above=above) for size in sorted(groups, key=order_of_size)}


def _span(found: Sequence[tuple[int, int]], *, above: bool) -> Span:
    leaves, spines = [one for one, _ in found], [one for _, one in found]
    told = bool(found) and above
    return Span(
        gangs=len(found),
        leaves_mean=_mean(leaves),
        leaves_max=max(leaves, default=None),
        spines_mean=_mean(spines) if told else None,
        spines_max=max(spines) if told else None,
        crossing_leaf=sum(one > 1 for one in leaves),
        leaves={str(number): count for number, count in sorted(Counter(leaves).items())},
    )


def slowdown(history: RunHistory, found: Sequence[Slow]) -> dict[str, Slowdown]:
    """Return what the network cost gangs, of all sizes and by size."""
    groups: dict[str, list[Slow]] = {ALL: list(found)}
    for one in found:
        groups.setdefault(size_of(history.outcomes[one.job].milli), []).append(one)
    return {size: _slowdown(history, groups[size]) for size in sorted(groups, key=order_of_size)}


def _slowdown(history: RunHistory, found: Sequence[Slow]) -> Slowdown:
    if not found:
        return Slowdown(gangs=0, mean=None, p95=None, most=None, by_gpu_seconds=None, job_seconds=None)
    factors = sorted(round(one.factor, 6) for one in found)
    weights = [history.outcomes[one.job].milli * one.seconds for one in found]
    held = sum(weight * one.factor for weight, one in zip(weights, found, strict=True))
    return Slowdown(
        gangs=len(found),
        mean=round(sum(factors) / len(factors), 6),
        p95=percentile(factors, 95),
        most=factors[-1],
        by_gpu_seconds=round(held / sum(weights), 6) if sum(weights) else None,
        job_seconds=round(sum(one.seconds * one.factor for one in found) / len(found), 3),
    )


def assumptions(assumed: Assumed) -> Assumptions:
    """Return what the slow-down is estimated by, as it is told."""
    return Assumptions(
        communication=assumed.communication,
        network_gbits=assumed.network / 1000,
        oversubscription=assumed.oversubscription,
    )


def allocated(history: RunHistory) -> float:
    """Return the percentage of all GPUs that are held at the end."""
    held = sum(stay.milli for stay in history.stays if stay.end == inf)
    return round(100 * held / max(1, sum(history.capacity)), 4)


def utilisation(history: RunHistory, until: float, since: float = 0.0) -> float | None:
    """Return the percentage of GPU-seconds that were held up to a moment, from the first arrival on; None in a fill.

    ``since``: from a later moment on.
    """
    first = max(since, min((one.arrived for one in history.outcomes), default=0.0))
    if history.order or until <= first:
        return None
    held = sum(stay.milli * _overlap(stay.start, stay.end, first, until) for stay in history.stays)
    return round(100 * held / (max(1, sum(history.capacity)) * (until - first)), 4)


def _overlap(start: float, end: float, first: float, until: float) -> float:
    return max(0.0, min(end, until) - max(start, first))


def _mean(values: Iterable[int]) -> float | None:
    found = list(values)
    return round(sum(found) / len(found), 4) if found else None


def reasons(history: RunHistory) -> list[str]:
    """Return why workloads never ran: the most frequent reasons, each with how many there were and one of them."""
    groups: dict[str, list[WorkloadOutcome]] = {}
    for outcome in history.outcomes:
        if outcome.started == inf:
            groups.setdefault(worded(outcome.reason), []).append(outcome)
    found = sorted(groups.values(), key=len, reverse=True)[:MOST_REASONS]
    return [f"{_some(some)}: {some[0].reason or 'nothing was told of it'}" for some in found]


def _some(outcomes: Sequence[WorkloadOutcome]) -> str:
    return (
        f"1 workload {outcomes[0].name}" if len(outcomes) == 1 else f"{len(outcomes)} workloads, as {outcomes[0].name}"
    )
