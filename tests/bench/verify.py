"""A verifier that knows nothing of the engine: capacity, links, and leaves of gangs, from the API's objects alone."""

from collections import defaultdict
from collections.abc import Sequence

from tests.e2e.links_verifier import asked, verify_links
from tests.e2e.objects import PREFIX
from tests.e2e.verifier import path_of, verify_capacity

from .objects import LEAF, Json


def verify(pods: Sequence[Json], nodes: Sequence[Json], jobs: Sequence[Json], members: int, *, complete: bool) -> Json:
    """Check every bound pod, gang, node and link of a race.

    Args:
        pods: all of them.
        nodes: all of them, with the capacities of networks and uplinks in their labels.
        jobs: what says how much bandwidth the pods ask for which it owns.
        members: pods of each gang, which may stand in no more leaves than so many whole nodes fill.
        complete: every pod was to be bound.

    Returns:
        Counts, and the first few complaints; ``correct_percent`` of the gangs (of the pods, where there are none).
    """
    bound = [pod for pod in pods if pod["spec"].get("nodeName")]
    owners = {job["metadata"]["uid"]: job for job in jobs}
    complaints = [*verify_capacity(nodes, bound), *verify_links(nodes, bound, owners)]
    checked = len(bound)
    if members > 1:
        gangs = _gangs(bound)
        checked = len(gangs)
        complaints += _in_leaves(gangs, nodes, members)
        complaints += [
            f"gang {name} has {len(gang)} of {members} members bound"
            for name, gang in gangs.items()
            if complete and len(gang) != members
        ]
        # The check of links finds gangs by what was written on their pods.
        complaints += [
            f"pod {pod['metadata']['name']} asks for bandwidth and bears no gang-id"
            for pod in bound
            if asked(pod, owners) and PREFIX + "gang-id" not in (pod["metadata"].get("annotations") or {})
        ]
    correct = max(0.0, 100.0 * (1 - len(complaints) / max(1, checked)))
    return {"checked": checked, "wrong": len(complaints), "correct_percent": round(correct, 3), "first": complaints[:3]}


def _gangs(bound: Sequence[Json]) -> dict[str, list[Json]]:
    gangs: dict[str, list[Json]] = defaultdict(list)
    for pod in bound:
        gangs[pod["metadata"]["name"].rpartition("-")[0]].append(pod)
    return gangs


def _in_leaves(gangs: dict[str, list[Json]], nodes: Sequence[Json], members: int) -> list[str]:
    leaf = {node["metadata"]["name"]: path_of(node) for node in nodes}
    fewest = -(-members // LEAF)
    used = {name: len({leaf[pod["spec"]["nodeName"]] for pod in gang}) for name, gang in gangs.items()}
    return [f"gang {name} is in {count} leaves, {fewest} hold it" for name, count in used.items() if count > fewest]
