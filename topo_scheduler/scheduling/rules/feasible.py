"""Every rule of Kubernetes at once: where may a pod go, by its class and by what is there now, and why not elsewhere.

The rules, their order and their corner cases are those of kube-scheduler 1.36 with its default plugins.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from topo_scheduler.api.reasons import NodeReason, insufficient
from topo_scheduler.scheduling.rules.filters import FILTERS, Bool
from topo_scheduler.scheduling.rules.neighbours import (
    NEIGHBOUR_FILTERS,
    ON_NODE,
    Extra,
    FilterContext,
    counts_anywhere,
    looks_around,
    open_rows,
)
from topo_scheduler.scheduling.rules.volume_limits import ClaimError
from topo_scheduler.scheduling.rules.volumes import LASTING, uses_volumes, volume_rejections
from topo_scheduler.state.classes import PodClass
from topo_scheduler.state.nodes import Int64
from topo_scheduler.state.residents import Profile
from topo_scheduler.state.resources import GPU, GPU_SHARE, Amounts

OURS: Final = frozenset(
    {
        NodeReason.NOT_READY,
        NodeReason.REFUSED,
        NodeReason.GPU_MODEL,
        NodeReason.SHARING,
        NodeReason.BANDWIDTH,
        NodeReason.SPARE,
    }
)
"""Reasons that kube-scheduler does not have."""


@dataclass(frozen=True, slots=True)
class Nominated:
    """A pod that waits for a node to be cleared for it, and counts there as if it ran."""

    row: int
    priority: int
    uid: str
    profile: Profile
    amounts: Amounts


class Reasons:
    """For each row the first reason why it will not do, empty while there is none."""

    def __init__(self, rows: Int64) -> None:
        self.rows = rows
        self.texts: list[str] = [""] * len(rows)
        self.left: Bool = np.ones(len(rows), np.bool_)

    def reject(self, rejected: Bool, reason: str) -> None:
        """Note a reason for the rows that have none yet."""
        for at in np.flatnonzero(self.left & rejected).tolist():
            self.texts[at] = reason
        self.left &= ~rejected


def reasons(
    around: FilterContext,
    cls: PodClass,
    profile: Profile,
    nominated: Sequence[Nominated] = (),
    *,
    ours: bool = True,
) -> dict[str, str]:
    """Return why each node will not do for a pod, by name; empty for those that will.

    Args:
        around: everything there is.
        cls: the pod's class.
        profile: what others see of the pod.
        nominated: pods of equal or higher priority that are nominated to nodes; each counts on its own node only.
        ours: whether rules count that kube-scheduler does not have.
    """
    nodes = around.nodes
    rows = np.flatnonzero(nodes.exists).astype(np.int64)
    cls = replace(cls, repelled=around.repelled(profile))
    texts = dict.fromkeys(rows.tolist(), "")
    try:
        # With the nominated pods as well as without them: nobody knows whether they will really come.
        for row in sorted({one.row for one in nominated}):
            there = [one for one in nominated if one.row == row]
            alone = Reasons(np.array([row], np.int64))
            _evaluate(around, _with(around, cls, profile, there), alone, there, ours)
            texts[row] = alone.texts[0]
        # What such a pod keeps away is not looked at again.
        found = Reasons(np.array([row for row, text in texts.items() if not text], np.int64))
        _evaluate(around, cls, found, (), ours)
    except ClaimError as error:
        return dict.fromkeys((nodes.names[row] for row in rows.tolist()), str(error))
    texts |= zip(found.rows.tolist(), found.texts, strict=True)
    return {nodes.names[row]: text for row, text in texts.items()}


def _with(around: FilterContext, cls: PodClass, profile: Profile, nominated: Sequence[Nominated]) -> PodClass:
    constraints = cls.constraints
    looks = bool(constraints and (constraints.affinity or constraints.anti_affinity))
    if not looks and not any(counts_anywhere(around, term) for term in cls.repelled):
        return replace(cls, repelled=frozenset())  # kube-scheduler asks nobody then
    terms = {term for one in nominated for term in one.profile.repels if around.meant(term, profile)}
    return replace(cls, repelled=cls.repelled | terms)


def _evaluate(around: FilterContext, cls: PodClass, found: Reasons, nominated: Sequence[Nominated], ours: bool) -> None:
    for reason, rejected in rejections(around, cls, found.rows, nominated, ours=ours):
        found.reject(rejected, reason)


def rejections(
    around: FilterContext, cls: PodClass, rows: Int64, nominated: Sequence[Nominated] = (), *, ours: bool = True
) -> Iterator[tuple[str, Bool]]:
    """Walk the rules in the order of kube-scheduler: yield each reason and the rows it rejects.

    A row that one rule rejects is not looked at by the next; only of the resources it lacks each is a reason.

    Raises:
        ClaimError: something is wrong with a claim of the class, so that no row will do.
    """
    left = np.ones(len(rows), np.bool_)
    for rule in _walk(around, cls, rows, nominated, ours, left):
        gone = np.zeros(len(rows), np.bool_)
        for reason, rejected in rule:
            now = left & rejected
            gone |= now
            yield reason, now
        left &= ~gone


Rule = Iterable[tuple[str, Bool]]
"""The reasons one rule gives, and the rows it rejects for each."""


def _walk(
    around: FilterContext,
    cls: PodClass,
    rows: Int64,
    nominated: Sequence[Nominated],
    ours: bool,
    left: Bool,
) -> Iterator[Rule]:
    extra: Extra = [(one.row, one.profile) for one in nominated]
    # Those of plugins are ours as well.
    known = around.extensions.filters if ours else FILTERS
    rules = [rule for rule in known if ours or rule.reason not in OURS]
    last = [rule for rule in rules if rule.reason is NodeReason.FEATURES]
    for rule in rules:
        if rule not in last:
            yield [(rule.reason, ~rule.accepts(around.nodes, cls, rows))]
    for cap in cls.caps:
        shut = around.shut(replace(cls, caps=(cap,)), rows)
        if shut is not None:
            yield [(cap.reason, shut)]
    for neighbour in NEIGHBOUR_FILTERS if looks_around(cls) else ():
        if neighbour.reason in ON_NODE:
            yield [(neighbour.reason, ~neighbour.accepts(around, cls, rows, extra))]
    yield _lacking(around, cls, rows, nominated, ours)
    for found in volume_rejections(around, cls, rows, extra, left):
        yield [found]
    for neighbour in NEIGHBOUR_FILTERS if looks_around(cls) else ():
        if neighbour.reason not in ON_NODE:
            yield [(neighbour.reason, ~neighbour.accepts(around, cls, rows, extra))]
    for rule in last:
        yield [(rule.reason, ~rule.accepts(around.nodes, cls, rows))]


def _looked_at(cls: PodClass) -> set[int]:
    return {GPU, *(column for column, _ in cls.amounts)}


def _lacking(
    around: FilterContext, cls: PodClass, rows: Int64, nominated: Sequence[Nominated], ours: bool
) -> list[tuple[str, Bool]]:
    nodes = around.nodes
    free = {column: nodes.allocatable[rows, column] - nodes.requested[rows, column] for column in _looked_at(cls)}
    for one in nominated:
        for column, amount in one.amounts:
            if column in free:
                free[column][rows == one.row] -= amount
    names = nodes.resources.names
    found: dict[str, Bool] = {}
    for column, amount in cls.amounts:
        name = names[column]
        if column == GPU:
            if not ours:
                continue  # the account of all GPUs together, those promised by annotation included
            # Said of the resource the pod names, where it names one.
            name = next((names[c] for c, _ in cls.amounts if names[c] in nodes.resources.gpu_resources), "GPUs")
        short = free[column] < amount
        if column == GPU_SHARE:
            if not ours:
                continue
            name, short = "GPU shares", nodes.devices.fit(rows, amount, free[GPU]) == 0
        found[name] = found[name] | short if name in found else short
    return [(insufficient(name), short) for name, short in found.items()]


# ---------------------------------------------------------------- what views keep


def allowed_rows(around: FilterContext, cls: PodClass, rows: Int64, extra: Extra = ()) -> Bool:
    """Return which rows the pods, claims and volumes that are there leave open to the class, whatever is free."""
    accepted = open_rows(around, cls, rows, extra)
    if uses_volumes(cls):
        try:
            for _, rejected in volume_rejections(around, cls, rows, extra, accepted):
                accepted &= ~rejected
        except ClaimError:
            return np.zeros(len(rows), np.bool_)
    return accepted


def allowed_and_reachable(around: FilterContext, cls: PodClass, rows: Int64) -> tuple[Bool, Bool]:
    """Return `allowed_rows`, and the rows that volumes leave open to the class whoever comes or goes.

    Of a claim that is not in order nothing lasts: it may be put right at any moment.
    """
    accepted, reached = open_rows(around, cls, rows), np.ones(len(rows), np.bool_)
    try:
        for reason, rejected in volume_rejections(around, cls, rows, (), accepted):
            accepted &= ~rejected
            if reason in LASTING:
                reached &= ~rejected
    except ClaimError:
        return np.zeros(len(rows), np.bool_), np.ones(len(rows), np.bool_)
    return accepted, reached
