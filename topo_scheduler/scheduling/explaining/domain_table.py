"""Every domain of every level: its free GPUs, how many members it takes, and the reasons that exclude its nodes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from topo_scheduler.api.reasons import NodeReason
from topo_scheduler.scheduling.explaining.blocked_class import BlockedClass
from topo_scheduler.scheduling.placing.model.class_views import ClassView
from topo_scheduler.scheduling.placing.model.placement_query import PlacementQuery
from topo_scheduler.scheduling.placing.model.segments import in_one_piece
from topo_scheduler.scheduling.placing.model.size_rule import leaf_fits
from topo_scheduler.scheduling.placing.planner import Planner
from topo_scheduler.scheduling.rules.feasible import rejections
from topo_scheduler.scheduling.rules.volume_limits import ClaimError
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.nodes.resources import GPU
from topo_scheduler.state.topology.fabric import Layout, Path


@dataclass(frozen=True, slots=True)
class DomainVerdict:
    """One domain.

    Attributes:
        level: level of the domain.
        path: names of the domains from the outermost level down to this one.
        nodes: nodes in the domain.
        free_gpus: free GPUs of nodes that are ready and schedulable.
        room: members that the domain takes, leaf by leaf; 0 if a class has no node. For a gang on nodes of one GPU
            model, those of the model with most room, as the decision counts them. For a gang in segments that are all
            alike, only whole segments count, from the level of the segments outwards.
        reasons: nodes by the reason that excludes members from them, counted as for the cluster. Nodes that could take
            a member count for `NodeReason.DOMAIN`.
    """

    level: str
    path: Path
    nodes: int
    free_gpus: int
    room: int
    reasons: Mapping[str, int]


def domain_table(
    planner: Planner, ask: PlacementQuery, layout: Layout, blocked: BlockedClass | None
) -> tuple[DomainVerdict, ...]:
    """Return every domain, the outermost level first, for the class that has no node or the most demanding class."""
    if not len(layout.order):
        return ()
    nodes, order = planner.nodes, layout.order
    view = planner.views.get(blocked.cls if blocked is not None else ask.groups[0][0])
    usable = nodes.ready[order] & ~nodes.unschedulable[order]
    free = np.where(usable, np.maximum(0, nodes.allocatable[order, GPU] - nodes.requested[order, GPU]), 0)
    rooms = _rooms(planner, ask, layout, [] if blocked is not None else planner.views_for(ask))
    masks: dict[str, Int64] = {}
    unrejected = np.ones(len(order), np.bool_)
    try:
        for reason, rejected in rejections(planner.around, view.cls, order):
            if rejected.any():
                masks[reason] = masks.get(reason, np.zeros(len(order), np.int64)) + rejected
                unrejected &= ~rejected
    except ClaimError as error:
        masks = {str(error): np.ones(len(order), np.int64)}
        unrejected[:] = False
    if unrejected.any():
        masks[NodeReason.DOMAIN] = unrejected.astype(np.int64)
    verdicts: list[DomainVerdict] = []
    for depth in range(1, layout.depth + 1):
        starts = layout.domains[depth][:-1]
        first_positions = layout.offsets[starts]
        free_gpus = np.add.reduceat(free, first_positions).tolist()
        domain_rooms = rooms[depth - 1].tolist()
        sizes = np.diff(np.append(first_positions, len(order))).tolist()
        by_reason = {reason: np.add.reduceat(mask, first_positions).tolist() for reason, mask in masks.items()}
        verdicts += [
            DomainVerdict(
                level=layout.levels[depth - 1],
                path=layout.domain_path(depth, index),
                nodes=sizes[index],
                free_gpus=int(free_gpus[index]),
                room=int(domain_rooms[index]),
                reasons={reason: counts[index] for reason, counts in by_reason.items() if counts[index]},
            )
            for index in range(len(starts))
        ]
    return tuple(verdicts)


def _rooms(planner: Planner, ask: PlacementQuery, layout: Layout, views: Iterable[ClassView]) -> list[Int64]:
    """Return for each level, the outermost first, the members that its domains take (int64[domains])."""
    segments = layout.domains[layout.depth]
    in_pieces = ask.segment > 1 and not in_one_piece(ask, layout)
    if in_pieces:
        segments = layout.domains[ask.segments.depth or layout.depth]
    rooms = [np.zeros(len(layout.domains[depth]) - 1, np.int64) for depth in range(1, layout.depth + 1)]
    for view in views:
        room = leaf_fits(view, layout, planner.limits_for(ask))
        whole_segments = np.add.reduceat(room, segments[:-1]) // ask.segment * ask.segment if in_pieces else room
        for depth, best in enumerate(rooms, 1):
            starts = layout.domains[depth][:-1]
            if len(starts) < len(segments):
                domain_rooms = np.add.reduceat(whole_segments, np.searchsorted(segments, starts))
            else:
                domain_rooms = np.add.reduceat(room, starts)
            np.maximum(best, domain_rooms, out=best)
    return rooms
