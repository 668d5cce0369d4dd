"""The class of a gang's pods that has no node by itself: then it, not the gang, is the reason."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from topo_scheduler.api.reasons import NodeReason
from topo_scheduler.scheduling.placing.constrained.constrained_gang import affinity_met_by_members
from topo_scheduler.scheduling.placing.model.placement_query import PlacementQuery
from topo_scheduler.scheduling.placing.planner import Planner
from topo_scheduler.scheduling.rules.device_claims import device_rejections
from topo_scheduler.scheduling.rules.feasible import rejections
from topo_scheduler.scheduling.rules.interpod_filters import MET_LATER
from topo_scheduler.scheduling.rules.volume_limits import ClaimError
from topo_scheduler.scheduling.rules.volumes import uses_volumes, volume_rejections
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.pods.classes import PodClass

MAX_EXAMINED_CLASSES: Final = 16
"""Classes without a node of which the reasons are examined at most. Problems of claims are found in all classes."""


@dataclass(frozen=True, slots=True)
class BlockedClass:
    """A class without a node, wherever the other members go.

    Attributes:
        cls: the class.
        error: problem of a claim, which excludes all nodes; empty if the nodes are excluded for other reasons.
        lasting: whether it would have no node even if the nodes were empty.
        text: how many of the pods are concerned, as a sentence; empty if that says nothing new.
    """

    cls: PodClass
    error: str
    lasting: bool
    text: str


def blocked_class(planner: Planner, ask: PlacementQuery) -> BlockedClass | None:
    """Return the class that has no node by itself, first one with a problem of a claim; None if each has a node.

    Raises:
        PluginError: a filter of a plugin failed.
    """
    rows = np.flatnonzero(planner.nodes.exists).astype(np.int64)
    without_node = [(cls, count) for cls, count in ask.groups if not planner.views.get(cls).fit.any()]
    problems = [(cls, count, _claim_problem(planner, cls, rows)) for cls, count in without_node]
    if problems := [problem for problem in problems if problem[2]]:
        cls, _, error = problems[0]
        return BlockedClass(cls, error, True, _text(ask, rows, sum(count for _, count, _ in problems)))
    if len(ask.groups) == 1:
        return None
    blocked = list(_excluded(planner, ask, rows, without_node))
    if not blocked:
        return None
    cls, _, error = blocked[0]
    view = planner.views.get(cls)
    lasting = bool(error) or not view.empty_fit.any()
    # Of the most demanding class, a lack of room is what the reasons of the gang are about anyway.
    is_new = lasting or not view.open.any() or cls is not ask.groups[0][0]
    pods, examined = sum(count for _, count, _ in blocked), without_node[:MAX_EXAMINED_CLASSES]
    if len(without_node) == len(ask.groups) and len(blocked) == len(examined):
        is_new = False  # all of those examined, and no other pod has a node either
    at_least = len(without_node) > len(examined)
    text = _text(ask, rows, pods, at_least=at_least) if is_new else ""
    return BlockedClass(cls, error, lasting, text)


def _claim_problem(planner: Planner, cls: PodClass, rows: Int64) -> str:
    if not (uses_volumes(cls) or cls.claims):
        return ""
    any_row = rows[:1]  # most problems of claims do not depend on the node
    try:
        for _ in volume_rejections(planner.around, cls, any_row, (), np.ones(len(any_row), np.bool_)):
            pass
        for _ in device_rejections(planner.around, cls, any_row):
            pass
    except ClaimError as error:
        return str(error)
    return ""


def _excluded(
    planner: Planner, ask: PlacementQuery, rows: Int64, without_node: list[tuple[PodClass, int]]
) -> Iterator[tuple[PodClass, int, str]]:
    """Yield the classes that no other member can help to a node, first those to which the rules close all nodes.

    Each comes with its pods, and with the problem of a claim if that excludes all nodes.
    """
    without_node = sorted(without_node, key=lambda group: bool(planner.views.get(group[0]).open.any()))
    for cls, count in without_node[:MAX_EXAMINED_CLASSES]:
        try:
            reasons = {reason for reason, rejected in rejections(planner.around, cls, rows) if rejected.any()}
        except ClaimError as error:
            yield cls, count, str(error)
            continue
        met_later = reasons & MET_LATER
        if NodeReason.POD_AFFINITY in met_later and not affinity_met_by_members(planner.around, cls, ask):
            met_later -= {NodeReason.POD_AFFINITY}
        if not met_later:
            yield cls, count, ""


def _text(ask: PlacementQuery, rows: Int64, pods: int, *, at_least: bool = False) -> str:
    """Return how many pods fit no node, as a sentence; empty if all do, or if there is no node at all."""
    if pods >= ask.members or not len(rows):
        return ""
    count = f"At least {pods}" if at_least else f"{pods}"
    return f"{count} of the {ask.members} pods to place {'fits' if pods == 1 else 'fit'} no node."
