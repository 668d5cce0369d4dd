"""Plugins in the daemon: loaded by entry points, with the example, and with one that never ends."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.plugins.making import EXAMPLE, dist_info, metadata
from topo_scheduler.api.config import ConfigError, Configuration
from topo_scheduler.api.process import LeaderElection, SchedulerConfig

from . import objects
from .cluster import Cluster, annotation, nodes_of
from .conftest import StartReplica
from .replica import Replica, configured

LOOPS = """
import os
from topo_scheduler.plugins import Answer, Filter, Plugin

OPTS = dict(annotations=["example.com/loops"], opt_in=True)

def loop(nodes, cls, rows):
    while True:
        pass

def plugin(arguments):
    return Plugin(filters=[Filter("never", loop)], **OPTS)

def at_bind(arguments):
    def bind(binding):
        while True:
            pass
    return Plugin(bind=bind, **OPTS)

def refusing(arguments):
    def bind(binding):
        return Answer(refusal="not on a Sunday") if binding.name == "sunday" else Answer()
    return Plugin(bind=bind)

def ports(arguments):
    told = open(arguments["file"], "a")
    def heard(binding):
        told.write(f"{binding.name} {binding.node}\\n")
        told.flush()
    return Plugin(bind=lambda binding: Answer({"example.com/port": binding.node}, {"leased": "yes"}), post_bind=heard)
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The example and some others, as if pip had installed them."""
    (tmp_path / "topo_e2e_plugins.py").write_text(LOOPS)
    names = {"looping": "plugin", "bind-looping": "at_bind", "ports": "ports", "refusing": "refusing"}
    dist_info(tmp_path, "topo-e2e", {name: f"topo_e2e_plugins:{attribute}" for name, attribute in names.items()})
    metadata(tmp_path, EXAMPLE)
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("topo_e2e_plugins", None)


def with_plugins(
    *plugins: str, election: LeaderElection | None = None, arguments: dict[str, Any] | None = None
) -> Configuration:
    base = configured(election=election) if election else configured()
    named = [{"name": name, "arguments": arguments or {}} for name in plugins]
    settings = {**base.scheduler.model_dump(), "plugins": named, "plugin_timeout": 0.3}
    return replace(base, scheduler=SchedulerConfig.model_validate(settings))


async def test_the_example_filters_and_scores(cluster: Cluster, start_replica: StartReplica, installed: Path) -> None:
    degrees = {"hot": "90", "warm": "50", "cool": "30"}
    await cluster.add_nodes(
        objects.node(name, spine="s1", leaf=name, labels={"example.com/celsius": celsius})
        for name, celsius in degrees.items()
    )
    await start_replica(with_plugins("cool-nodes"))
    asked = {"example.com/max-celsius": "60"}
    await cluster.apply(objects.job("first", 1, 8, asked))
    assert nodes_of(await cluster.wait_bound("first", 1)) == ["cool"]
    await cluster.apply(objects.job("second", 1, 8, asked))
    assert nodes_of(await cluster.wait_bound("second", 1)) == ["warm"]
    await cluster.apply(objects.job("third", 1, 8, asked))
    (pod,) = await cluster.wait_pods("third", 1)
    await cluster.wait_note(pod, "1 node(s) were too hot")
    await cluster.label_node("hot", {"example.com/celsius": "40"})
    assert nodes_of(await cluster.wait_bound("third", 1)) == ["hot"]


async def test_one_that_loops_is_named_on_its_pod_and_the_queue_moves_on(
    cluster: Cluster, start_replica: StartReplica, installed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With a short lease too: it is renewed meanwhile."""
    election = LeaderElection(lease_duration=3.0, renew_deadline=2.0, retry_period=0.2)
    await cluster.add_fabric({"s1": [4]})
    replica = await start_replica(with_plugins("looping", election=election))
    loops = objects.pod("loops", 1, {"example.com/loops": "yes"})
    await cluster.apply(loops)
    await cluster.apply(*(objects.pod(f"others-{number}", 1) for number in range(8)))
    for number in range(8):
        await cluster.wait_bound(f"others-{number}", 1)
    (pod,) = await cluster.wait_pods("loops", 1)
    event = await cluster.wait_note(pod, "Plugin looping failed: filter: it took longer than 0.3 s")
    assert (event["type"], event["reason"]) == ("Warning", "FailedScheduling")
    assert any("plugin looping failed" in line for line in caplog.messages)
    assert await replica.metric("topology_scheduler_plugin_errors_total", plugin="looping", reason="slow") == 1
    assert replica.daemon.leading.is_set(), "the Lease was renewed"
    await _until_ended(cluster, replica)
    assert not (await cluster.fresh(pod))["spec"].get("nodeName")


async def test_one_that_loops_at_bind_delays_no_other_pod(
    cluster: Cluster, start_replica: StartReplica, installed: Path
) -> None:
    await cluster.add_fabric({"s1": [4]})
    replica = await start_replica(with_plugins("bind-looping"))
    await cluster.apply(objects.pod("loops", 1, {"example.com/loops": "yes"}))
    await cluster.apply(*(objects.pod(f"others-{number}", 1) for number in range(4)))
    for number in range(4):
        await cluster.wait_bound(f"others-{number}", 1)
    (pod,) = await cluster.wait_pods("loops", 1)
    await cluster.wait_note(pod, "plugin bind-looping failed: bind: it took longer than 0.3 s", reason="BindFailed")
    await _until_ended(cluster, replica)


async def _until_ended(cluster: Cluster, replica: Replica) -> None:
    async def ended() -> bool:
        return await replica.metric("topology_scheduler_plugin_threads_lost") == 0

    await cluster.wait_until(ended, 10, "the looping thread has ended")


async def test_a_refused_bind_gets_an_event_and_holds_nothing(
    cluster: Cluster, start_replica: StartReplica, installed: Path
) -> None:
    await cluster.add_fabric({"s1": [1]})
    await start_replica(with_plugins("refusing"))
    await cluster.apply(objects.pod("sunday", 8))
    (pod,) = await cluster.wait_pods("sunday", 1)
    await cluster.wait_note(pod, "Binding to s1-l1-1 failed: plugin refusing refuses: not on a Sunday")
    await cluster.api.delete("pods", "sunday")
    await cluster.apply(objects.pod("monday", 8))
    await cluster.wait_bound("monday", 1)


async def test_what_plugins_add_is_written_with_the_bind_and_they_hear_of_it(
    cluster: Cluster, start_replica: StartReplica, installed: Path
) -> None:
    await cluster.add_fabric({"s1": [2]})
    heard = installed / "heard"
    await start_replica(with_plugins("ports", arguments={"file": str(heard)}))
    await cluster.apply(objects.gang("team", 2))
    pods = await cluster.wait_bound("team", 2)
    for pod in pods:
        assert pod["metadata"]["annotations"]["example.com/port"] == pod["spec"]["nodeName"]
        assert pod["metadata"]["labels"]["leased"] == "yes"
        assert annotation(pod, "rank") in {"0", "1"}
    expected = {f"{pod['metadata']['name']} {pod['spec']['nodeName']}" for pod in pods}
    await cluster.wait_for(lambda: set(heard.read_text().splitlines()) == expected, 10, "post-bind")


async def test_a_plugin_that_is_missing_keeps_the_daemon_from_starting(
    cluster: Cluster, start_replica: StartReplica, installed: Path
) -> None:
    replica = await start_replica(with_plugins("missing"), wait=False)
    with pytest.raises(ConfigError, match=r"plugin missing is not installed; installed are .*cool-nodes"):
        await replica.task
    replica.ended = True
    await replica.client.close()
