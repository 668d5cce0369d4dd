"""Gangs that ask for bandwidth: placed where no link would have to carry more than it can.

The best place is looked for as if links carried anything. If they can't carry the gang there, it is looked for again
within sets of rows where they can (`within_links`), and what is found is checked against every link. The first that
holds is taken. Exact for members of one class that take a node each and share one domain of the level above the leaves;
beyond that a heuristic, which may let a gang wait where there is a place.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from topo_scheduler.api.annotations import Enforcement
from topo_scheduler.scheduling.placing.ask import GangTraffic, Placement, PlacementFailure, PlacementQuery
from topo_scheduler.scheduling.placing.second_tree import domains_apart
from topo_scheduler.scheduling.placing.within_links import TRIES, room_now, row_sets
from topo_scheduler.scheduling.rules.filters import Bool
from topo_scheduler.scheduling.rules.neighbours import settled_links
from topo_scheduler.state.crossing import depth_in
from topo_scheduler.state.decision import SizeRule
from topo_scheduler.state.fabric import Layout, Path
from topo_scheduler.state.links import Links, LinkShortage
from topo_scheduler.state.nodes import Int64
from topo_scheduler.state.wiring import readable
from topo_scheduler.state.workloads import Member, Workload

if TYPE_CHECKING:
    from topo_scheduler.scheduling.placing.site import PlanningContext

Plan = Callable[[PlacementQuery, Layout, float], Placement | PlacementFailure]


def bandwidth_of(workload: Workload, members: Iterable[Member]) -> int:
    """Return the Mbit/s a node that members placed together ask for: the most that one of them does; 0 for no gang."""
    return max((member.cls.bandwidth for member in members), default=0) if workload.gang else 0


def traffic_of(workload: Workload, members: Iterable[Member]) -> GangTraffic | None:
    """Return what members that are placed together send, None where they ask for no bandwidth."""
    bandwidth = bandwidth_of(workload, members)
    return GangTraffic((workload.namespace, workload.id), bandwidth) if bandwidth else None


def plan_within_links(
    plan: Plan, site: "PlanningContext", ask: PlacementQuery, layout: Layout, now: float
) -> Placement | PlacementFailure:
    """Find a place that links can carry.

    Args:
        plan: finds the best place on the rows that the ask leaves open, whatever links carry.
        site: on which it is made.
        ask: what is to be placed, with its traffic.
        layout: the fabric.
        now: seconds.

    Raises:
        PluginError: a plugin failed, so that nothing can be said.
    """
    links = settled_links(site.around, layout)
    outcome = plan(ask, layout, now)
    if isinstance(outcome, PlacementFailure):
        return outcome if outcome.rule is not None else _never(plan, ask, layout, now) or outcome
    short = _short(links, ask, outcome)
    if not short:
        return outcome
    for rows in _row_sets(site, links, ask, layout, outcome.rule):
        found = plan(_on(ask, rows), layout, now)
        if isinstance(found, Placement) and not _short(links, ask, found):
            return found
    return PlacementFailure(_sentence(links, short), outcome.rule, _domains(links, short))


def check_links(links: Links, ask: PlacementQuery, placement: Placement) -> str:
    """Return which link a placement would take beyond what it carries, or an empty string."""
    if ask.traffic is None:
        return ""
    short = _short(links, ask, placement)
    return _shortage(links, short[0]) if short else ""


def _short(links: Links, ask: PlacementQuery, placement: Placement) -> list[LinkShortage]:
    assert ask.traffic is not None
    rows = (row for group in placement.rows for row in group)
    return links.shortages(ask.traffic.gang, rows, ask.traffic.bandwidth)


def _on(ask: PlacementQuery, rows: Bool | None) -> PlacementQuery:
    assert ask.traffic is not None
    return replace(ask, traffic=replace(ask.traffic, open=rows))


def _row_sets(
    site: "PlanningContext", links: Links, ask: PlacementQuery, layout: Layout, rule: SizeRule
) -> Iterator[Bool]:
    """Yield sets of rows in which to look: where networks of nodes will do, then where uplinks will, then one node."""
    assert ask.traffic is not None
    room = room_now(links, ask.traffic)
    yield room.networks
    free = ask.enforcement is Enforcement.PREFERRED or bool(ask.running)
    depths = sorted({depth_in(layout, layout.network, depth) for depth in range(rule.depth + 1)}, reverse=True)
    for whole in _fits(site, ask):
        for fit in islice(domains_apart(ask, layout, whole), TRIES):
            for depth in depths if free else depths[:1]:
                yield from islice(row_sets(room, fit, depth, ask.members), TRIES)
    if len(ask.groups) == 1 and not len(room.home):
        # On one node nothing is sent. Of those that hold the gang the tightest, then the first.
        for fit in _fits(site, ask):
            rows = layout.order[fit[layout.order] >= ask.members]
            if len(rows):
                chosen = np.zeros(len(fit), np.bool_)
                chosen[rows[int(fit[rows].argmin())]] = True
                yield chosen


def _fits(site: "PlanningContext", ask: PlacementQuery) -> Iterator[Int64]:
    """Yield how many members each row takes, once a GPU model that the gang may keep to (int64[rows])."""
    if len(ask.groups) == 1:
        for view in site.views_for(ask):
            yield view.fit
    else:
        yield np.sum([site.views.get(cls).fit for cls, _ in ask.groups], axis=0)


# ---------------------------------------------------------------- in words


def _never(plan: Plan, ask: PlacementQuery, layout: Layout, now: float) -> PlacementFailure | None:
    """Return the reason of a gang that links could not even carry by itself, None where they are not the cause."""
    assert ask.traffic is not None
    if plan(replace(ask, traffic=None), layout, now).rule is None:
        return None
    return PlacementFailure(
        f"no domain could hold the gang's {ask.total} pods even if it were empty and carry"
        f" {readable(ask.traffic.bandwidth)} Gbit/s a node over its uplinks; ask for less"
    )


def _sentence(links: Links, short: Sequence[LinkShortage]) -> str:
    worst = max(short, key=lambda one: (one.needed - one.left, -one.link))
    return f"there is room for the gang, but not the bandwidth: {_shortage(links, worst)}"


def _shortage(links: Links, short: LinkShortage) -> str:
    return (
        f"{_link(links, short.link)} has {readable(max(0, short.left))} of {readable(short.capacity)} Gbit/s left,"
        f" {readable(short.needed)} needed"
    )


def _link(links: Links, link: int) -> str:
    depth, index = links.wiring.place(link)
    if not depth:
        return f"network of node {links.node_name(index)}"
    return f"uplink of {'/'.join(links.wiring.layout.domain_path(depth, index))}"


def _domains(links: Links, short: Sequence[LinkShortage]) -> tuple[tuple[Path, str], ...]:
    """Return by domain which of its links is short."""
    found: dict[Path, str] = {}
    layout = links.wiring.layout
    for one in short:
        depth, index = links.wiring.place(one.link)
        path = layout.domain_path(depth, index) if depth else layout.paths[int(layout.leaf_of_row[index])]
        found.setdefault(path, _shortage(links, one))
    return tuple(found.items())
