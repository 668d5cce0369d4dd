"""A verifier that knows nothing of the engine: capacity, and one leaf for every gang, from the pods alone."""

from collections import Counter, defaultdict

from .objects import LEAF, Json


def verify(pods: list[Json], members: int, *, complete: bool) -> Json:
    """Re-check every bound pod and gang of a race.

    Returns:
        Counts, and the first few complaints; ``correct_percent`` of the gangs (of the pods, where there are none).
    """
    used: Counter[str] = Counter()
    gangs: dict[str, list[str]] = defaultdict(list)
    for pod in pods:
        node = pod["spec"].get("nodeName")
        if node:
            used[node] += int(pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])
            gangs[pod["metadata"]["name"].rpartition("-")[0]].append(node)
    complaints = [f"{node} holds {gpus} of 8 GPUs" for node, gpus in used.items() if gpus > 8]
    checked = sum(used.values())
    if members > 1:
        checked = len(gangs)
        for name, nodes in gangs.items():
            leaves = {int(node.rpartition("-")[2]) // LEAF for node in nodes}
            if len(leaves) > 1:
                complaints.append(f"gang {name} stands in {len(leaves)} leaves")
            if complete and len(nodes) != members:
                complaints.append(f"gang {name} has {len(nodes)} of {members} members bound")
    correct = 100.0 * (1 - len(complaints) / max(1, checked))
    return {"checked": checked, "wrong": len(complaints), "correct_percent": round(correct, 3), "first": complaints[:3]}
