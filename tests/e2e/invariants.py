"""What must hold at the end of every test, whatever happened in it."""

from collections import defaultdict

from .api import Json
from .cluster import Cluster
from .links_verifier import verify_links
from .objects import PREFIX, SCHEDULER
from .replica import Replica
from .verifier import verify_capacity


async def check(cluster: Cluster, replicas: list[Replica]) -> None:
    """No node and no link over what it has, no gang partially bound, pods bound once, no event twice, daemons up."""
    dead = [replica for replica in replicas if not replica.ended and not replica.alive]
    for replica in dead:
        replica.task.result()
    assert not dead, "a daemon ended by itself"

    async def none_partially_bound() -> bool:
        return not await partially_bound(cluster)

    await cluster.wait_until(none_partially_bound, 10, "no gang partially bound")
    nodes, pods = await cluster.api.list("nodes", None), await cluster.api.list("pods", None)
    problems = [*verify_capacity(nodes, pods), *cluster.recorder.problems]
    if replicas:
        spec = replicas[-1].daemon.configuration.topology.spec
        links = [link.model_dump(mode="json") for link in spec.links]
        owners = {job["metadata"]["uid"]: job for job in await cluster.api.list("jobs", None)}
        problems += verify_links(nodes, pods, owners, links)
    forgiven = tuple(f"node {name} " for name in cluster.overbooked_by_others)
    problems = [problem for problem in problems if not problem.startswith(forgiven or "\0")]
    assert not problems, "\n".join(problems)
    for uid, said in (await _told(cluster)).items():
        assert len(said) == len(set(said)), f"{cluster.recorder.name_of(uid)} got the same event twice: {said}"
    for replica in replicas:
        if not replica.ended and replica.daemon.leading.is_set() and not forgiven:
            assert await replica.metric("topology_scheduler_oversubscribed_nodes") == 0


async def _told(cluster: Cluster) -> dict[str, list[tuple[str, str, str]]]:
    """Return what each daemon said of each pod that is there, as reason and text."""
    said: dict[str, list[tuple[str, str, str]]] = defaultdict(list)
    for event in await cluster.api.list("events", None):
        uid = (event.get("regarding") or {}).get("uid", "")
        if event.get("reportingController") == SCHEDULER and uid in cluster.recorder.pods:
            said[uid].append((event["reportingInstance"], event["reason"], event.get("note", "")))
    return said


async def partially_bound(cluster: Cluster) -> list[str]:
    """Return the gangs of which some members have a node and fewer than their size, counting finished ones."""
    jobs = {job["metadata"]["uid"]: job for job in await cluster.api.list("jobs", None)}
    groups = {
        (item["metadata"]["namespace"], item["metadata"]["name"]): item["spec"]["schedulingPolicy"].get("gang")
        for item in await cluster.api.list("podgroups", None)
    }
    gangs: dict[str, list[Json]] = defaultdict(list)
    sizes: dict[str, int] = {}
    for pod in await cluster.api.list("pods", None):
        if pod["spec"].get("schedulerName") != SCHEDULER or pod["metadata"].get("deletionTimestamp"):
            continue
        annotations = pod["metadata"].get("annotations") or {}
        owner = next((o for o in pod["metadata"].get("ownerReferences") or [] if o.get("controller")), None)
        job = jobs.get(owner["uid"]) if owner else None
        inherited = {**((job or {}).get("metadata", {}).get("annotations") or {}), **annotations}
        if inherited.get(PREFIX + "gang") == "false":
            continue
        name, size = inherited.get(PREFIX + "gang-name"), inherited.get(PREFIX + "gang-size", "")
        group = (pod["spec"].get("schedulingGroup") or {}).get("podGroupName", "")
        named = groups.get((pod["metadata"]["namespace"], group))
        if named:
            id_ = f"{pod['metadata']['namespace']}/group/{group}"
            sizes[id_] = int(named["minCount"])
        elif name and size.isdecimal():
            id_ = f"{pod['metadata']['namespace']}/{name}"
            sizes[id_] = int(size)
        elif job is not None and PREFIX + "gpu-count" in inherited:
            id_ = job["metadata"]["uid"]
            sizes[id_] = min(job["spec"]["parallelism"], job["spec"].get("completions") or 10**9)
        else:
            continue
        gangs[id_].append(pod)
    halves = []
    for id_, pods in gangs.items():
        bound = sum(bool(pod["spec"].get("nodeName")) for pod in pods)
        if 0 < bound < sizes[id_] and len(pods) >= sizes[id_]:
            halves.append(f"{id_}: {bound} of {sizes[id_]} bound")
    return halves
