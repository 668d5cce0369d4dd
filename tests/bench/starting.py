"""What a start and what nodes cost: kernels, whole lists of nodes, one node's labels, what each scrape measures."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import msgspec

from tests.cli.processes import SIMPLE_COMMANDS, arguments_of, cpu_seconds, write_unreachable
from topo_scheduler.api.objects import Node, Pod
from topo_scheduler.scheduling.surveying.fragmentation import fragmentation

from . import objects
from .objects import Json
from .placing import CLOCK, Cluster, node, quantiles


def fabric(nodes: int = 10_000, changes: int = 200) -> Json:
    """Taking over a whole list of decoded nodes, and one node's changed labels."""
    listed = [node(number, objects.LEAF) for number in range(nodes)]
    engine = Cluster(0, objects.LEAF).engine

    def taken(batch: list[Node]) -> float:
        began = CLOCK()
        engine.nodes_applied(batch, 0.0)
        _ = engine.world.layout
        return CLOCK() - began

    first = taken(listed)
    for listed_node in listed:
        listed_node.metadata.labels = {**listed_node.metadata.labels, "changed": "yes"}
    again = taken(listed)
    singles = []
    for number in range(changes):
        changed = listed[number * 37 % nodes]
        changed.metadata.labels = {**changed.metadata.labels, "topology.scheduler/leaf": f"leaf-{number}"}
        singles.append(taken([changed]))
    return {
        "nodes": nodes,
        "first_list_ms": round(1e3 * first, 1),
        "relist_all_changed_ms": round(1e3 * again, 1),
        "one_change": quantiles(singles),
    }


def largest_gangs(nodes: int, repeats: int = 50) -> Json:
    """Measuring fragmentation, as each scrape of the metrics does."""
    engine = Cluster(nodes, objects.LEAF).engine
    running = []
    for number in range(0, nodes, 3):
        body = objects.pod(f"r{number}", 2, "another", uid=f"r{number}")
        body["spec"]["nodeName"] = f"node-{number}"
        running.append(msgspec.convert(body, Pod))
    engine.pods_applied(running, 0.0)
    seconds = []
    for _ in range(repeats + 1):
        began = CLOCK()
        fragmentation(engine.world)
        seconds.append(CLOCK() - began)
    return {"nodes": nodes, **quantiles(seconds[1:])}


def kernels() -> Json:
    """Compiling every kernel cold, and loading them from the cache, each in a process of its own."""
    result: Json = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("cold", "cached"):
            command = [sys.executable, "-m", "topo_scheduler.kernels.warm", folder]
            before = os.times()
            said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            after = os.times()
            used = after.children_user + after.children_system - before.children_user - before.children_system
            result[name] = {
                "seconds": float(said.split("ready in ")[1].split(" s")[0]),
                "process_cpu_s": round(used, 2),
            }
    return result


def commands(repeats: int = 5) -> Json:
    """Measure the CPU time of each simple command until its first request: the median of some processes."""
    with tempfile.TemporaryDirectory() as folder:
        kubeconfig = write_unreachable(Path(folder) / "kubeconfig")
        seconds = {
            command[0]: round(
                median(cpu_seconds(*arguments_of(command, kubeconfig), status=status) for _ in range(repeats)), 3
            )
            for command, status in SIMPLE_COMMANDS.items()
        }
    return {"cpu_s": seconds, "longest_cpu_s": max(seconds.values())}


def starting() -> Json:
    """All of it."""
    return {
        "kernels": kernels(),
        "commands": commands(),
        "nodes": fabric(),
        "fragmentation": {str(nodes): largest_gangs(nodes) for nodes in (1000, 5000)},
    }
