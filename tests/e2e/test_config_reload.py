"""The configuration is read again when its file changes; a bad one is refused and the old one stays."""

from pathlib import Path

import pytest

from . import objects
from .cluster import Cluster, leaves_of, nodes_of
from .conftest import StartReplica
from .replica import put, written

pytestmark = pytest.mark.usefixtures("config_read_often")


async def test_new_limits_take_effect_while_a_gang_waits(
    cluster: Cluster, start_replica: StartReplica, tmp_path: Path
) -> None:
    file = tmp_path / "config.yaml"
    await start_replica(written(file, topologyConstraints={"enforcement": "required"}), config_path=file)
    await cluster.add_fabric({"s1": [4, 4]})
    for node in ("s1-l1-1", "s1-l2-1"):
        await cluster.occupy(node)
    await cluster.apply(objects.gang("whole", 4))
    (pod, *_) = await cluster.wait_pods("whole", 4)
    await cluster.wait_note(pod, "0/8 nodes are available")
    written(file, topologyConstraints={"enforcement": "preferred"})
    assert leaves_of(await cluster.wait_bound("whole", 4)) == {"s1-l1", "s1-l2"}


async def test_a_limit_per_leaf_takes_effect(cluster: Cluster, start_replica: StartReplica, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    replica = await start_replica(written(file), config_path=file)
    await cluster.add_fabric({"s1": [4, 4]})
    await cluster.apply(objects.gang("before", 4, 4))
    assert len(leaves_of(await cluster.wait_bound("before", 4))) == 1
    await cluster.api.delete("jobs", "before")
    fresh = written(file, topologyConstraints={"maxNodesPerLeaf": 2, "maxGPUsPerLeaf": 16})
    await cluster.wait_for(lambda: replica.daemon.configuration.topology == fresh.topology, 10, "reloaded")
    await cluster.apply(objects.gang("after", 4, 8))
    assert len(leaves_of(await cluster.wait_bound("after", 4))) == 2


async def test_new_weights_take_effect(cluster: Cluster, start_replica: StartReplica, tmp_path: Path) -> None:
    """By free share alone the emptier spine wins; by utilisation alone a consolidated pod fills the fuller one."""
    nothing = dict.fromkeys(
        ("resourceAvailability", "topologyAlignment", "domainUtilization", "historicalPerformance"), 0.0
    )
    file = tmp_path / "config.yaml"
    config = written(file, scoringWeights={**nothing, "resourceAvailability": 1.0})
    replica = await start_replica(config, config_path=file)
    await cluster.add_fabric({"s1": [2], "s2": [2]})
    await cluster.occupy("s1-l1-1", 6)
    asked = {"placement-strategy": "consolidated"}
    await cluster.apply(objects.pod("roomy", 1, asked))
    assert leaves_of(await cluster.wait_bound("roomy", 1)) == {"s2-l1"}
    fresh = written(file, scoringWeights={**nothing, "domainUtilization": 1.0})
    await cluster.wait_for(lambda: replica.daemon.configuration.topology == fresh.topology, 10, "reloaded")
    await cluster.apply(objects.pod("snug", 1, asked))
    assert nodes_of(await cluster.wait_bound("snug", 1))[0].startswith("s1-")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "apiVersion: topology.scheduler/v1alpha1\nkind: TopologySchedulerConfig\n"
            "spec: {topologyConstraints: {enforcement: strictly}}\n",
            "spec.topologyConstraints.enforcement",
        ),
        (
            "apiVersion: topology.scheduler/v1alpha1\nkind: TopologySchedulerConfig\n"
            "spec: {scoringWeights: {resourceAvailability: 1.5}}\n",
            "spec.scoringWeights.resourceAvailability",
        ),
        (
            "apiVersion: topology.scheduler/v1alpha1\nkind: TopologySchedulerConfig\n"
            "spec: {scoringWeights: {resourceAvailabilty: 0.5}}\n",
            "did you mean resourceAvailability?",
        ),
        ("kind: [unfinished", "not valid YAML"),
        ("# nothing any more\n", "no configuration in it"),
    ],
    ids=["bad choice", "out of range", "unknown key", "no YAML", "emptied"],
)
async def test_a_bad_one_is_refused_and_the_old_one_stays(
    cluster: Cluster,
    start_replica: StartReplica,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    text: str,
    problem: str,
) -> None:
    file = tmp_path / "config.yaml"
    good = written(file, topologyConstraints={"maxNodesPerLeaf": 2})
    replica = await start_replica(good, config_path=file)
    put(file, text)
    await cluster.wait_for(
        lambda: any("is refused, the old one stays" in line and problem in line for line in caplog.messages),
        10,
        f"a log line with {problem}",
    )
    assert replica.daemon.configuration.topology == good.topology
    assert await replica.metric("topology_scheduler_configuration_refused") == 1
    await cluster.add_fabric({"s1": [4, 4]})
    await cluster.apply(objects.gang("team", 4))
    assert len(leaves_of(await cluster.wait_bound("team", 4))) == 2
    better = written(file, topologyConstraints={"maxNodesPerLeaf": 4})
    await cluster.wait_for(lambda: replica.daemon.configuration.topology == better.topology, 10, "mended")
    assert await replica.metric("topology_scheduler_configuration_refused") == 0


async def test_a_kind_that_is_gone_from_the_file_is_logged(
    cluster: Cluster, start_replica: StartReplica, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "config.yaml"
    await start_replica(written(file, topologyConstraints={"maxNodesPerLeaf": 2}), config_path=file)
    put(file, file.read_text().split("---")[0])
    await cluster.wait_for(
        lambda: any("has no TopologySchedulerConfig any more" in line for line in caplog.messages), 10, "a warning"
    )
    assert "its fields that SchedulerConfig.spec does not set have their defaults" in caplog.text
