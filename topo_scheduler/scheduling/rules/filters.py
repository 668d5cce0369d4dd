"""Filters: the nodes that a class of pods may use, independent of free resources and other pods.

A filter works on a batch: its input is the node table, a class and rows, its output one bool per row. `FILTERS` has the
filters of the built-in plugin in order of their reasons: a node counts for the first filter that rejects it. Filters of
other plugins come after them.
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
from topo_scheduler.scheduling.rules.gpu_filters import (
    architecture_accepts,
    architecture_is_known,
    asks_architecture,
    asks_memory,
    asks_profile,
    count_accepts,
    counts_gpus,
    memory_accepts,
    memory_is_known,
    profile_accepts,
)
from topo_scheduler.state.nodes.node_table import UNKNOWN, Int64
from topo_scheduler.state.operation_budget import charge, charge_rows
from topo_scheduler.state.pods.classes import PodClass
from topo_scheduler.state.pods.selectors import SelectorError, as_int64, check_requirement

Bool = npt.NDArray[np.bool_]
UNSCHEDULABLE_TAINT: Final = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")


@dataclass(frozen=True, slots=True)
class Particular(Filter):
    """A filter that accepts every node for classes that it does not concern, so it is skipped for these.

    ``by_gpu_needs``: it concerns no class without `PodClass.gpu_needs`. Most classes have none: one look skips all.
    """

    concerns: Callable[[PodClass], bool]
    by_gpu_needs: bool = False


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
        (not toleration.effect or toleration.effect == taint.effect)
        and (not toleration.key or toleration.key == taint.key)
        and (
            toleration.operator == "Exists"
            or (toleration.operator in ("Equal", "") and toleration.value == taint.value)
        )
        for toleration in tolerations
    )


def tolerates(nodes: Nodes, cls: PodClass, rows: Int64) -> Bool:
    """Return the rows without a taint that excludes the class."""
    if len(nodes.taint_sets) == 1:
        return np.ones(len(rows), np.bool_)  # the set without taints
    charge(1 + len(nodes.taint_sets) * len(cls.tolerations) // 4)
    accepted = np.array(
        [
            all(
                taint.effect not in ("NoSchedule", "NoExecute") or tolerated(taint, cls.tolerations) for taint in taints
            )
            for taints in nodes.taint_sets
        ],
        np.bool_,
    )
    return accepted[nodes.taint_set[rows]]


def matches_affinity(nodes: Nodes, cls: PodClass, rows: Int64) -> Bool:
    """Return the rows that match the node selector and the required node affinity of the class."""
    accepted = np.ones(len(rows), np.bool_)
    for key, value in cls.selector:
        charge_rows(len(rows))
        column, required_value = nodes.label_column(key)[rows], nodes.known_value(value)
        # Values that no node has are not stored, as pods may ask for any value.
        accepted &= (column == required_value) & (required_value != UNKNOWN)
    required = cls.affinity.required if cls.affinity else None
    if required is not None:
        matched = np.zeros(len(rows), np.bool_)
        for term in required.node_selector_terms:
            matched |= term_matches(nodes, term, rows)
        accepted &= matched
    return accepted


def term_matches(nodes: Nodes, term: NodeSelectorTerm, rows: Int64) -> Bool:
    """Return the rows that a node selector term matches; an empty term matches none."""
    if not can_match(term):
        return np.zeros(len(rows), np.bool_)
    matched = np.ones(len(rows), np.bool_)
    for requirement in term.match_expressions:
        matched &= _expression_matches(nodes, requirement, rows)
    for requirement in term.match_fields:
        matched &= _field_matches(nodes, requirement, rows)
    return matched


@dataclass(frozen=True, slots=True)
class TermSelector:
    """Returns whether a node selector term matches a row."""

    nodes: Nodes

    def __call__(self, term: NodeSelectorTerm, row: int) -> bool:
        """Return whether the term matches."""
        return bool(term_matches(self.nodes, term, np.array([row], np.int64))[0])


@lru_cache(maxsize=16_384)  # volumes of 5,000 nodes have a term each; `Engine` clears the cache after large pods
def can_match(term: NodeSelectorTerm) -> bool:
    """Return whether a term can match any node: it is not empty, and Kubernetes can parse all of it."""
    try:
        for requirement in term.match_expressions:
            check_requirement(requirement)
    except SelectorError:
        return False
    return fields_well_formed(term) and bool(term.match_expressions or term.match_fields)


def fields_well_formed(term: NodeSelectorTerm) -> bool:
    """Return whether Kubernetes can parse the field conditions of a term."""
    return all(
        requirement.operator in ("In", "NotIn") and len(requirement.values) == 1 for requirement in term.match_fields
    )


def _expression_matches(nodes: Nodes, requirement: Requirement, rows: Int64) -> Bool:
    charge_rows(len(rows), 2)
    charge(len(requirement.values))
    column = nodes.label_column(requirement.key)[rows]
    present: Bool = column != UNKNOWN
    match requirement.operator:
        case "In" | "NotIn":
            value_ids = (nodes.known_value(value) for value in requirement.values)
            wanted_values = np.array([value for value in value_ids if value != UNKNOWN], np.int64)
            in_values: Bool = np.isin(column, wanted_values)
            # As in Kubernetes, a node without the label satisfies NotIn.
            return in_values if requirement.operator == "In" else ~in_values
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
    # Nodes have one field; the value of any other field is empty.
    wanted_value = requirement.values[0]
    equal: Bool = np.full(len(rows), wanted_value == "", np.bool_)
    if requirement.key == "metadata.name":
        equal = rows == nodes.row_of.get(wanted_value, UNKNOWN)
    return equal if requirement.operator == "In" else ~equal


def _features(nodes: Nodes, cls: PodClass, rows: Int64) -> Bool:
    required = cls.constraints.features if cls.constraints else frozenset()
    if not required:
        return np.ones(len(rows), np.bool_)
    return np.array([required <= nodes.features[int(row)] for row in rows], np.bool_)


def _model(nodes: Nodes, cls: PodClass, rows: Int64) -> Bool:
    if not cls.models:
        return np.ones(len(rows), np.bool_)
    required = np.array([nodes.model_id(model) for model in cls.models], np.int64)
    accepted: Bool = np.isin(nodes.model[rows], required[required != UNKNOWN])
    return accepted


def _sharing(nodes: Nodes, cls: PodClass, rows: Int64) -> Bool:
    return nodes.gpu_sharing[rows] if cls.share else np.ones(len(rows), np.bool_)


def _bandwidth(nodes: Nodes, cls: PodClass, rows: Int64) -> Bool:
    capacity = nodes.bandwidth[rows]
    enough: Bool = (capacity == UNKNOWN) | (capacity >= cls.bandwidth)
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
    Particular(NodeReason.GPU_COUNT, count_accepts, counts_gpus, by_gpu_needs=True),
    Particular(NodeReason.GPU_MEMORY_UNKNOWN, memory_is_known, asks_memory, by_gpu_needs=True),
    Particular(NodeReason.GPU_MEMORY, memory_accepts, asks_memory, by_gpu_needs=True),
    Particular(NodeReason.GPU_ARCHITECTURE_UNKNOWN, architecture_is_known, asks_architecture, by_gpu_needs=True),
    Particular(NodeReason.GPU_ARCHITECTURE, architecture_accepts, asks_architecture, by_gpu_needs=True),
    Particular(NodeReason.MIG_PROFILE, profile_accepts, asks_profile, by_gpu_needs=True),
    Particular(NodeReason.SHARING, _sharing, lambda cls: bool(cls.share)),
    Particular(NodeReason.BANDWIDTH, _bandwidth, lambda cls: bool(cls.bandwidth)),
    Particular(NodeReason.SPARE, _not_kept, lambda cls: cls.ordinary),
)


def eligible(nodes: Nodes, cls: PodClass, rows: Int64, filters: Sequence[Filter] = FILTERS) -> Bool:
    """Return the rows that the class may use (bool of the length of ``rows``)."""
    accepted, no_gpu_needs = nodes.exists[rows], cls.gpu_needs is None
    for rule in filters:
        if isinstance(rule, Particular) and ((rule.by_gpu_needs and no_gpu_needs) or not rule.concerns(cls)):
            continue
        accepted = accepted & rule.accepts(nodes, cls, rows)
    return accepted
