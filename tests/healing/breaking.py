"""A cluster is filled, and parts of it die."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence, Set

from tests.e2e.api import ApiError, Json
from tests.e2e.cluster import Cluster
from tests.e2e.verifier import verify_capacity, verify_gang

from .figures import Break, waiting, whole
from .layout import LENT, NAMESPACES, Gang, Layout, leaf_of, spine_of
from .timeline import Timeline

QUIET = 15.0
"""Seconds without any change after which those that wait for room are believed to do so."""


async def build(cluster: Cluster, layout: Layout) -> None:
    """Create the nodes, all of them cordoned, and namespaces."""
    await cluster.add_nodes(layout.nodes())
    await _cordon(cluster, [node["metadata"]["name"] for node in layout.nodes()], True)
    for name in NAMESPACES:
        await cluster.add_namespace(name)


async def fill(cluster: Cluster, layout: Layout, timeline: Timeline, *, lend: bool = False) -> None:
    """Fill block by block, so that it is full as it was meant; in the end no node is cordoned.

    ``lend``: one node of each leaf is a spare, and all that gangs leave free is lent to pods of a lower priority.
    """
    free = set(layout.free()) if lend else set()
    for nodes, gangs in layout.blocks():
        spares = {f"{leaf_of(node)}-0" for node in nodes} & free
        await _cordon(cluster, [*sorted(spares), *nodes], None)
        for gang in gangs:
            await cluster.api.create("jobs", gang.job(), gang.namespace)

        def bound(gangs: Sequence[Gang] = gangs) -> bool:
            return all(len(timeline.running(gang.key)) == gang.members for gang in gangs)

        await cluster.wait_for(bound, 60, f"{', '.join(gang.key for gang in gangs)} bound")
    await _cordon(cluster, layout.free(), None)
    if lend:
        await _lend(cluster, layout, timeline)


async def _lend(cluster: Cluster, layout: Layout, timeline: Timeline) -> None:
    await cluster.add_namespace(LENT)
    name, root = {"name": LENT}, "scheduling.k8s.io/v1"
    lent: Json = {"apiVersion": root, "kind": "PriorityClass", "metadata": name, "value": -10}
    try:
        await cluster.api.create("priorityclasses", lent)
    except ApiError as error:
        if error.status != 409:  # it has no namespace, and stays
            raise
    jobs = layout.lent()
    await each(jobs, lambda job: cluster.api.create("jobs", job, LENT))

    def full() -> bool:
        return len(timeline.used()) == len(layout.nodes())

    await cluster.wait_for(full, 120, f"a pod on each of {len(layout.nodes())} nodes")


async def _cordon(cluster: Cluster, names: Iterable[str], wanted: bool | None) -> None:
    await each(names, lambda name: cluster.api.patch("nodes", name, {"spec": {"unschedulable": wanted}}))


def some_nodes(layout: Layout, count: int, seed: int) -> list[str]:
    """Draw nodes from all there are."""
    return random.Random(seed).sample([node["metadata"]["name"] for node in layout.nodes()], count)


def whole_domain(layout: Layout, domain: Callable[[str], str], dead: Set[str], seed: int) -> list[str]:
    """Draw a leaf or a spine full of gangs, of those of which fewest nodes are dead; return what lives of it."""
    members: dict[str, list[str]] = {}
    for node in layout.nodes():
        name = node["metadata"]["name"]
        if spine_of(name) != f"s{layout.free_spine}":
            members.setdefault(domain(name), []).append(name)
    largest = max(map(len, members.values()))
    alive = [[name for name in names if name not in dead] for names in members.values() if len(names) == largest]
    return random.Random(seed).choice([names for names in alive if len(names) == max(map(len, alive))])


def steps(layout: Layout, seed: int) -> dict[str, list[str]]:
    """Nodes that die, one step after the other: eight at random, a leaf, a spine."""
    nodes = some_nodes(layout, 8, seed)
    leaf = whole_domain(layout, leaf_of, set(nodes), seed)
    spine = whole_domain(layout, spine_of, {*nodes, *leaf}, seed)
    return {"eight_nodes": nodes, "leaf": leaf, "spine": spine}


async def settled(timeline: Timeline, broken: Break, timeout: float) -> bool:
    """Return when every gang is whole again or told that it waits for room; False where that takes too long."""
    deadline = time.time() + timeout
    while time.time() < deadline:
        # Those too that made room for others, as far as their Jobs have made their pods again.
        rest = {gang for gang in broken.before if not whole(timeline, broken, gang)}
        waits = waiting(timeline, broken).keys()
        quiet = time.time() - timeline.changed > QUIET
        if not rest or (quiet and rest & set(broken.hit()) == waits and not any(map(timeline.running, rest - waits))):
            return True
        await asyncio.sleep(0.1)
    return False


async def problems(cluster: Cluster, timeline: Timeline, gangs: Iterable[Gang]) -> list[str]:
    """Return what no placement may be: GPUs used twice, now or at any time before, or a gang against its rules."""
    nodes = await cluster.api.list("nodes", None)
    pods = [pod for name in (*NAMESPACES, LENT) for pod in await cluster.api.list("pods", name)]
    violations = [*verify_capacity(nodes, pods), *cluster.recorder.problems]
    by_uid = {pod["metadata"]["uid"]: pod for pod in pods}
    for gang in gangs:
        members = [by_uid[pod.uid] for pod in timeline.running(gang.key).values() if pod.uid in by_uid]
        if not members:
            continue  # it made room for another, and its Job waits before it makes its pods again
        job: Json = gang.job()
        asked = job["metadata"]["annotations"]
        violations += [f"{gang.key}: {text}" for text in verify_gang(nodes, members, asked=asked)]
    return violations


async def each(items: Iterable[object], do: Callable[..., Awaitable[object]]) -> None:
    """Do something with each item, some at once."""
    items = list(items)
    for start in range(0, len(items), 32):
        await asyncio.gather(*(do(item) for item in items[start : start + 32]))
