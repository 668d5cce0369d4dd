"""What a failure cost, from a timeline: who moved, where to, and whose the time was."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from tests.e2e.api import Json

from .layout import Gang, leaf_of, spine_of
from .timeline import PodLife, Timeline


@dataclass(frozen=True)
class Break:
    """What was broken. ``before`` the bound pods of each gang at that time, by index; ``nodes`` that died."""

    before: Mapping[str, Mapping[int, PodLife]]
    nodes: frozenset[str]

    def hit(self) -> list[str]:
        """Gangs that had a pod there."""
        return [gang for gang, pods in self.before.items() if any(pod.node in self.nodes for pod in pods.values())]

    def lost(self) -> list[PodLife]:
        """Pods that were there: nobody heals with fewer moves."""
        return [pod for pods in self.before.values() for pod in pods.values() if pod.node in self.nodes]


def begin(timeline: Timeline, gangs: Iterable[Gang], nodes: Collection[str]) -> Break:
    """Note what there is just before nodes die."""
    return Break({gang.key: timeline.running(gang.key) for gang in gangs}, frozenset(nodes))


def whole(timeline: Timeline, broken: Break, gang: str) -> bool:
    """Return whether a gang has all its pods, and none on what died."""
    now = timeline.running(gang)
    return now.keys() == broken.before[gang].keys() and not any(pod.node in broken.nodes for pod in now.values())


def waiting(timeline: Timeline, broken: Break) -> dict[str, str]:
    """Return gangs that are not whole while their Migration says that it waits for room, with what it says."""
    said: dict[str, str] = {}
    for migration in timeline.migrations.values():
        status = migration.get("status") or {}
        pods = [timeline.pods[move["uid"]] for move in status.get("moves") or [] if move["uid"] in timeline.pods]
        conditions = {one["type"]: one for one in status.get("conditions") or []}
        reserved = conditions.get("Reserved", {})
        if status.get("phase") == "Planned" and reserved.get("reason") == "NoRoom":
            said |= {pod.gang: reserved["message"] for pod in pods if pod.node in broken.nodes}
    return {gang: text for gang, text in said.items() if not whole(timeline, broken, gang)}


def figures(timeline: Timeline, broken: Break, debounce: float) -> Json:
    """What it cost. ``debounce`` seconds for which a node must have failed before it counts."""
    hit, lost = broken.hit(), broken.lost()
    healed = [gang for gang in hit if whole(timeline, broken, gang)]
    waits = waiting(timeline, broken)
    moved = [pod for pods in broken.before.values() for pod in pods.values() if pod.released is not None or pod.over]
    pairs = [(old, new) for old in moved if (new := _replacement(timeline, old)) is not None]
    down = {node: timeline.down[node] for node in broken.nodes if node in timeline.down}
    return {
        "dead_nodes": len(broken.nodes),
        "pods_on_them": len(lost),
        "moved_pods": len(moved),
        "gangs_hit": len(hit),
        "gangs_whole_again": len(healed),
        "gangs_that_wait_for_room": len(waits),
        "what_they_are_told": dict(Counter(waits.values())),
        "their_pods_on_dead_nodes": sum(pod.gang in waits for pod in lost),
        "gangs_in_no_more_leaves_than_before": sum(_kept(timeline, broken, one, leaf_of) for one in healed),
        "gangs_in_no_more_spines_than_before": sum(_kept(timeline, broken, one, spine_of) for one in healed),
        "pods_in_the_leaf_they_were_in": sum(leaf_of(old.node) == leaf_of(new.node) for old, new in pairs),
        "not_ready_within_s": _round(max(down.values()) - min(down.values())) if down else None,
        "to_plan_s": _to_plan(timeline, broken, debounce),
        "s_from_not_ready": _times(pairs, down),
    }


def _times(pairs: Collection[tuple[PodLife, PodLife]], down: Mapping[str, float]) -> Json:
    """The longest of each, over the pods that moved, from when their node (any, where it lives) was not ready."""
    if not pairs or not down:
        return {}
    first = min(down.values())
    rows = []
    for old, new in pairs:
        assert old.released is not None and new.bound is not None
        since = down.get(old.node, first)
        controller = new.created - old.released
        rows.append((old.released - since, new.created - since, new.bound - since, controller))
    return {
        "last_pod_released": _round(max(row[0] for row in rows)),
        "last_replacement_created": _round(max(row[1] for row in rows)),
        "last_replacement_bound": _round(max(row[2] for row in rows)),
        "longest_of_the_job_controller": _round(max(row[3] for row in rows)),
        "last_bound_less_the_job_controller": _round(max(row[2] - row[3] for row in rows)),
        "longest_from_created_to_bound": _round(max(row[2] - row[1] for row in rows)),
    }


def _to_plan(timeline: Timeline, broken: Break, debounce: float) -> float | None:
    """The longest time from when a failure counts to a plan: after the debounce of the first node of the Migration."""
    took = []
    for migration in timeline.migrations.values():
        status = migration.get("status") or {}
        planned = (status.get("times") or {}).get("Planned")
        since = [timeline.down[move["from"]] for move in status.get("moves") or [] if move["from"] in timeline.down]
        mine = any(move["from"] in broken.nodes for move in status.get("moves") or [])
        if planned and since and mine:
            took.append(datetime.fromisoformat(planned).timestamp() - min(since) - debounce)
    return _round(max(took)) if took else None


def _replacement(timeline: Timeline, old: PodLife) -> PodLife | None:
    found = timeline.running(old.gang).get(old.index)
    return found if found is not None and found.uid != old.uid else None


def _kept(timeline: Timeline, broken: Break, gang: str, domain: Callable[[str], str]) -> bool:
    before = {domain(pod.node) for pod in broken.before[gang].values()}
    return len({domain(pod.node) for pod in timeline.running(gang).values()}) <= len(before)


def _round(seconds: float) -> float:
    return round(seconds, 2)
