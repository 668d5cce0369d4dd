"""Segments: members of consecutive ranks that must share a leaf, such as the ranks of a tensor-parallel group.

A gang with identical segments is placed like one of single members: a leaf holds as many segments as its room divided
by their size. Ranks follow the order of the fabric, so neighbouring segments are near each other. Lost members go back
to the leaf where the rest of their segment runs.

If members differ or have constraints on each other, or segments differ in size, the query has the segment of each
member; see `kinds`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from topo_scheduler.api.annotations import SEGMENT_SIZE, PlacementRequest
from topo_scheduler.api.groups import LEADER_EXCLUDED, LWS_NAME, LWS_SUBGROUP_POLICY, LWS_SUBGROUP_SIZE
from topo_scheduler.api.objects import Pod
from topo_scheduler.scheduling.intake.ranks import give_ranks
from topo_scheduler.scheduling.placing.model.placement_query import NO_SEGMENTS, Placement, PlacementQuery, Segments
from topo_scheduler.state.pods.pod_groups import LabelledSubgroups
from topo_scheduler.state.pods.workloads import NO_SUBGROUPS, Member, MembersByClass, Stage, Subgroups, Workload
from topo_scheduler.state.topology.fabric import Layout


def segment_of(pod: Pod, request: PlacementRequest, size: int | None) -> tuple[Subgroups, str]:
    """Return the subgroups that a pod's controller defines, and the error in the requested segment size.

    The leader of a LeaderWorkerSet may come on top of a multiple of the subgroup size. Then it is in the first
    subgroup, or in none with the policy LeaderExcluded.
    """
    segment_size = request.segment_size
    if segment_size and size and size % segment_size:
        fitting = ", ".join(str(divisor) for divisor in range(1, size + 1) if size % divisor == 0 and divisor <= 1024)
        error = (
            f"annotation {SEGMENT_SIZE}: {segment_size} does not divide the gang's {size} pods; write one of {fitting}"
        )
        return NO_SUBGROUPS, error
    annotations = pod.metadata.annotations
    annotated = annotations.get(LWS_SUBGROUP_SIZE, "")
    if LWS_NAME not in pod.metadata.labels or not (
        annotated.isascii() and annotated.isdecimal() and len(annotated) < 7
    ):
        return NO_SUBGROUPS, ""
    subgroup_size = int(annotated)
    if not size or not 0 < subgroup_size <= size:
        return NO_SUBGROUPS, ""
    if (size - 1) % subgroup_size == 0 and size > 1:
        return Subgroups(subgroup_size, 1, annotations.get(LWS_SUBGROUP_POLICY) == LEADER_EXCLUDED), ""
    return (Subgroups(subgroup_size) if size % subgroup_size == 0 else NO_SUBGROUPS), ""


def has_segments(workload: Workload) -> bool:
    """Return whether a gang or its controller asks for segments."""
    by_label = workload.group is not None and workload.group.subgroups is not None
    return workload.gang and (max(workload.request.segment_size, workload.subgroups.size) > 1 or by_label)


def segments_of(
    workload: Workload,
    groups: MembersByClass,
    layout: Layout,
    row_of: Mapping[str, int],
    *,
    constrained: bool,
) -> Segments:
    """Return the segments of a gang.

    Args:
        workload: a gang.
        groups: members to place, by class.
        layout: the fabric.
        row_of: rows of nodes by name.
        constrained: whether its members have constraints on each other.
    """
    if not workload.gang:
        return NO_SEGMENTS
    segment_size, level = workload.request.segment_size, workload.request.segment_level
    by_label = workload.group.subgroups if workload.group is not None and not segment_size else None
    subgroups = Subgroups(segment_size) if segment_size else workload.subgroups if by_label is None else Subgroups(1)
    if by_label is None and (subgroups.size < 1 or (subgroups.size == 1 and (not subgroups.ahead or subgroups.apart))):
        return NO_SEGMENTS
    if level and by_label is None and level not in layout.levels:
        return Segments(max(2, subgroups.size), -1, level)
    depth = layout.levels.index(level) + 1 if level else layout.depth
    if by_label is not None:
        network = layout.network  # tiers count levels of the network
        if by_label.tiers > network.depth:
            return NO_SEGMENTS  # the whole fabric is one domain
        depth = layout.levels.index(network.levels[network.depth - by_label.tiers]) + 1
    level = layout.levels[depth - 1]
    depth = depth if depth < layout.depth else 0
    running = [member for member in workload.members.values() if member.stage is not Stage.PENDING]
    if len(groups) == 1 and not constrained and not subgroups.ahead and by_label is None:
        places = (
            _places(workload, running, groups[0][1], subgroups.size, layout.outer(depth), row_of) if running else ()
        )
        return Segments(subgroups.size, depth, level, places)
    ranks = ranks_to_give(workload, [member for _, members in groups for member in members])
    if by_label is not None:
        numbers, running_segments = _by_label(by_label, groups, running, ranks)
    else:
        numbers = _by_rank(subgroups, ranks, count_from_first=not running)
        running_segments = [(subgroups.number(member.rank), member) for member in running if member.rank >= 0]
    parts = tuple(tuple(numbers[member.uid] for member in members) for _, members in groups)
    missing = {number for part in parts for number in part} - {-1}
    homes = _homes([entry for entry in running_segments if entry[0] in missing], layout.outer(depth), row_of)
    return Segments(subgroups.size, depth, level, (), parts, tuple(sorted(homes.items())), subgroups.ahead)


def _by_rank(subgroups: Subgroups, ranks: Mapping[str, int], *, count_from_first: bool) -> dict[str, int]:
    """Return the segment number of each member; if no member runs yet, the first rank counts as 0."""
    order = sorted(ranks, key=lambda uid: ranks[uid])
    places = enumerate(order) if count_from_first else ((ranks[uid], uid) for uid in order)
    return {uid: subgroups.number(position) for position, uid in places}


def _by_label(
    subgroups: LabelledSubgroups,
    groups: MembersByClass,
    running: Sequence[Member],
    ranks: Mapping[str, int],
) -> tuple[dict[str, int], list[tuple[int, Member]]]:
    """Return the segment number of each member to place, by uid, and of each running member, from their labels.

    Segments are numbered in order of their first rank.
    """
    name_of_member = {member.uid: subgroups.name(member.labels or {}) for _, members in groups for member in members}
    names = list(
        dict.fromkeys(
            name_of_member[uid] for uid in sorted(name_of_member, key=lambda uid: ranks[uid]) if name_of_member[uid]
        )
    )
    running_names = [(subgroups.name(member.labels or {}), member) for member in running]
    number_of_name = {name: index for index, name in enumerate(names)}
    numbers = {uid: number_of_name[name] if name else -1 for uid, name in name_of_member.items()}
    return numbers, [(number_of_name[name], member) for name, member in running_names if name in number_of_name]


def _places(
    workload: Workload,
    running: Sequence[Member],
    members: Sequence[Member],
    segment: int,
    layout: Layout,
    row_of: Mapping[str, int],
) -> tuple[tuple[int, int], ...]:
    home = _homes([(member.rank // segment, member) for member in running if member.rank >= 0], layout, row_of)
    ranks = ranks_to_give(workload, members)
    return tuple((ranks[member.uid] // segment, home.get(ranks[member.uid] // segment, -1)) for member in members)


def _homes(running: Sequence[tuple[int, Member]], layout: Layout, row_of: Mapping[str, int]) -> dict[int, int]:
    """Return for each segment with running members the domain in which most of them run."""
    leaves: dict[int, Counter[int]] = {}
    for number, member in running:
        row = row_of.get(member.node)
        leaf = int(layout.leaf_of_row[row]) if row is not None else -1
        if leaf >= 0 and number >= 0:
            leaves.setdefault(number, Counter())[leaf] += 1
    return {number: min(counts, key=lambda leaf: (-counts[leaf], leaf)) for number, counts in leaves.items()}


def ranks_to_give(workload: Workload, members: Sequence[Member]) -> Mapping[str, int]:
    """Return the ranks of members of a gang in segments, by uid; they do not depend on the chosen nodes."""
    order = {member.uid: number for number, member in enumerate(workload.at(Stage.PENDING))}
    placed = sorted(members, key=lambda member: order.get(member.uid, len(order)))
    return give_ranks(workload, [(member, number) for number, member in enumerate(placed)])


def segment_error(query: PlacementQuery) -> str:
    """Return why a gang can't be divided into segments, or an empty string."""
    size = query.segments.size
    if not query.running and (query.members - query.segments.ahead) % size:
        return f"its {query.members} pods are not a multiple of its {SEGMENT_SIZE}, {size}"
    return ""


def in_one_piece(query: PlacementQuery, layout: Layout) -> bool:
    """Return whether all members share one domain of the level of segments anyway, so segments need no check."""
    if query.within < (query.segments.depth or layout.depth):
        return False
    return len({layout.domain_of_leaf(query.within, leaf) for leaf in layout.leaves_of(query.running)}) <= 1


def seen_by(query: PlacementQuery, layout: Layout) -> Layout:
    """Return the fabric as a gang sees it: down to the level of its segments."""
    return layout if not query.in_segments or in_one_piece(query, layout) else layout.outer(query.segments.depth)


def broken_segment(query: PlacementQuery, placement: Placement, layout: Layout) -> str:
    """Return a message about a segment that a placement splits, or an empty string."""
    home: dict[int, int] = dict(query.segments.homes)
    for row, number, required in _members_with_segments(query, placement):
        leaf = int(layout.leaf_of_row[row])
        if number >= 0 and leaf != home.setdefault(number, leaf if required < 0 else required):
            return f"segment {number} was spread over more than one {query.segments.level}"
    return ""


def _members_with_segments(query: PlacementQuery, placement: Placement) -> Iterator[tuple[int, int, int]]:
    """Yield for each member its row, its segment, and the domain where the segment must be, -1 for any."""
    if query.segments.parts:
        for rows, segment_numbers in zip(placement.rows, query.segments.parts, strict=True):
            yield from ((row, number, -1) for row, number in zip(rows, segment_numbers, strict=True))
        return
    (rows,) = placement.rows
    places = query.segments.places or tuple((number // query.segment, -1) for number in range(len(rows)))
    yield from ((row, number, required) for row, (number, required) in zip(rows, places, strict=True))
