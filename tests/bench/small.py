"""Decisions in core on pods that are placed alone, whole GPUs and shares of them; a whole experiment of FGD."""

import os
import random
from pathlib import Path
from typing import Final

import msgspec

from tests.fragmentation.experiment import PUBLISHED, run
from tests.fragmentation.openb import machines, wants
from topo_scheduler.api.config import load_configuration
from topo_scheduler.api.objects import Pod
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.scheduling.instructions import RecordDecision
from topo_scheduler.scheduling.intake.understand import Lineage

from . import objects
from .objects import Json
from .placing import CLOCK, node, quantiles

SPEC: Final = (
    "apiVersion: topology.scheduler/v1alpha1\nkind: TopologySchedulerConfig\nspec: {smallPods: {scoring: '%s'}}"
)
SHARING: Final = {"topology.scheduler/gpu-sharing": "true"}
TRACE: Final = "default"
SEED: Final = 42


def small_pods(nodes: int, pods: int, scoring: str = "fragmentation", *, sharing: bool = False) -> Json:
    """A decision on a pod alone, of mixed sizes, while the cluster fills; the first are left out, they load kernels."""
    engine = Engine(load_configuration({"bench": SPEC % scoring}), lambda pod: Lineage())
    listed = [node(number, objects.LEAF) for number in range(nodes)]
    for listed_node in listed:
        listed_node.metadata.labels |= SHARING if sharing else {}
    engine.nodes_applied(listed, 0.0)
    draw = random.Random(42)
    waiting = []
    for number in range(pods):
        gpus = draw.choice((1, 1, 1, 2, 4, 8))
        fraction = draw.choice(("", "0.5", "0.25")) if sharing and gpus == 1 else ""
        body = objects.pod(f"p{number}", 0 if fraction else gpus, objects.OURS, uid=f"p{number}")
        if fraction:
            body["metadata"]["annotations"] = {"topology.scheduler/gpu-fraction": fraction}
        waiting.append(msgspec.convert(body, Pod))
    engine.pods_applied(waiting, 0.0)
    said = engine.step(0.0, CLOCK, 1e9)
    seconds = sorted(instruction.seconds for instruction in said if isinstance(instruction, RecordDecision))[:-2]
    return {"nodes": nodes, "pods": pods, "scoring": scoring, "sharing": sharing, **quantiles(seconds)}


def alone() -> Json:
    """Pods alone, by our score, without it, and with shares."""
    return {
        "whole": small_pods(5000, 5000),
        "scoring_off": small_pods(5000, 5000, "off"),
        "shares": small_pods(5000, 5000, sharing=True),
    }


def fgd() -> Json:
    """One whole experiment by the protocol of FGD on its list `default`, by our score and by the published one.

    Raises:
        FileNotFoundError: the data sets are not there.
    """
    folder = Path(os.environ.get("TOPO_DATA", "")) / "openb"
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not there: set TOPO_DATA to the folder of the data sets")
    cluster, pods = machines(folder), wants(folder, TRACE)
    run(cluster, pods[:50], TRACE, SEED, "fgd")  # loads kernels
    results: Json = {}
    kinds = {"ours": ("fragmentation", False), "learned": ("fragmentation", True), "fgd": ("fgd", False)}
    for name, (scoring, learned) in kinds.items():
        began = CLOCK()
        result = run(cluster, pods, TRACE, SEED, scoring, learned=learned)
        results[name] = {
            "seconds": round(result.seconds, 2),
            "cpu_s_with_its_nodes": round(CLOCK() - began, 2),
            "decisions": result.arrived,
            "placed": result.placed,
            "allocated_percent": round(result.allocated, 2),
        }
    return {"trace": TRACE, "seed": SEED, "published_percent": PUBLISHED[TRACE], **results}
