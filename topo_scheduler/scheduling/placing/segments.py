"""Segments: so many members of consecutive ranks that must share a leaf, as the stages of a pipeline or the ranks of a
tensor-parallel group do.

A gang of segments that are all alike is placed like one of single members: a leaf holds as many segments as its room
divided by their size, and ranks go along the fabric, so that neighbouring segments are near each other. What is lost of
a segment goes back to the leaf where the rest of it runs. Where members are not alike, or look at each other, or one
segment has more of them than the others, it is told of each member which segment it is of: `kinds`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from topo_scheduler.api.annotations import SEGMENT_SIZE, PlacementRequest
from topo_scheduler.api.groups import LEADER_EXCLUDED, LWS_NAME, LWS_SUBGROUP_POLICY, LWS_SUBGROUP_SIZE
from topo_scheduler.api.objects import Pod
from topo_scheduler.scheduling.intake.ranks import give_ranks
from topo_scheduler.scheduling.placing.ask import NO_SEGMENTS, Placement, PlacementQuery, Segments
from topo_scheduler.state.classes import PodClass
from topo_scheduler.state.fabric import Layout
from topo_scheduler.state.groups import LabelledSubgroups
from topo_scheduler.state.workloads import NO_SUBGROUPS, Member, Stage, Subgroups, Workload


def segment_of(pod: Pod, request: PlacementRequest, size: int | None) -> tuple[Subgroups, str]:
    """Return the subgroups that a pod's controller says, and what is wrong with the segment size asked.

    The leader of a LeaderWorkerSet, where it comes on top of a multiple of the subgroup size, is in the first subgroup,
    or in none with the policy LeaderExcluded.
    """
    asked = request.segment_size
    if asked and size and size % asked:
        fitting = ", ".join(str(one) for one in range(1, size + 1) if size % one == 0 and one <= 1024)
        wrong = f"annotation {SEGMENT_SIZE}: {asked} does not divide the gang's {size} pods; write one of {fitting}"
        return NO_SUBGROUPS, wrong
    annotations = pod.metadata.annotations
    told = annotations.get(LWS_SUBGROUP_SIZE, "")
    if LWS_NAME not in pod.metadata.labels or not (told.isascii() and told.isdecimal() and len(told) < 7):
        return NO_SUBGROUPS, ""
    each = int(told)
    if not size or not 0 < each <= size:
        return NO_SUBGROUPS, ""
    if (size - 1) % each == 0 and size > 1:
        return Subgroups(each, 1, annotations.get(LWS_SUBGROUP_POLICY) == LEADER_EXCLUDED), ""
    return (Subgroups(each) if size % each == 0 else NO_SUBGROUPS), ""


def has_segments(workload: Workload) -> bool:
    """Return whether a gang asks for segments, or its controller does."""
    by_label = workload.group is not None and workload.group.subgroups is not None
    return workload.gang and (max(workload.request.segment_size, workload.subgroups.size) > 1 or by_label)


def segments_of(
    workload: Workload,
    groups: Sequence[tuple[PodClass, Sequence[Member]]],
    layout: Layout,
    row_of: Mapping[str, int],
    *,
    tied: bool,
) -> Segments:
    """Return the segments of a gang.

    Args:
        workload: a gang.
        groups: members to be placed, by class.
        layout: the fabric.
        row_of: rows of nodes by name.
        tied: whether its members look at each other.
    """
    if not workload.gang:
        return NO_SEGMENTS
    asked, level = workload.request.segment_size, workload.request.segment_level
    by_label = workload.group.subgroups if workload.group is not None and not asked else None
    told = Subgroups(asked) if asked else workload.subgroups if by_label is None else Subgroups(1)
    if by_label is None and (told.size < 1 or (told.size == 1 and (not told.ahead or told.apart))):
        return NO_SEGMENTS
    if level and by_label is None and level not in layout.levels:
        return Segments(max(2, told.size), -1, level)
    depth = layout.levels.index(level) + 1 if level else layout.depth
    if by_label is not None:
        network = layout.network  # tiers are those of the network
        if by_label.tiers > network.depth:
            return NO_SEGMENTS  # the whole fabric is one domain
        depth = layout.levels.index(network.levels[network.depth - by_label.tiers]) + 1
    level = layout.levels[depth - 1]
    depth = depth if depth < layout.depth else 0
    running = [m for m in workload.members.values() if m.stage is not Stage.PENDING]
    if len(groups) == 1 and not tied and not told.ahead and by_label is None:
        places = _places(workload, running, groups[0][1], told.size, layout.outer(depth), row_of) if running else ()
        return Segments(told.size, depth, level, places)
    ranks = ranks_to_give(workload, [member for _, members in groups for member in members])
    if by_label is not None:
        numbers, seated = _by_label(by_label, groups, running, ranks)
    else:
        numbers = _by_rank(told, ranks, count_from_first=not running)
        seated = [(told.number(member.rank), member) for member in running if member.rank >= 0]
    parts = tuple(tuple(numbers[member.uid] for member in members) for _, members in groups)
    missing = {number for part in parts for number in part} - {-1}
    homes = _homes([one for one in seated if one[0] in missing], layout.outer(depth), row_of)
    return Segments(told.size, depth, level, (), parts, tuple(sorted(homes.items())), told.ahead)


def _by_rank(told: Subgroups, ranks: Mapping[str, int], *, count_from_first: bool) -> dict[str, int]:
    """Return the number of the segment of each member; where nothing runs yet the first rank counts as 0."""
    order = sorted(ranks, key=lambda uid: ranks[uid])
    places = enumerate(order) if count_from_first else ((ranks[uid], uid) for uid in order)
    return {uid: told.number(at) for at, uid in places}


def _by_label(
    told: LabelledSubgroups,
    groups: Sequence[tuple[PodClass, Sequence[Member]]],
    running: Sequence[Member],
    ranks: Mapping[str, int],
) -> tuple[dict[str, int], list[tuple[int, Member]]]:
    """Return the number of the segment of each member to be placed, and of each that runs, by the labels of both.

    They are numbered by the first rank in them.
    """
    of = {member.uid: told.name(member.labels or {}) for _, members in groups for member in members}
    names = list(dict.fromkeys(of[uid] for uid in sorted(of, key=lambda uid: ranks[uid]) if of[uid]))
    there = [(told.name(member.labels or {}), member) for member in running]
    number = {name: at for at, name in enumerate(names)}
    numbers = {uid: number[name] if name else -1 for uid, name in of.items()}
    return numbers, [(number[name], member) for name, member in there if name in number]


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
    """Return for segments of which some run the domain in which most of that does."""
    leaves: dict[int, Counter[int]] = {}
    for number, member in running:
        row = row_of.get(member.node)
        leaf = int(layout.leaf_of_row[row]) if row is not None else -1
        if leaf >= 0 and number >= 0:
            leaves.setdefault(number, Counter())[leaf] += 1
    return {number: min(found, key=lambda leaf: (-found[leaf], leaf)) for number, found in leaves.items()}


def ranks_to_give(workload: Workload, members: Sequence[Member]) -> Mapping[str, int]:
    """Return the ranks that members of a gang in segments get, by uid: whichever nodes they are placed on."""
    order = {member.uid: number for number, member in enumerate(workload.at(Stage.PENDING))}
    placed = sorted(members, key=lambda member: order.get(member.uid, len(order)))
    return give_ranks(workload, [(member, number) for number, member in enumerate(placed)])


def not_in_segments(ask: PlacementQuery) -> str:
    """Return why a gang can't be placed in segments, or an empty string."""
    size = ask.segments.size
    if not ask.running and (ask.members - ask.segments.ahead) % size:
        return f"its {ask.members} pods are not a multiple of its {SEGMENT_SIZE}, {size}"
    return ""


def in_one_piece(ask: PlacementQuery, layout: Layout) -> bool:
    """Return whether all members share a domain of the level of the segments anyway, so that each segment does."""
    if ask.within < (ask.segments.depth or layout.depth):
        return False
    return len({layout.domain_of_leaf(ask.within, leaf) for leaf in layout.leaves_of(ask.running)}) <= 1


def seen_by(ask: PlacementQuery, layout: Layout) -> Layout:
    """Return the fabric as a gang sees it: down to the level of its segments."""
    return layout if not ask.in_segments or in_one_piece(ask, layout) else layout.outer(ask.segments.depth)


def broken_segment(ask: PlacementQuery, placement: Placement, layout: Layout) -> str:
    """Return which segment a placement tears apart, or an empty string."""
    home: dict[int, int] = dict(ask.segments.homes)
    for row, number, wanted in _wanted(ask, placement):
        leaf = int(layout.leaf_of_row[row])
        if number >= 0 and leaf != home.setdefault(number, leaf if wanted < 0 else wanted):
            return f"segment {number} was spread over more than one {ask.segments.level}"
    return ""


def _wanted(ask: PlacementQuery, placement: Placement) -> Iterator[tuple[int, int, int]]:
    """Yield row, segment, and the domain where that must be, -1 for any, of each member."""
    if ask.segments.parts:
        for rows, part in zip(placement.rows, ask.segments.parts, strict=True):
            yield from ((row, number, -1) for row, number in zip(rows, part, strict=True))
        return
    (rows,) = placement.rows
    places = ask.segments.places or tuple((number // ask.segment, -1) for number in range(len(rows)))
    yield from ((row, number, wanted) for row, (number, wanted) in zip(rows, places, strict=True))
