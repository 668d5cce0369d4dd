"""A leaf dies that is full of Jobs of one pod each: a Migration for each of them, under the limits as they are."""

from tests.e2e import objects

from .invariants import no_gpu_twice
from .running import virtually
from .world import cluster, configured

NODES, GPUS = 16, 8
HEALED = 30.0
"""Seconds from when the nodes fall silent, 10 of debounce included."""


@virtually
async def test_a_leaf_of_small_jobs_heals_in_half_a_minute() -> None:
    async with cluster({"s1/l1": NODES, "s1/l2": NODES}) as world:
        world.start(configured(debounce=10.0))
        await world.leading()
        for number in range(NODES * GPUS):
            world.store.create("jobs.batch", objects.job(f"small-{number}", 1, 1, {}))
        await world.until(lambda: len(world.pods(bound=True)) == NODES * GPUS)
        (leaf,) = {pod["spec"]["nodeName"].rpartition("-")[0] for pod in world.pods(bound=True)}
        dead = {name for name in world.node_names() if name.rpartition("-")[0] == leaf}
        world.fail(*dead)

        def moved() -> bool:
            return sum(pod["spec"]["nodeName"] not in dead for pod in world.pods(bound=True)) == NODES * GPUS

        await world.until(moved, HEALED)
        assert len(world.phases()) == NODES * GPUS
        no_gpu_twice(world)
