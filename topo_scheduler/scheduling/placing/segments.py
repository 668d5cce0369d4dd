"""Segments: so many members of consecutive ranks that must share a leaf, as the stages of a pipeline or the ranks of a
tensor-parallel group do.

A gang of segments is placed like one of single members: a leaf holds as many segments as its room divided by their
size, and ranks go along the fabric, so that neighbouring segments are near each other. What is lost of a segment goes
back to the leaf where the rest of it runs.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from topo_scheduler.api.annotations import SEGMENT_SIZE, PlacementRequest
from topo_scheduler.api.groups import LWS_NAME, LWS_SUBGROUP_SIZE
from topo_scheduler.api.objects import Pod
from topo_scheduler.scheduling.placing.ask import NO_SEGMENTS, Ask, Placement, Segments
from topo_scheduler.state.classes import PodClass
from topo_scheduler.state.fabric import Layout
from topo_scheduler.state.workloads import Member, Stage, Workload


def segment_of(pod: Pod, request: PlacementRequest, size: int | None) -> tuple[int, str]:
    """Return the subgroup size that a pod's controller says, 0 for none, and what is wrong with the segment size asked.

    A LeaderWorkerSet whose subgroups do not divide its size gives its leader to one of them besides; that is not
    followed.
    """
    asked = request.segment_size
    if asked and size and size % asked:
        fitting = ", ".join(str(one) for one in range(1, size + 1) if size % one == 0 and one <= 1024)
        return 0, f"annotation {SEGMENT_SIZE}: {asked} does not divide the gang's {size} pods; write one of {fitting}"
    told = pod.metadata.annotations.get(LWS_SUBGROUP_SIZE, "")
    if LWS_NAME not in pod.metadata.labels or not (told.isascii() and told.isdecimal() and len(told) < 7):
        return 0, ""
    return (int(told) if size and int(told) and size % int(told) == 0 else 0), ""


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
    # What a controller would like is followed where that is possible; what a user asks for is, or is refused.
    told = workload.subgroup if len(groups) == 1 and not tied else 0
    size = workload.request.segment_size or told
    if size <= 1 or not workload.gang:
        return NO_SEGMENTS
    level = workload.request.segment_level
    if level and level not in layout.levels:
        return Segments(size, -1, level)
    depth = layout.levels.index(level) + 1 if level else layout.depth
    level = layout.levels[depth - 1]
    depth = depth if depth < layout.depth else 0
    running = [m for m in workload.members.values() if m.stage is not Stage.PENDING]
    if len(groups) > 1 or not running:
        return Segments(size, depth, level)
    places = _places(workload, running, groups[0][1], size, layout.outer(depth), row_of)
    return Segments(size, depth, level, places)


def _places(
    workload: Workload,
    running: Sequence[Member],
    members: Sequence[Member],
    segment: int,
    layout: Layout,
    row_of: Mapping[str, int],
) -> tuple[tuple[int, int], ...]:
    leaves: dict[int, Counter[int]] = {}
    for member in running:
        row = row_of.get(member.node)
        leaf = int(layout.leaf_of_row[row]) if row is not None else -1
        if leaf >= 0 and member.rank >= 0:
            leaves.setdefault(member.rank // segment, Counter())[leaf] += 1
    home = {number: min(found, key=lambda leaf: (-found[leaf], leaf)) for number, found in leaves.items()}
    ranks = ranks_to_give(workload, members)
    return tuple((rank // segment, home.get(rank // segment, -1)) for rank in ranks)


def ranks_to_give(workload: Workload, members: Sequence[Member]) -> list[int]:
    """Return the ranks that members of a gang in segments get, in order: their numbers, else the lowest free ones."""
    taken = {m.rank for m in workload.members.values() if m.stage is not Stage.PENDING}
    numbers = [m.index for m in members if m.index is not None]
    if len(numbers) == len(members) == len(set(numbers)) and taken.isdisjoint(numbers):
        return numbers
    free = (rank for rank in range(len(taken) + len(members)) if rank not in taken)
    return [next(free) for _ in members]


def not_in_segments(ask: Ask, *, tied: bool) -> str:
    """Return why a gang can't be placed in segments, or an empty string."""
    if len(ask.groups) > 1:
        return f"{SEGMENT_SIZE} is for gangs whose pods are alike, and this one's ask for different things"
    if tied:
        return f"{SEGMENT_SIZE} is for gangs whose pods do not look at each other, and this one's do"
    if not ask.running and ask.members % ask.segment:
        return f"its {ask.members} pods are not a multiple of its {SEGMENT_SIZE}, {ask.segment}"
    return ""


def in_one_piece(ask: Ask, layout: Layout) -> bool:
    """Return whether all members share a domain of the level of the segments anyway, so that each segment does."""
    if ask.within < (ask.segments.depth or layout.depth):
        return False
    return len({layout.domain_of_leaf(ask.within, leaf) for leaf in layout.leaves_of(ask.running)}) <= 1


def seen_by(ask: Ask, layout: Layout) -> Layout:
    """Return the fabric as a gang sees it: down to the level of its segments."""
    return layout if ask.segment == 1 or in_one_piece(ask, layout) else layout.outer(ask.segments.depth)


def broken_segment(ask: Ask, placement: Placement, layout: Layout) -> str:
    """Return which segment a placement tears apart, or an empty string."""
    (rows,) = placement.rows
    leaves = [int(layout.leaf_of_row[row]) for row in rows]
    places = ask.segments.places or tuple((number // ask.segment, -1) for number in range(len(rows)))
    home: dict[int, int] = {}
    for leaf, (number, wanted) in zip(leaves, places, strict=True):
        if leaf != home.setdefault(number, leaf if wanted < 0 else wanted):
            return f"segment {number} was spread over more than one {ask.segments.level}"
    return ""
