"""Documents that commands print with ``-o json``, made so that they have every field that there is."""

import ast
import inspect
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, Final

from click.testing import CliRunner

from tests.helpers import make_node, make_pod
from tests.state.device_objects import claim, gpu, mig_slices, put, slice_of
from topo_scheduler.api.annotations import CHARGED_FRACTION, GPU_FRACTION, GPU_INDEX, PREDICTED_GPUS
from topo_scheduler.api.config import load_configuration
from topo_scheduler.api.labels import GPU_SHARING, RAIL_LABELS
from topo_scheduler.cli import accelerators, device_rows, drain, filter, gangs, gpu_links, render, replay, topology
from topo_scheduler.cli.snapshot import Listed, build_world
from topo_scheduler.recording.replay import Difference, Report

_MODEL: Final = "nvidia.com/gpu.product"
_LINKS: Final = """
apiVersion: topology.scheduler/v1alpha1
kind: TopologySchedulerConfig
spec: {links: [{level: leaf, capacity: 800Gb}], gpusByAnnotation: {namespaces: ["*"]}}
"""
_WRITERS: Final = {
    "topology": (
        (topology, "as_json"),
        (topology, "_watch"),
        (render, "as_json"),
        (render, "_node_json"),
        (gpu_links, "as_json"),
        (device_rows, "as_json"),
        (device_rows, "_device_json"),
        (accelerators, "as_json"),
        (gangs, "as_json"),
    ),
    "filter": ((filter, "command"),),
    "drain": ((drain, "as_json"),),
}
"""The functions that write the fields of each command; those of `replay` are in a dataclass."""
COMMANDS_WITH_JSON: Final = tuple(_WRITERS)


def written_fields(command: str) -> set[str]:
    """Return the fields that the code of a command names, whether a document has them or not."""
    return {name for module, function in _WRITERS[command] for name in _keys(module, function)}


def _keys(module: ModuleType, function: str) -> set[str]:
    tree = ast.parse(inspect.getsource(module))
    (body,) = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function
    )
    nodes = [node for statement in body.body for node in ast.walk(statement)]
    keys = {key for node in nodes if isinstance(node, ast.Dict) for key in node.keys}
    targets = {node.slice for node in nodes if isinstance(node, ast.Subscript)}
    return {node.value for node in (*keys, *targets) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def documents() -> dict[str, Any]:
    """Return a document of each command."""
    return {"topology": _topology(), "filter": _filter(), "replay": _replay(), "drain": _drain()}


def _topology() -> dict[str, Any]:
    clique = {"nvidia.com/gpu.clique": "clique-1"}
    nodes = [
        make_node("mesh", "spine-1/leaf-1", labels={_MODEL: "Tesla-V100-SXM2-32GB", **clique}),
        make_node("shared", "spine-1/leaf-1", labels={_MODEL: "NVIDIA-L40S", GPU_SHARING: "true"}),
        make_node("rails", labels={label: f"leaf-{rail}" for rail, label in enumerate(RAIL_LABELS)}),
        make_node("whole", "spine-2/leaf-2", gpus=0),
        make_node("split", "spine-2/leaf-2", gpus=0),
    ]
    share = {GPU_FRACTION: "0.25", CHARGED_FRACTION: "0.25", GPU_INDEX: "0"}
    pods = [
        make_pod("worker", gpus=2, node="mesh", annotations={PREDICTED_GPUS: "0,3"}),
        make_pod("notebook", node="shared", annotations=share),
    ]
    configuration = load_configuration({"links": _LINKS})
    world = build_world(Listed(nodes, pods), configuration)
    taint = {"key": "xid", "value": "79", "effect": "NoExecute"}
    put(world.inventory, slice_of("whole", [gpu(0), gpu(1, taints=[taint])]), *mig_slices("split"))
    put(world.inventory, claim("training", "whole", "gpu-0", pods=["trainer"]))
    put(world.inventory, claim("part", "split", "gpu-0-mig-1g-10gb-6"))
    return {"at": "of --watch only", **topology.as_json(world, pods)}


def _filter() -> Any:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot.json"
        path.write_text('{"nodes": [{"metadata": {"name": "node-1"}}]}', encoding="utf-8")
        result = CliRunner().invoke(filter.command, ["--snapshot", str(path), "-o", "json"])
    return json.loads(result.output)


def _replay() -> Any:
    return json.loads(replay.as_json(Report(first=Difference("", "", 1, "", "", "", "", "", ""))))


def _drain() -> Any:
    migration = drain.WantedMigration("default", "drain-node-1", "Job training", (("training-0", "uid"),))
    plan = drain.DrainPlan("node-1", ("node-1",), (migration,), (drain.RemainingPod("p", "node-1", "stays"),))
    return drain.as_json(plan, dry_run=True)
