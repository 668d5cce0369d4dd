"""Which nodes a class of pods may use at all, whatever is free there.

A filter is batch-shaped: node table, class and rows in, one bool a row out. Every filter is registered in `FILTERS`,
in the order in which its reason is given: a node counts for the first filter that rejects it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from topo_scheduler.api.objects import NodeSelectorTerm, Requirement, Taint, Toleration
from topo_scheduler.api.reasons import NodeReason
from topo_scheduler.state.classes import PodClass
from topo_scheduler.state.nodes import UNKNOWN, Int64, NodeTable
from topo_scheduler.state.resources import GPU

Bool = npt.NDArray[np.bool_]
UNSCHEDULABLE_TAINT: Final = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")


@dataclass(frozen=True, slots=True)
class Filter:
    """A rule and the reason it gives for the nodes it rejects."""

    reason: NodeReason
    accepts: Callable[[NodeTable, PodClass, Int64], Bool]


def _ready(nodes: NodeTable, _: PodClass, rows: Int64) -> Bool:
    return nodes.ready[rows]


def _schedulable(nodes: NodeTable, cls: PodClass, rows: Int64) -> Bool:
    if tolerated(UNSCHEDULABLE_TAINT, cls.tolerations):
        return np.ones(len(rows), np.bool_)
    return ~nodes.unschedulable[rows]


def tolerated(taint: Taint, tolerations: frozenset[Toleration]) -> bool:
    """Return whether any toleration covers a taint."""
    return any(
        (not t.effect or t.effect == taint.effect)
        and (not t.key or t.key == taint.key)
        and (t.operator == "Exists" or (bool(t.key) and t.operator in ("Equal", "") and t.value == taint.value))
        for t in tolerations
    )


def _taints(nodes: NodeTable, cls: PodClass, rows: Int64) -> Bool:
    accepted = np.array(
        [
            all(t.effect not in ("NoSchedule", "NoExecute") or tolerated(t, cls.tolerations) for t in taints)
            for taints in nodes.taint_sets
        ],
        np.bool_,
    )
    return accepted[nodes.taint_set[rows]]


def _affinity(nodes: NodeTable, cls: PodClass, rows: Int64) -> Bool:
    accepted = np.ones(len(rows), np.bool_)
    for key, value in cls.selector:
        accepted &= nodes.label_column(key)[rows] == nodes.value_id(value)
    required = cls.affinity.required if cls.affinity else None
    if required is not None:
        matched = np.zeros(len(rows), np.bool_)
        for term in required.node_selector_terms:
            matched |= term_matches(nodes, term, rows)
        accepted &= matched
    return accepted


def term_matches(nodes: NodeTable, term: NodeSelectorTerm, rows: Int64) -> Bool:
    """Return which rows a node selector term matches; an empty term matches none."""
    if not term.match_expressions and not term.match_fields:
        return np.zeros(len(rows), np.bool_)
    matched = np.ones(len(rows), np.bool_)
    for requirement in term.match_expressions:
        matched &= _expression_matches(nodes, requirement, rows)
    for requirement in term.match_fields:
        matched &= _field_matches(nodes, requirement, rows)
    return matched


def _expression_matches(nodes: NodeTable, requirement: Requirement, rows: Int64) -> Bool:
    column = nodes.label_column(requirement.key)[rows]
    present: Bool = column != UNKNOWN
    match requirement.operator:
        case "In" | "NotIn":
            wanted = np.array([nodes.value_id(value) for value in requirement.values], np.int64)
            inside: Bool = np.isin(column, wanted)
            # As in Kubernetes, a node without the label satisfies NotIn.
            return inside if requirement.operator == "In" else ~inside
        case "Exists":
            return present
        case "DoesNotExist":
            return ~present
        case "Gt" | "Lt":
            return present & _compares(nodes, requirement, column)
    return np.zeros(len(rows), np.bool_)


def _compares(nodes: NodeTable, requirement: Requirement, column: Int64) -> Bool:
    bound = _as_int(requirement.values[0]) if len(requirement.values) == 1 else None
    result = np.zeros(len(column), np.bool_)
    if bound is None:
        return result
    for value_id in np.unique(column[column != UNKNOWN]):
        value = _as_int(nodes.values[int(value_id)])
        if value is not None and (value > bound if requirement.operator == "Gt" else value < bound):
            result |= column == value_id
    return result


def _as_int(text: str) -> int | None:
    digits = text[1:] if text[:1] in "+-" else text
    return int(text) if digits.isascii() and digits.isdigit() else None


def _field_matches(nodes: NodeTable, requirement: Requirement, rows: Int64) -> Bool:
    if requirement.key != "metadata.name" or requirement.operator not in ("In", "NotIn"):
        return np.zeros(len(rows), np.bool_)
    wanted = [nodes.row_of[name] for name in requirement.values if name in nodes.row_of]
    inside: Bool = np.isin(rows, np.array(wanted, np.int64))
    return inside if requirement.operator == "In" else ~inside


def _model(nodes: NodeTable, cls: PodClass, rows: Int64) -> Bool:
    if not cls.models:
        return np.ones(len(rows), np.bool_)
    wanted = np.array([nodes.model_id(model) for model in cls.models], np.int64)
    accepted: Bool = np.isin(nodes.model[rows], wanted[wanted != UNKNOWN])
    return accepted


def _bandwidth(nodes: NodeTable, cls: PodClass, rows: Int64) -> Bool:
    known = nodes.bandwidth[rows]
    enough: Bool = (known == UNKNOWN) | (known >= cls.bandwidth)
    return enough


FILTERS: Final[Sequence[Filter]] = (
    Filter(NodeReason.UNSCHEDULABLE, _schedulable),
    Filter(NodeReason.NOT_READY, _ready),
    Filter(NodeReason.TAINT, _taints),
    Filter(NodeReason.AFFINITY, _affinity),
    Filter(NodeReason.GPU_MODEL, _model),
    Filter(NodeReason.BANDWIDTH, _bandwidth),
)


def eligible(nodes: NodeTable, cls: PodClass, rows: Int64) -> Bool:
    """Return which rows the class may use (bool of the length of ``rows``)."""
    accepted = nodes.exists[rows]
    for rule in FILTERS:
        accepted = accepted & rule.accepts(nodes, cls, rows)
    return accepted


def preference(nodes: NodeTable, cls: PodClass, rows: Int64) -> Int64:
    """Return how much the class prefers each row: int64, higher is better.

    Preferred node affinity comes first; among equals, pods without GPUs keep off nodes that have some.
    """
    total = np.zeros(len(rows), np.int64)
    for preferred in cls.preferred:
        total += preferred.weight * term_matches(nodes, preferred.preference, rows)
    if not cls.gpus:
        total = 2 * total + (nodes.allocatable[rows, GPU] == 0)
    return total
