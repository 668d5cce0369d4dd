"""The query that places bound members of a workload again, as they are once they have left their nodes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from topo_scheduler.api.reasons import NodeReason
from topo_scheduler.scheduling.attempts import Attempts
from topo_scheduler.scheduling.placing.model.placement_query import PlacementQuery
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.pods.classes import Cap
from topo_scheduler.state.pods.workloads import Member, MembersByClass, Stage, Workload


class GoneError(Exception):
    """A pod that would move has disappeared."""


def replacement_query(
    attempts: Attempts,
    world: World,
    workload: Workload,
    members: Sequence[Member],
    rows: Sequence[int],
    reserved: Mapping[str, str],
) -> tuple[MembersByClass, PlacementQuery]:
    """Return the groups and the query for members of one workload that leave ``rows``.

    Args:
        attempts: makes groups and query.
        world: the state.
        workload: the workload.
        members: those that leave.
        rows: their nodes.
        reserved: nodes that are reserved for replacements of the workload, by uid of the pod that leaves. Its other
            members count there, not where they are now.

    Raises:
        PluginError: a plugin failed, so there is no result.
    """
    groups, _, _ = attempts.groups(workload, members)
    groups = _in_exchange(world, groups, rows)
    query = attempts.ask(workload, groups, (), world.layout)
    replaced = {member.uid for member in members}
    row_of = world.nodes.row_of
    nodes = {member.uid: member.node for member in workload.members.values() if member.stage is not Stage.PENDING}
    if workload.gang:
        nodes |= reserved
    running = [row_of[node] for uid, node in nodes.items() if uid not in replaced and node in row_of]
    return groups, replace(query, running=sorted(running))


def _in_exchange(world: World, groups: MembersByClass, rows: Sequence[int]) -> MembersByClass:
    """Return groups without the quotas that already count the leaving pods: replacements need no more of them."""
    domains = world.domains

    def counts(cap: Cap) -> bool:
        return cap.reason is NodeReason.QUOTA and (
            not cap.domain or all(row >= 0 and bool(domains.rows(cap.domain)[row]) for row in rows)
        )

    return [
        (replace(cls, caps=tuple(cap for cap in cls.caps if not counts(cap))) if cls.caps else cls, members)
        for cls, members in groups
    ]
