"""Which nodes a class of pods may use at all, whatever is free there.

A filter is batch-shaped: node table, class and rows in, one bool a row out. `FILTERS` are those of the built-in plugin,
in the order in which their reasons are given: a node counts for the first filter that rejects it. Those of other
plugins come after them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from topo_scheduler.api.objects import Taint, Toleration
from topo_scheduler.api.reasons import NodeReason
from topo_scheduler.api.selectors import NodeSelectorTerm, Requirement
from topo_scheduler.scheduling.extensions.extension import Filter, Nodes
from topo_scheduler.state.classes import PodClass
from topo_scheduler.state.nodes import UNKNOWN, Int64
from topo_scheduler.state.operation_budget import charge, charge_rows
from topo_scheduler.state.selectors import SelectorError, as_int64, check_requirement

Bool = npt.NDArray[np.bool_]
UNSCHEDULABLE_TAINT: Final = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")


@dataclass(frozen=True, slots=True)
class Particular(Filter):
    """A filter that accepts every node for the classes it does not concern; it need not be asked for them."""

    concerns: Callable[[PodClass], bool]


def _ready(nodes: Nodes, _: PodClass, rows: Int64) -> Bool:
    return nodes.ready[rows]


def _not_refusing(nodes: Nodes, cls: PodClass, rows: Int64) -> Bool:
    shunned = [nodes.row_of[name] for name in cls.shunned if name in nodes.row_of]
    accepted: Bool = ~np.isin(rows, np.array(sorted(shunned), np.int64))
    return accepted


def _schedulable(nodes: Nodes, cls: PodClass, rows: Int64) -> Bool:
    if cls.tolerations and tolerated(UNSCHEDULABLE_TAINT, cls.tolerations):
        return np.ones(len(rows), np.bool_)
    return ~nodes.unschedulable[rows]


def tolerated(taint: Taint, tolerations: frozenset[Toleration]) -> bool:
    """Return whether any toleration covers a taint."""
    return any(
        (not t.effect or t.effect == taint.effect)
        and (not t.key or t.key == taint.key)
        and (t.operator == "Exists" or (t.operator in ("Equal", "") and t.value == taint.value))
        for t in tolerations
    )


def tolerates(nodes: Nodes, cls: PodClass, rows: Int64) -> Bool:
    """Return which rows have no taint that keeps the class away."""
    if len(nodes.taint_sets) == 1:
        return np.ones(len(rows), np.bool_)  # that of no taints
    charge(1 + len(nodes.taint_sets) * len(cls.tolerations) // 4)
    accepted = np.array(
        [
            all(t.effect not in ("NoSchedule", "NoExecute") or tolerated(t, cls.tolerations) for t in taints)
            for taints in nodes.taint_sets
        ],
        np.bool_,
    )
    return accepted[nodes.taint_set[rows]]


def matches_affinity(nodes: Nodes, cls: PodClass, rows: Int64) -> Bool:
    """Return which rows match the class's node selector and required node affinity."""
    accepted = np.ones(len(rows), np.bool_)
    for key, value in cls.selector:
        charge_rows(len(rows))
        column, wanted = nodes.label_column(key)[rows], nodes.known_value(value)
        # A value that no node has is not noted: pods may ask for any.
        accepted &= (column == wanted) & (wanted != UNKNOWN)
    required = cls.affinity.required if cls.affinity else None
    if required is not None:
        matched = np.zeros(len(rows), np.bool_)
        for term in required.node_selector_terms:
            matched |= term_matches(nodes, term, rows)
        accepted &= matched
    return accepted


def term_matches(nodes: Nodes, term: NodeSelectorTerm, rows: Int64) -> Bool:
    """Return which rows a node selector term matches; an empty term matches none."""
    if not can_match(term):
        return np.zeros(len(rows), np.bool_)
    matched = np.ones(len(rows), np.bool_)
    for requirement in term.match_expressions:
        matched &= _expression_matches(nodes, requirement, rows)
    for requirement in term.match_fields:
        matched &= _field_matches(nodes, requirement, rows)
    return matched


@lru_cache(maxsize=16_384)  # volumes of 5,000 nodes have a term each; cleared by `Engine` as large pods come and go
def can_match(term: NodeSelectorTerm) -> bool:
    """Return whether a term is one that can match: not empty, and nothing in it that Kubernetes can't parse."""
    try:
        for requirement in term.match_expressions:
            check_requirement(requirement)
    except SelectorError:
        return False
    return fields_well_formed(term) and bool(term.match_expressions or term.match_fields)


def fields_well_formed(term: NodeSelectorTerm) -> bool:
    """Return whether Kubernetes can parse the conditions of a term on fields."""
    return all(one.operator in ("In", "NotIn") and len(one.values) == 1 for one in term.match_fields)


def _expression_matches(nodes: Nodes, requirement: Requirement, rows: Int64) -> Bool:
    charge_rows(len(rows), 2)
    charge(len(requirement.values))
    column = nodes.label_column(requirement.key)[rows]
    present: Bool = column != UNKNOWN
    match requirement.operator:
        case "In" | "NotIn":
            known = (nodes.known_value(value) for value in requirement.values)
            wanted = np.array([value for value in known if value != UNKNOWN], np.int64)
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


def _compares(nodes: Nodes, requirement: Requirement, column: Int64) -> Bool:
    bound = as_int64(requirement.values[0])
    result = np.zeros(len(column), np.bool_)
    for value_id in np.unique(column[column != UNKNOWN]):
        charge_rows(len(column))
        value = as_int64(nodes.values[int(value_id)])
        if value is not None and bound is not None:
            result |= (column == value_id) & (value > bound if requirement.operator == "Gt" else value < bound)
    return result


def _field_matches(nodes: Nodes, requirement: Requirement, rows: Int64) -> Bool:
    # Nodes have one field; of any other the value is empty.
    wanted = requirement.values[0]
    inside: Bool = np.full(len(rows), wanted == "", np.bool_)
    if requirement.key == "metadata.name":
        inside = rows == nodes.row_of.get(wanted, UNKNOWN)
    return inside if requirement.operator == "In" else ~inside


def _features(nodes: Nodes, cls: PodClass, rows: Int64) -> Bool:
    wanted = cls.constraints.features if cls.constraints else frozenset()
    if not wanted:
        return np.ones(len(rows), np.bool_)
    return np.array([wanted <= nodes.features[int(row)] for row in rows], np.bool_)


def _model(nodes: Nodes, cls: PodClass, rows: Int64) -> Bool:
    if not cls.models:
        return np.ones(len(rows), np.bool_)
    wanted = np.array([nodes.model_id(model) for model in cls.models], np.int64)
    accepted: Bool = np.isin(nodes.model[rows], wanted[wanted != UNKNOWN])
    return accepted


def _sharing(nodes: Nodes, cls: PodClass, rows: Int64) -> Bool:
    return nodes.gpu_sharing[rows] if cls.share else np.ones(len(rows), np.bool_)


def _bandwidth(nodes: Nodes, cls: PodClass, rows: Int64) -> Bool:
    known = nodes.bandwidth[rows]
    enough: Bool = (known == UNKNOWN) | (known >= cls.bandwidth)
    return enough


def _not_kept(nodes: Nodes, _: PodClass, rows: Int64) -> Bool:
    return ~nodes.spare[rows]


FILTERS: Final[Sequence[Filter]] = (
    Filter(NodeReason.UNSCHEDULABLE, _schedulable),
    Filter(NodeReason.NOT_READY, _ready),
    Particular(NodeReason.REFUSED, _not_refusing, lambda cls: bool(cls.shunned)),
    Filter(NodeReason.TAINT, tolerates),
    Particular(NodeReason.AFFINITY, matches_affinity, lambda cls: bool(cls.selector or cls.affinity)),
    Particular(NodeReason.FEATURES, _features, lambda cls: cls.constraints is not None),
    Particular(NodeReason.GPU_MODEL, _model, lambda cls: bool(cls.models)),
    Particular(NodeReason.SHARING, _sharing, lambda cls: bool(cls.share)),
    Particular(NodeReason.BANDWIDTH, _bandwidth, lambda cls: bool(cls.bandwidth)),
    Particular(NodeReason.SPARE, _not_kept, lambda cls: cls.ordinary),
)


def eligible(nodes: Nodes, cls: PodClass, rows: Int64, filters: Sequence[Filter] = FILTERS) -> Bool:
    """Return which rows the class may use (bool of the length of ``rows``)."""
    accepted = nodes.exists[rows]
    for rule in filters:
        if not isinstance(rule, Particular) or rule.concerns(cls):
            accepted = accepted & rule.accepts(nodes, cls, rows)
    return accepted
