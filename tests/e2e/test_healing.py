"""A cluster full of gangs is broken: eight nodes, a leaf, a spine. No pod moves without need, and none moves far."""

import json
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from tests.healing import breaking
from tests.healing.figures import Break, begin, figures, waiting, whole
from tests.healing.layout import SMALL, leaf_of
from tests.healing.timeline import Timeline
from topo_scheduler.api.config import Configuration
from topo_scheduler.api.spares import SparesSpec

from .api import Json
from .cluster import Cluster
from .conftest import StartReplica
from .recovery import recovery_configuration

DEBOUNCE = 2.0
SEED = 1
LONGEST = 120.0
"""Seconds a step may take; half of it is the Job controller's patience."""


@pytest.fixture
async def timeline(cluster: Cluster, migrations: None) -> AsyncIterator[Timeline]:
    """What happens, as it is seen from outside."""
    patient = {gang.key: not gang.plain for gang in SMALL.gangs()}
    timeline = Timeline(cluster.api, lambda gang: patient.get(gang, False))
    await timeline.start()
    yield timeline
    await timeline.stop()


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_cluster_full_of_gangs_heals(
    cluster: Cluster, timeline: Timeline, start_replica: StartReplica, capsys: pytest.CaptureFixture[str]
) -> None:
    """256 nodes, of which a spine and one of each leaf are free. Times are printed, and not judged."""
    gangs = SMALL.gangs()
    await breaking.build(cluster, SMALL)
    await start_replica(recovery_configuration(force_delete=True, debounce=DEBOUNCE))
    await breaking.fill(cluster, SMALL, timeline)
    for step, nodes in breaking.steps(SMALL, SEED).items():
        broken = begin(timeline, gangs, nodes)
        await breaking.each(nodes, cluster.kill_kubelet)
        await breaking.each(nodes, cluster.give_up_node)
        assert await breaking.settled(timeline, broken, LONGEST), f"{step}\n{await cluster.describe()}"
        measured = figures(timeline, broken, DEBOUNCE)
        with capsys.disabled():
            print(f"\n{step}: {json.dumps(measured)}")
        _judge(timeline, broken, measured)
        assert await breaking.problems(cluster, timeline, gangs) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_cluster_without_a_free_gpu_heals_by_the_spares_that_were_lent(
    cluster: Cluster, timeline: Timeline, start_replica: StartReplica
) -> None:
    gangs = SMALL.gangs()
    await breaking.build(cluster, SMALL)
    base = recovery_configuration(force_delete=True, debounce=DEBOUNCE)
    kept = base.topology.spec.model_copy(update={"spares": SparesSpec(per_leaf=1)})
    await start_replica(Configuration(base.scheduler, base.topology.model_copy(update={"spec": kept})))
    await breaking.fill(cluster, SMALL, timeline, lend=True)
    nodes = breaking.steps(SMALL, SEED)["eight_nodes"]
    broken = begin(timeline, gangs, nodes)
    await breaking.each(nodes, cluster.kill_kubelet)
    await breaking.each(nodes, cluster.give_up_node)
    assert await breaking.settled(timeline, broken, LONGEST), await cluster.describe()
    lost = Counter(leaf_of(pod.node) for pod in broken.lost())
    for gang in broken.hit():
        lost_pods = [pod for pod in broken.before[gang].values() if pod.node in broken.nodes]
        spares = {f"{leaf_of(pod.node)}-0" for pod in lost_pods}
        if spares.isdisjoint(broken.nodes) and all(lost[leaf_of(pod.node)] == 1 for pod in lost_pods):
            assert whole(timeline, broken, gang)
            assert {timeline.running(gang)[pod.index].node for pod in lost_pods} == spares
        else:
            assert whole(timeline, broken, gang) or gang in waiting(timeline, broken)
        assert {pod.uid for pod in broken.before[gang].values() if pod.released is not None} <= {
            p.uid for p in lost_pods
        }
    assert sum(whole(timeline, broken, gang) for gang in broken.hit()) >= 5
    assert await breaking.problems(cluster, timeline, gangs) == []


def _judge(timeline: Timeline, broken: Break, measured: Json) -> None:
    hit, waits = set(broken.hit()), waiting(timeline, broken)
    healed = {gang for gang in hit if whole(timeline, broken, gang)}
    assert healed | waits.keys() == hit and healed.isdisjoint(waits)
    assert measured["gangs_in_no_more_leaves_than_before"] == len(healed)
    assert measured["gangs_in_no_more_spines_than_before"] == len(healed)
    moved = {gang: [pod for pod in pods.values() if pod.released is not None] for gang, pods in broken.before.items()}
    assert not any(moved[gang] for gang in waits), "no pod is evicted without a node for its replacement"
    asked = [migration for migration in timeline.migrations.values() if migration["spec"].get("makesRoomFor")]
    others = {timeline.pods[pod["uid"]].gang for migration in asked for pod in migration["spec"]["pods"]}
    assert {gang for gang, pods in moved.items() if pods} <= healed | others
    # Each leaf had one node free. Where one pod was lost in it, that pod alone moved, and there.
    lost = Counter(leaf_of(pod.node) for pod in broken.lost())
    full = broken.nodes | {pod.node for pods in broken.before.values() for pod in pods.values()}
    for gang in healed:
        lost_pods = [pod for pod in broken.before[gang].values() if pod.node in broken.nodes]
        if all(lost[leaf_of(pod.node)] == 1 and f"{leaf_of(pod.node)}-0" not in full for pod in lost_pods):
            assert moved[gang] == lost_pods
            assert {timeline.running(gang)[pod.index].node for pod in lost_pods} == {
                f"{leaf_of(p.node)}-0" for p in lost_pods
            }
