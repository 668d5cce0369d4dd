"""What a failure cost, from a timeline: which pods moved, where to, and whose the time was."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from tests.e2e.api import Json
from topo_scheduler.api.timestamps import seconds_of

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
        """Pods that were there: no scheduler heals with fewer moves."""
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
        conditions = {condition["type"]: condition for condition in status.get("conditions") or []}
        reserved = conditions.get("Reserved", {})
        if status.get("phase") == "Planned" and reserved.get("reason") == "NoRoom":
            hit = [pod.gang for pod in pods if pod.node in broken.nodes and pod.gang in broken.before]
            said |= dict.fromkeys(hit, reserved["message"])
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
        "gangs_in_no_more_leaves_than_before": sum(_kept(timeline, broken, gang, leaf_of) for gang in healed),
        "gangs_in_no_more_spines_than_before": sum(_kept(timeline, broken, gang, spine_of) for gang in healed),
        "pods_in_the_leaf_they_were_in": sum(leaf_of(old.node) == leaf_of(new.node) for old, new in pairs),
        "not_ready_within_s": _round(max(down.values()) - min(down.values())) if down else None,
        **_plans(timeline, broken, debounce),
        "s_from_not_ready": _times(pairs, down),
    }


def _times(pairs: Collection[tuple[PodLife, PodLife]], down: Mapping[str, float]) -> Json:
    """The longest of each, over the gangs that moved, from when their nodes (any, where one lives) were not ready.

    The Job controller has the time from when the last pod of a gang could be replaced until its last pod was made
    again: all of the gang waits for that one.
    """
    if not pairs or not down:
        return {}
    first = min(down.values())
    gangs: dict[str, list[tuple[float, float, float]]] = {}
    for old, new in pairs:
        assert old.released is not None and new.bound is not None
        since = down.get(old.node, first)
        gangs.setdefault(old.gang, []).append((old.released - since, new.created - since, new.bound - since))
    lasts = [tuple(max(row[column] for row in rows) for column in range(3)) for rows in gangs.values()]
    return {
        "last_pod_released": _round(max(released for released, _, _ in lasts)),
        "last_replacement_created": _round(max(created for _, created, _ in lasts)),
        "last_replacement_bound": _round(max(bound for _, _, bound in lasts)),
        "longest_of_the_job_controller": _round(max(created - released for released, created, _ in lasts)),
        "last_bound_less_the_job_controller": _round(
            max(bound - (created - released) for released, created, bound in lasts)
        ),
        "longest_from_last_created_to_bound": _round(max(bound - created for _, created, bound in lasts)),
    }


def _plans(timeline: Timeline, broken: Break, debounce: float) -> Json:
    """The longest there was: from when a node was not ready until the daemon saw it, from the debounce to the plan."""
    seen, planned = [], []
    for migration in timeline.migrations.values():
        status = migration.get("status") or {}
        nodes = [move["from"] for move in status.get("moves") or [] if move["from"] in broken.nodes]
        down = [timeline.down[node] for node in nodes if node in timeline.down]
        since, plan = seconds_of(migration["spec"].get("since")), seconds_of((status.get("times") or {}).get("Planned"))
        if down and since and plan:
            seen.append(since - min(down))
            planned.append(plan - since - debounce)
    return {
        "seen_after_s": _round(max(0.0, *seen)) if seen else None,
        "to_plan_s": _round(max(planned)) if planned else None,
    }


def _replacement(timeline: Timeline, old: PodLife) -> PodLife | None:
    replacement = timeline.running(old.gang).get(old.index)
    return replacement if replacement is not None and replacement.uid != old.uid else None


def _kept(timeline: Timeline, broken: Break, gang: str, domain: Callable[[str], str]) -> bool:
    before = {domain(pod.node) for pod in broken.before[gang].values()}
    return len({domain(pod.node) for pod in timeline.running(gang).values()}) <= len(before)


def _round(seconds: float) -> float:
    return round(seconds, 2)
