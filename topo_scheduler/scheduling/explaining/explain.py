"""Why a workload is pending: nodes by reason, domains by reason, and one sentence in plain words."""

from typing import Final

import numpy as np

from topo_scheduler.api.reasons import NodeReason
from topo_scheduler.api.text import counted, plural
from topo_scheduler.scheduling.explaining.blocked_class import BlockedClass
from topo_scheduler.scheduling.explaining.close_gpus import close_gpu_shortage
from topo_scheduler.scheduling.explaining.dominant import BLOCK, shortage
from topo_scheduler.scheduling.explaining.segment_shortage import segment_shortage
from topo_scheduler.scheduling.placing.checks.unknown_gpus import unknown_gpus
from topo_scheduler.scheduling.placing.checks.unknown_models import unknown_models
from topo_scheduler.scheduling.placing.constrained.constrained_gang import is_constrained, most_held
from topo_scheduler.scheduling.placing.model.class_views import ClassView
from topo_scheduler.scheduling.placing.model.placement_query import PlacementFailure, PlacementQuery
from topo_scheduler.scheduling.placing.model.second_tree import convert_query
from topo_scheduler.scheduling.placing.model.segments import in_one_piece, seen_by
from topo_scheduler.scheduling.placing.model.size_rule import domain_depth, in_words, leaf_fits
from topo_scheduler.scheduling.placing.planner import Planner
from topo_scheduler.scheduling.rules.feasible import rejections
from topo_scheduler.state.decision import SizeRule
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.pods.classes import PodClass
from topo_scheduler.state.topology.fabric import Layout, Path
from topo_scheduler.state.topology.topology_merge import crossed

MAX_DOMAINS: Final = 16
"""Domains with a reason in the result, those closest to enough room first."""


def node_reasons(planner: Planner, ask: PlacementQuery, cls: PodClass) -> dict[str, int]:
    """Return how many nodes each reason rejects for a class of the query.

    A node counts for the first filter that rejects it, as in kube-scheduler. If it lacks several resources, it counts
    for each. For a gang, nodes that could take a member count for `NodeReason.DOMAIN`.

    Raises:
        ClaimError: a claim is invalid, so that no node is feasible.
    """
    view = planner.views.get(cls)
    rows = np.flatnonzero(planner.nodes.exists).astype(np.int64)
    counts: dict[str, int] = {}
    unrejected = np.ones(len(rows), np.bool_)
    for reason, rejected in rejections(planner.around, view.cls, rows):
        if rejected.any():
            counts[reason] = counts.get(reason, 0) + int(rejected.sum())
            unrejected &= ~rejected
    if ask.gang and (fitting := int((view.fit[rows[unrejected]] > 0).sum())):
        counts[NodeReason.DOMAIN] = fitting
    return counts


def domain_reasons(
    planner: Planner, ask: PlacementQuery, layout: Layout, failure: PlacementFailure
) -> tuple[tuple[Path, str], ...]:
    """Return the domains of the failed rule that come closest, each with the reason why it was not enough."""
    rule = failure.rule
    if failure.elsewhere is not None:
        rule, woven = failure.elsewhere
        second_layout = crossed(layout, woven)
        ask, layout = convert_query(ask, layout, second_layout), second_layout
    if rule is None:
        return ()
    layout = seen_by(ask, layout)
    held = _domain_members(planner, ask, layout, rule)
    order = np.argsort(-held, kind="stable")[:MAX_DOMAINS]
    depth = domain_depth(layout, rule)
    size, unit = (ask.segment, "segments") if ask.segment > 1 else (1, "pods")
    # For a constrained gang only an upper bound is known.
    holds = "holds at most" if is_constrained(ask.groups) else "holds"
    return tuple(
        (layout.domain_path(depth, int(index)), f"{holds} {int(held[index]) // size} of {ask.members // size} {unit}")
        for index in order
    )


def sentence(
    planner: Planner, ask: PlacementQuery, layout: Layout, failure: PlacementFailure, blocked: BlockedClass | None
) -> str:
    """Return the reason in one sentence, after another if a class has no node by itself."""
    return " ".join(filter(None, (blocked.text if blocked else "", _of_gang(planner, ask, layout, failure, blocked))))


def _of_gang(
    planner: Planner, ask: PlacementQuery, layout: Layout, failure: PlacementFailure, blocked: BlockedClass | None
) -> str:
    rule, is_apart = failure.rule, blocked is not None and bool(blocked.text)
    if failure.too_large and blocked is not None and blocked.lasting:
        # The gang is not too large: it would be too large at any size that includes the class.
        unknown = "; ".join(filter(None, (unknown_models(planner.nodes, ask), unknown_gpus(planner.nodes, ask))))
        return f"{unknown[0].upper()}{unknown[1:]}." if unknown else ""
    if (close := close_gpu_shortage(planner, ask)) and (not failure.sentence or rule is None):
        return f"{close}."
    if failure.sentence:
        text = f"{failure.sentence[0].upper()}{failure.sentence[1:]}"
        if rule is None or ask.running or not is_constrained(ask.groups) or is_apart:
            return f"{text}."
        layout = seen_by(ask, layout)
        held = _domain_members(planner, ask, layout, rule)
        return f"{text}; {_most_free(layout, rule, held, 'at most ')}."
    if rule is None or not ask.gang:
        return ""
    gpus = ask.groups[0][0].gpus if len(ask.groups) == 1 else 0
    gpus_text = f" of {counted(gpus, 'GPU')}" if gpus else ""
    split = ask.in_segments and not in_one_piece(ask, layout) and not is_constrained(ask.groups)
    layout = seen_by(ask, layout)
    segments = f" in segments of {ask.segment}" if ask.segment > 1 else " in segments" if ask.in_segments else ""
    members_text = f"{counted(ask.members, 'pod')}{gpus_text}{segments}"
    if ask.running:
        running = counted(len(ask.running), "member", "of this gang that runs", "of this gang that run")
        return f"No room for {members_text} near the {running}."
    domains_text = f"{rule.leaves} {plural(layout.levels[-1])} in 1 {rule.domain}"
    if rule.leaves == 1:
        domains_text = f"1 {in_words(rule.domain, layout)}"
    one_model = " on nodes of one GPU model" if len(planner.views_for(ask)) > 1 else ""
    need_text = f"The gang needs {domains_text} with room for {members_text}{one_model}{planner.limits_for(ask).within}"
    shortage_text = shortage(planner, ask, layout, rule) if not is_constrained(ask.groups) else ""
    if (
        split
        and (BLOCK in shortage_text or not shortage_text)
        and (segment_text := segment_shortage(planner, ask, layout, rule))
    ):
        return f"{segment_text[0].upper()}{segment_text[1:]}. {need_text}."
    if BLOCK in shortage_text:
        return f"{shortage_text}. {need_text}."
    if is_apart:
        return f"{need_text}."  # the room for other classes does not matter
    held = _domain_members(planner, ask, layout, rule)
    most_free = _most_free(layout, rule, held)
    return f"{shortage_text}. {need_text}; {most_free}." if shortage_text else f"{need_text}; {most_free}."


def _most_free(layout: Layout, rule: SizeRule, held: Int64, at_most: str = "") -> str:
    best = int(held.argmax()) if len(held) else 0
    if not len(held) or not held[best]:
        return "none has room"
    where = "/".join(layout.domain_path(domain_depth(layout, rule), best)) or "the cluster"
    return f"the most free is {where} with room for {at_most}{int(held[best])}"


def _domain_members(planner: Planner, ask: PlacementQuery, layout: Layout, rule: SizeRule) -> Int64:
    """Return the members that each domain takes now in as many leaves as the rule allows (int64[domains])."""
    if is_constrained(ask.groups):
        return most_held(planner, ask, layout, domain_depth(layout, rule), rule.leaves)
    views = planner.views_for(ask)
    held: Int64 = np.max([_domain_members_of_view(planner, view, ask, layout, rule) for view in views], axis=0)
    return held


def _domain_members_of_view(
    planner: Planner, view: ClassView, ask: PlacementQuery, layout: Layout, rule: SizeRule
) -> Int64:
    fits = leaf_fits(view, layout, planner.limits_for(ask), segment=ask.segment) * ask.segment
    offsets = layout.domains[domain_depth(layout, rule)]
    # The fullest leaves of each domain first, as many of them as the rule allows.
    domain = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    order = np.lexsort((-fits, domain))
    is_counted = np.arange(len(fits)) - offsets[:-1][domain] < rule.leaves
    sums = np.concatenate((np.zeros(1, np.int64), np.cumsum(np.where(is_counted, fits[order], 0), dtype=np.int64)))
    held: Int64 = sums[offsets[1:]] - sums[offsets[:-1]]
    return held
