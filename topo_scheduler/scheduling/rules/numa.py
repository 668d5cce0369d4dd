"""Filter for NUMA nodes: pods that the kubelet of a node would reject with TopologyAffinityError."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final

import numpy as np

from topo_scheduler.api.reasons import NodeReason
from topo_scheduler.scheduling.rules.filters import Bool
from topo_scheduler.scheduling.rules.interpod_filters import FilterContext
from topo_scheduler.scheduling.rules.numa_admission import Admission, admission, admission_empty, admits_together
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.nodes.numa_report import NumaPolicy, NumaReport, NumaScope, is_memory
from topo_scheduler.state.operation_budget import charge, charge_rows
from topo_scheduler.state.pods.classes import NO_LIMIT, PodClass
from topo_scheduler.state.pods.numa_request import NumaRequest
from topo_scheduler.state.pods.numa_zones import NumaState

MAX_KNOWN_ADMISSIONS: Final = 8192
"""Results that are kept: most nodes of a cluster are alike."""
MAX_DETAILED_REASONS: Final = 3
"""Different reasons with free amounts by NUMA node that one failure lists; if there are more, one reason without."""
CHECKS_PER_OPERATION: Final = 4


@lru_cache(maxsize=MAX_KNOWN_ADMISSIONS)
def _admission(state: NumaState, request: NumaRequest) -> Admission:
    return admission(state, request)


@lru_cache(maxsize=MAX_KNOWN_ADMISSIONS)
def _admission_empty(report: NumaReport, request: NumaRequest) -> Admission:
    return admission_empty(report, request)


def forget_admissions() -> None:
    """Forget how many pods are admitted; it is computed again."""
    _admission.cache_clear()
    _admission_empty.cache_clear()


def numa_limits(context: FilterContext, cls: PodClass, rows: Int64, *, empty: bool = False) -> Int64:
    """Return how many pods of a class the kubelet of each row admits; with ``empty``, if no other pod were there.

    Raises:
        OverBudgetError: it takes too long.
    """
    limits = np.full(len(rows), NO_LIMIT, np.int64)
    zones, request = context.numa_zones, cls.numa
    if request is None or not zones.machines:
        return limits
    charge_rows(len(rows), 20)
    names = context.nodes.names
    for index, row in enumerate(rows.tolist()):
        state = zones.state(names[row])
        if state is not None:
            admitted = _admission_empty(state.report, request) if empty else _admission(state, request)
            charge(1 + admitted.checks // CHECKS_PER_OPERATION)  # whether it was known or not
            limits[index] = admitted.pods
    return limits


def is_limited_by_numa(context: FilterContext, cls: PodClass, eligible: Bool) -> bool:
    """Return whether the kubelet of an eligible row (bool[all rows]) rejects pods of a class that it can't align."""
    machines, row_of = context.numa_zones.machines, context.nodes.row_of
    if cls.numa is None or not machines:
        return False
    return any(bool(eligible[row_of[name]]) for name in machines if name in row_of)


def rejecting_node(context: FilterContext, placed: Iterable[tuple[PodClass, Sequence[int]]]) -> str:
    """Return a node whose kubelet may reject a member because those of other classes share it; empty for none.

    ``placed`` has the rows of the members of each class.
    """
    if not context.numa_zones.machines:
        return ""
    members: dict[int, Counter[NumaRequest]] = {}
    for cls, rows in placed:
        if cls.numa is not None:
            for row in rows:
                members.setdefault(row, Counter())[cls.numa] += 1
    for row, requests in sorted(members.items()):
        if len(requests) < 2:
            continue  # those of one class were counted together
        state = context.numa_zones.state(context.nodes.names[row])
        charge(1 + len(requests))
        if state is not None and not admits_together(state, tuple(requests.items())):
            return context.nodes.names[row]
    return ""


# ---------------------------------------------------------------- reasons


def numa_rejections(context: FilterContext, cls: PodClass, rows: Int64) -> Iterator[tuple[str, Bool]]:
    """Yield reasons, and the rows that each rejects: with what is free, if few nodes differ in that."""
    if cls.numa is None or not context.numa_zones.machines:
        return
    closed = np.flatnonzero(numa_limits(context, cls, rows) == 0).tolist()
    reasons: dict[str, list[int]] = {}
    for index in closed:
        state = context.numa_zones.state(context.nodes.names[int(rows[index])])
        assert state is not None
        reasons.setdefault(_reason(state, cls.numa), []).append(index)
    if len(reasons) > MAX_DETAILED_REASONS:
        reasons = {NodeReason.NUMA: closed}
    for reason in sorted(reasons):
        rejected = np.zeros(len(rows), np.bool_)
        rejected[reasons[reason]] = True
        yield reason, rejected


def _reason(state: NumaState, request: NumaRequest) -> str:
    """Return the reason against a node, without its name, so that nodes with equal amounts count together."""
    report, unreported = state.report, dict(state.unreported)
    if report.scope is NumaScope.POD:
        largest = dict(request.total)
    else:
        largest = {}
        for container in request.containers:
            for name, amount in container.amounts:
                largest[name] = max(largest.get(name, 0), amount)
    lacking = []
    for name, amount in sorted(largest.items()):
        if name not in report.resources:
            continue
        free = report.available[report.resources.index(name)]
        missing = unreported.get(name, 0)
        if max(free) - missing < amount or report.policy is NumaPolicy.RESTRICTED:
            each = ", ".join(f"{zone} {_text(name, left)}" for zone, left in zip(report.zones, free, strict=True))
            pods = f", less {_text(name, missing)} of pods that are not in the report yet" if missing else ""
            lacking.append(f"{_text(name, amount)} {_noun(name)} needed, free on NUMA nodes: {each}{pods}")
    return f"{NodeReason.NUMA}: {'; '.join(lacking)}" if lacking else NodeReason.NUMA


def _text(name: str, amount: int) -> str:
    if name == "cpu":
        return f"{amount // 1000}" if amount % 1000 == 0 else f"{amount}m"
    if is_memory(name):
        return f"{amount / 2**30:.4g}Gi"
    return str(amount)


def _noun(name: str) -> str:
    return "CPUs" if name == "cpu" else name
