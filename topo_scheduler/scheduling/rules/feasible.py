"""All rules of Kubernetes together: the nodes where a pod may go now, and the reasons against the other nodes.

The rules, their order and their corner cases are those of kube-scheduler 1.36 with its default plugins.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from topo_scheduler.api.reasons import NodeReason, insufficient
from topo_scheduler.scheduling.rules.device_claims import device_rejections, left_to_devices
from topo_scheduler.scheduling.rules.filters import FILTERS, Bool
from topo_scheduler.scheduling.rules.gpu_rules import close_gpu_rejections
from topo_scheduler.scheduling.rules.interpod_filters import (
    NEIGHBOUR_FILTERS,
    ON_NODE,
    AssumedPods,
    FilterContext,
    counts_anywhere,
    looks_around,
    open_rows,
)
from topo_scheduler.scheduling.rules.numa import numa_rejections
from topo_scheduler.scheduling.rules.volume_limits import ClaimError
from topo_scheduler.scheduling.rules.volumes import LASTING, uses_volumes, volume_rejections
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.nodes.resources import GPU, GPU_SHARE, Amounts
from topo_scheduler.state.pods.applied_terms import with_further
from topo_scheduler.state.pods.classes import PodClass
from topo_scheduler.state.pods.profiles import Profile

OURS: Final = frozenset(
    {
        NodeReason.NOT_READY,
        NodeReason.REFUSED,
        NodeReason.GPU_MODEL,
        NodeReason.GPU_COUNT,
        NodeReason.GPU_MEMORY_UNKNOWN,
        NodeReason.GPU_MEMORY,
        NodeReason.GPU_ARCHITECTURE_UNKNOWN,
        NodeReason.GPU_ARCHITECTURE,
        NodeReason.MIG_PROFILE,
        NodeReason.SHARING,
        NodeReason.BANDWIDTH,
        NodeReason.SPARE,
    }
)
"""Reasons that kube-scheduler does not have."""


@dataclass(frozen=True, slots=True)
class Nominated:
    """A pod with a nominated node: preemption clears the node for it, and it counts there as if it ran."""

    row: int
    priority: int
    uid: str
    profile: Profile
    amounts: Amounts


def reasons(
    context: FilterContext,
    cls: PodClass,
    profile: Profile,
    nominated: Sequence[Nominated] = (),
    *,
    ours: bool = True,
) -> dict[str, str]:
    """Return the reason against each node for a pod, by name; empty for nodes that fit.

    Args:
        context: nodes, pods and storage of the cluster.
        cls: the pod's class.
        profile: what other pods see of the pod.
        nominated: pods of equal or higher priority with nominated nodes; each counts on its own node only.
        ours: whether to apply rules that kube-scheduler does not have.
    """
    nodes = context.nodes
    rows = np.flatnonzero(nodes.exists).astype(np.int64)
    cls = replace(cls, repelled=with_further(None, context.repelled(profile)))
    texts = dict.fromkeys(rows.tolist(), "")
    try:
        # Evaluate with and without the nominated pods, as they may not arrive.
        for row in sorted({pod.row for pod in nominated}):
            nominated_here = [pod for pod in nominated if pod.row == row]
            class_here = _with(context, cls, profile, nominated_here)
            (texts[row],) = _first_reasons(context, class_here, np.array([row], np.int64), nominated_here, ours)
        # Rows that nominated pods close need no second evaluation.
        other_rows = np.array([row for row, text in texts.items() if not text], np.int64)
        texts |= zip(other_rows.tolist(), _first_reasons(context, cls, other_rows, (), ours), strict=True)
    except ClaimError as error:
        return dict.fromkeys((nodes.names[row] for row in rows.tolist()), str(error))
    return {nodes.names[row]: text for row, text in texts.items()}


def _with(context: FilterContext, cls: PodClass, profile: Profile, nominated: Sequence[Nominated]) -> PodClass:
    constraints = cls.constraints
    has_terms = bool(constraints and (constraints.affinity or constraints.anti_affinity))
    if not has_terms and not any(counts_anywhere(context, term) for term in context.terms_repelling(cls)):
        return replace(cls, repelled=None)  # kube-scheduler checks no terms then
    terms = frozenset(term for pod in nominated for term in pod.profile.repels if context.applies(term, profile))
    return replace(cls, repelled=with_further(cls.repelled, terms))


def _first_reasons(
    context: FilterContext, cls: PodClass, rows: Int64, nominated: Sequence[Nominated], ours: bool
) -> list[str]:
    """Return for each row the first reason against it, empty if there is none."""
    texts = [""] * len(rows)
    for reason, rejected in rejections(context, cls, rows, nominated, ours=ours):
        for index in np.flatnonzero(rejected).tolist():
            texts[index] = texts[index] or reason
    return texts


def rejections(
    context: FilterContext, cls: PodClass, rows: Int64, nominated: Sequence[Nominated] = (), *, ours: bool = True
) -> Iterator[tuple[str, Bool]]:
    """Apply the rules in the order of kube-scheduler; yield each reason and the rows that it rejects.

    Later rules skip the rows that a rule rejects. Only for resources, each lacking resource is a reason of its own.

    Raises:
        ClaimError: a claim of the class has a problem that excludes all rows.
    """
    remaining = np.ones(len(rows), np.bool_)
    for rule in _walk(context, cls, rows, nominated, ours, remaining):
        rejected_by_rule = np.zeros(len(rows), np.bool_)
        for reason, rejected in rule:
            newly_rejected = remaining & rejected
            rejected_by_rule |= newly_rejected
            yield reason, newly_rejected
        remaining &= ~rejected_by_rule


Rule = Iterable[tuple[str, Bool]]
"""The reasons of one rule, and the rows that it rejects for each."""


def _walk(
    context: FilterContext,
    cls: PodClass,
    rows: Int64,
    nominated: Sequence[Nominated],
    ours: bool,
    remaining: Bool,
) -> Iterator[Rule]:
    assumed_pods: AssumedPods = [(pod.row, pod.profile) for pod in nominated]
    # Filters of plugins are not in kube-scheduler either.
    filters = context.extensions.filters if ours else FILTERS
    rules = [rule for rule in filters if ours or rule.reason not in OURS]
    last = [rule for rule in rules if rule.reason is NodeReason.FEATURES]
    for rule in rules:
        if rule not in last:
            yield [(rule.reason, ~rule.accepts(context.nodes, cls, rows))]
    for cap in cls.caps:
        closed = context.closed_by_caps(replace(cls, caps=(cap,)), rows)
        if closed is not None:
            yield [(cap.reason, closed)]
    for neighbour in NEIGHBOUR_FILTERS if looks_around(cls) else ():
        if neighbour.reason in ON_NODE:
            yield [(neighbour.reason, ~neighbour.accepts(context, cls, rows, assumed_pods))]
    by_devices = left_to_devices(context.nodes, cls, rows)
    lacking = _lacking(context, cls, rows, nominated, ours)
    yield [(insufficient(name), lacks & ~by_devices[name] if name in by_devices else lacks) for name, lacks in lacking]
    for rejection in volume_rejections(context, cls, rows, assumed_pods, remaining):
        yield [rejection]
    for neighbour in NEIGHBOUR_FILTERS if looks_around(cls) else ():
        if neighbour.reason not in ON_NODE:
            yield [(neighbour.reason, ~neighbour.accepts(context, cls, rows, assumed_pods))]
    for devices_rejection in device_rejections(context, cls if ours else replace(cls, gpu_needs=None), rows):
        yield [devices_rejection]
    if ours:
        yield numa_rejections(context, cls, rows)
        for closeness_rejection in close_gpu_rejections(context, cls, rows):
            yield [closeness_rejection]
    if ours and by_devices:
        yield [(insufficient(name), lacks) for name, lacks in lacking]
    for rule in last:
        yield [(rule.reason, ~rule.accepts(context.nodes, cls, rows))]


def _lacking(
    context: FilterContext, cls: PodClass, rows: Int64, nominated: Sequence[Nominated], ours: bool
) -> list[tuple[str, Bool]]:
    """Return the names of the requested resources, and the rows that have too little of each."""
    nodes = context.nodes
    columns = {GPU, *(column for column, _ in cls.amounts)}
    free = {column: nodes.allocatable[rows, column] - nodes.requested[rows, column] for column in columns}
    for pod in nominated:
        for column, amount in pod.amounts:
            if column in free:
                free[column][rows == pod.row] -= amount
    names = nodes.resources.names
    rows_by_resource: dict[str, Bool] = {}
    for column, amount in cls.amounts:
        name = names[column]
        if column == GPU:
            if not ours:
                continue  # the total of all GPUs, including GPUs requested by annotation
            # Name the GPU resource that the pod requests, if it requests one.
            name = next(
                (
                    names[other_column]
                    for other_column, _ in cls.amounts
                    if names[other_column] in nodes.resources.gpu_resources
                ),
                "GPUs",
            )
        lacking = free[column] < amount
        if column == GPU_SHARE:
            if not ours:
                continue
            name, lacking = "GPU shares", nodes.devices.fit(rows, amount, free[GPU]) == 0
        rows_by_resource[name] = rows_by_resource[name] | lacking if name in rows_by_resource else lacking
    return list(rows_by_resource.items())


# ---------------------------------------------------------------- for views


def allowed_rows(context: FilterContext, cls: PodClass, rows: Int64, assumed_pods: AssumedPods = ()) -> Bool:
    """Return the rows that current pods, claims and volumes leave open to the class, whatever resources are free."""
    accepted = open_rows(context, cls, rows, assumed_pods)
    if uses_volumes(cls):
        try:
            for _, rejected in volume_rejections(context, cls, rows, assumed_pods, accepted):
                accepted &= ~rejected
        except ClaimError:
            return np.zeros(len(rows), np.bool_)
    return accepted


def allowed_and_reachable(context: FilterContext, cls: PodClass, rows: Int64) -> tuple[Bool, Bool]:
    """Return `allowed_rows`, and the rows that volumes leave open to the class whatever pods come or go.

    A claim with an error closes no row for good, as it may be corrected at any time.
    """
    accepted, reached = open_rows(context, cls, rows), np.ones(len(rows), np.bool_)
    try:
        for reason, rejected in volume_rejections(context, cls, rows, (), accepted):
            accepted &= ~rejected
            if reason in LASTING:
                reached &= ~rejected
    except ClaimError:
        return np.zeros(len(rows), np.bool_), np.ones(len(rows), np.bool_)
    return accepted, reached
