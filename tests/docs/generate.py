"""Writes the references that follow from code: ``python -m tests.docs.generate``.

What is written by hand stands in the introductions here; everything in the tables is read from the models, the label
families, the metrics registry and the command line. Measurements come from the run that is kept beside them, and from
the results that other commands keep in `docs/reference/results`.
"""

import inspect
import json
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import click
import msgspec

from tests.bench.table import page_of_copy
from tests.docs import config_reference, stability, templates
from tests.docs.command_line import commands
from tests.docs.metric_families import metric_families
from tests.docs.rights import RIGHTS
from tests.docs.tables import NOTICE, code_list, table
from topo_scheduler.api import labels
from topo_scheduler.api.links import uplink_label
from topo_scheduler.cli.explanation_schema import Explained
from topo_scheduler.cli.main import main as cli
from topo_scheduler.simulation.results.model import Result
from topo_scheduler.state.devices import node_hardware, products

ROOT: Final = Path(__file__).resolve().parents[2]
REFERENCE: Final = ROOT / "docs" / "reference"


# ---------------------------------------------------------------- labels

_LABELS: Final = """\
# Node labels

This page lists the node labels that the scheduler reads. It writes none. How to choose and set them:
[label nodes](../how-to/label-nodes.md).

```text
label on the node                        what the scheduler knows
topology.scheduler/spine: spine-1        node-3 is below spine-1/leaf-1
topology.scheduler/leaf: leaf-1
nvidia.com/gpu.product: NVIDIA-H100      GPU model
nvidia.com/gpu.clique: clique-7          NVLink domain
```

## Position in the network: families

A *family* is the set of labels by which one tool describes the position of a node in the network. For each node the
scheduler uses one family: the first one, in configured order, of which the node carries a label. It never mixes labels
of two families. If a row has `needs`, the scheduler uses that family only for nodes with one of those labels. The
values of the labels are the names of the domains.
"""
_LABELS_LEVELS: Final = """
Levels from the outside in: {levels}. A level that no node carries does not exist. `topology.families` names families of
the first column; its default is {default}. `kubernetes` is used only if you configure it. The scheduler then adds its
levels outside of the family that applies. `topology.levels` replaces all families by levels of your own.

If a node lacks a level that other nodes carry, it belongs to a child called `{unlabelled}` of its known parent.
"""
_ACCELERATORS: Final = """\
## Accelerator domains

NVLink domains and similar interconnects form a second tree over the same nodes. For each level the first label that a
node carries names its domain. `topology.accelerators` replaces this list. Levels are listed from the outside in. How
the scheduler uses them: [label nodes](../how-to/label-nodes.md#nvlink-domains).

"""
_RAILS: Final = """
## Rails

In rail-optimised fabrics these labels name the leaf switch of the node's NIC of each rail. All nodes with the same leaf
switches form one unit. If a node carries any of these labels, they override all other labels of a leaf.
`topology.rails` replaces them.

"""

_BANDWIDTH: Final = """
## Bandwidth of a node's network

A value such as `200Gb`. The first label present applies; `bandwidthLabels` replaces the list. If a value cannot be
read, the scheduler logs it and treats the bandwidth as unknown. It neither filters nor limits nodes of unknown
bandwidth. For nodes without a label, `links` with `level: node` sets the bandwidth.

"""
_UPLINKS: Final = """
## Capacity of an uplink

The capacity in each direction of the uplink of the node's domain at a level, a value such as `3200Gb`. It must be the
same on all nodes of the domain. If nodes disagree, the scheduler logs it and uses the lowest value. If a value cannot
be read, the scheduler logs and ignores it. [Limit links](../how-to/limit-links.md) describes other ways to set it.

"""
_SHARING: Final = """\
## Shared GPUs

`true` lets pods hold [shares](../how-to/share-gpus.md) of the node's GPUs. The scheduler logs any value other than
`true` and `false`, and treats it as `false`.

"""

_GPUS: Final = """
## GPUs of a node

What pods can [ask of the GPUs](../how-to/choose-gpus.md) of a node. ResourceSlices of the node override these labels,
and these override what the scheduler knows of the product in the model label. It logs values that it can't read, and
sources that disagree.

"""
_GPU_LABELS: Final = (
    (node_hardware.COUNT_LABELS, "number of GPUs"),
    (
        node_hardware.MEMORY_LABELS[::2],
        "memory of each, in MiB or with its unit: `80Gi`",
    ),
    ((node_hardware.AMD_MEMORY_LABEL,), "memory of each: `192G`, in GiB as AMD's labeller counts"),
    ((node_hardware.FAMILY_LABEL,), "architecture: `hopper`"),
    ((node_hardware.MAJOR_LABEL, node_hardware.MINOR_LABEL), "compute capability"),
    (
        (node_hardware.TOPOLOGY_LABEL,),
        f"links: {code_list(products.TOPOLOGIES)}. `nvlink`: the product's mesh, or all pairs",
    ),
    ((node_hardware.STRATEGY_LABEL,), "MIG strategy: `single` or `mixed`"),
    (node_hardware.MIG_CAPABLE_LABELS, "`true` if the GPUs can be split by MIG, else `false`; for messages only"),
    (node_hardware.MIG_CONFIG_LABELS, "name of the MIG configuration; for messages only"),
    ((node_hardware.REPLICAS_LABEL,), "above 1 if pods share GPUs by time slicing or MPS: links count as unknown"),
)

_RESOURCES: Final = """
## Resources that are GPUs

These are not labels: the scheduler reads them from `status.allocatable` of the node. `gpuResources` replaces the list.
The GPUs of a node are the sum over these resources.

"""


def _wrapped(text: str) -> str:
    paragraphs = [textwrap.fill(" ".join(part.split()), 120, break_on_hyphens=False) for part in text.split("\n\n")]
    return "\n" + "\n\n".join(filter(None, paragraphs)) + "\n\n"


def labels_page() -> str:
    """Return ``labels.md``."""
    levels = [level for level in labels.LEVELS if any(level in f.keys for g in labels.FAMILIES.values() for f in g)]
    rows = [
        (
            f"`{name}`",
            "<br>".join(f"{level}: `{family.keys[level]}`" for level in levels if level in family.keys),
            "<br>".join(f"`{marker}`" for marker in family.markers),
        )
        for name, families in labels.FAMILIES.items()
        for family in families
    ]
    accelerators = [
        (f"`{level}`", "<br>".join(f"`{key}`" for key in keys)) for level, keys in labels.ACCELERATOR_LEVELS.items()
    ]
    sharing = [(f"`{labels.GPU_SHARING}`", "`true` or `false`")]
    resources = [(f"`{name}`",) for name in labels.GPU_RESOURCES]
    models = [(f"`{name}`",) for name in labels.GPU_MODEL_LABELS]
    uplinks = [(level, f"`{uplink_label(level)}`") for level in levels]
    bandwidths = [(f"`{name}`",) for name in labels.BANDWIDTH_LABELS]
    return "".join(
        [
            NOTICE,
            _LABELS,
            "\n" + table(("family", "label of each level", "needs"), rows),
            _wrapped(
                _LABELS_LEVELS.format(
                    levels=code_list(levels), default=code_list(labels.NETWORK_FAMILIES), unlabelled=labels.UNLABELLED
                )
            ),
            _ACCELERATORS,
            table(("level", "labels"), accelerators),
            _RAILS,
            table(("labels",), [(f"`{labels.RAIL_LABELS[0]}` to `{labels.RAIL_LABELS[-1]}`",)]),
            "\n## GPU model\n\nThe first label present applies; `gpuModelLabels` replaces the list.\n\n",
            table(("label",), models),
            _wrapped(_BANDWIDTH),
            table(("label",), bandwidths),
            _wrapped(_UPLINKS),
            table(("level", "label"), uplinks),
            _wrapped(_SHARING),
            table(("label", "value"), sharing),
            _wrapped(_GPUS),
            table(
                ("labels", "value"),
                [("<br>".join(f"`{key}`" for key in keys), meaning) for keys, meaning in _GPU_LABELS],
            ),
            _wrapped(_RESOURCES),
            table(("resource",), resources),
        ]
    )


# ---------------------------------------------------------------- metrics

_METRICS: Final = """\
# Metrics

The scheduler serves metrics at `/metrics` in Prometheus' text format, by default on port 10261. No label ever carries
the name of a pod or a job. Names have the prefix `topology_scheduler`. Four that were promised earlier have the
shorter prefix `topology`: `topology_domain_utilization_ratio`, `topology_gpu_allocation_ratio`,
`topology_placement_decisions_total` and `topology_recovery_duration_seconds`.

For example, alert if pods are pending for more than an hour:

```text
topology_scheduler_longest_wait_seconds{queue="unschedulable"} > 3600
```

## Label values

- `limit`: the limit per leaf, `maxNodesPerLeaf` or `maxGPUsPerLeaf`. A limit that is not set has no sample.
- `level`, `domain`: level of a domain and its path, such as `spine-1/leaf-2`; `cluster` and an empty path for the whole
  cluster. Metrics of links have those of the domain's uplink; `node` and a leaf stand for the networks of its nodes
  together. Accelerator domains have the levels `accelerator-domain` and `accelerator-sub-domain`, and their path in the
  second tree.
- `level` in `topology_scheduler_gang_score` and `topology_scheduler_gang_hops`: innermost level of which one domain
  holds the gang, `node` for one node.
- `gpus`: GPUs of one pod, two or more.
- `choice`: `exact`, or `predicted` where a device plugin chooses.
- `model`, `member`: GPU model by the labels of nodes, empty without a label; `node` for members of whole nodes,
  `typical` for those of [the usual size](../explanation/fragmentation.md#fragmentation).
- `verdict`: `placed` or `unschedulable`.
- `outcome` in `topology_scheduler_bind_duration_seconds`: `bound`, `rejected`, `taken`, `gone`, `withdrawn`,
  `unbound` or `unknown`. [Binds with an unknown
  outcome](../explanation/writes-and-retries.md#binds-with-an-unknown-outcome) describes them.
- `outcome` in `topology_scheduler_preemption_victims_total` and `topology_scheduler_recovery_evictions_total`:
  `evicted`, `failed`, `blocked` (by a disruption budget), `gone` (the pod did not exist any more) or `withdrawn` (not
  sent, because no longer needed). Each retry of an eviction counts.
- `outcome` in `topology_recovery_duration_seconds`: the last [phase](migrations.md#status) of the Migration, `Done`,
  `Failed` or `Cancelled`; `cause`: its [cause](../explanation/failure-detection.md#what-counts-as-a-failure), such as
  `NodeUnreachable`.
- `phase` in `topology_scheduler_recovery_duration_seconds`: a phase of a Migration that is not the last: `Planned`,
  `Reserving`, `Evicting` or `Placing`.
- `phase` in `topology_scheduler_workload_failures_total`: the step that failed: `understanding`, `decision`,
  `preemption`, `placement`, `explanation`, `reservation`, `moves`, `outcome` (of a bind or a volume) or `recovery`.
  `object` stands for a node, namespace or disruption budget that could not be read, `step` for work that serves no
  single workload.
- `kind`: `fault` (an exception), or the exceeded budget: `operations`, `time` or `memory`. See
  [the barrier around each workload](../explanation/barrier.md).
  In `topology_scheduler_device_problems`: `unreadable`, `incomplete`, `outdated`, `duplicate`, `contradiction`,
  `unsupported`, `gone`, `taken-twice` or `left`, see [device problems](../how-to/see-devices.md#problems-of-devices).
- `state` of spare nodes: `wanted`, `free` or `lent`. Of devices: `free`, `allocated`, `shared` (claims have parts of
  it), `blocked` (it overlaps allocated partitions) or `unavailable` (it has a taint). Pools that are incomplete or
  invalid count no devices.
- `driver`, `profile`: of devices; the profile is `whole` for devices that are no partitions. Metrics show 64 pairs at
  most.
- `queue`: `active`, `backoff`, `unschedulable`, `gated` (the gang lacks pods) or, of pending pods, `outside` (beyond
  the [cap](caps.md) of its namespace).
- `namespace`: in `topology_scheduler_dominant_share_ratio` only, for namespaces that have pods of this scheduler.
- `resource`: the plural of a watched kind, such as `pods`.
- `verb`, `code`: HTTP method and status of a request; code 0 if no answer came.
- `result`: `posted`, `dropped` or `failed`.
- `plugin`, `point`: name of a loaded plugin, and its extension point: `filter`, `score`, `strategy`, `size rule`,
  `bind` or `post-bind`.
- `reason`: `raised` (an exception), `answer` (an invalid answer), `slow` (a timeout), `disabled` (not called after a
  timeout) or `dropped` (too many binds to report).

A replica that does not lead has no state of the cluster. It serves no sample of domains, queues, watches and events,
and 0 for the single gauges. Requests, received bytes and the time to compile kernels are those of the process.

## Metrics
"""


def metrics_page() -> str:
    """Return ``metrics.md``."""
    rows = [(f"`{family.name}`", family.type, code_list(family.labels), family.meaning) for family in metric_families()]
    return NOTICE + _METRICS + "\n" + table(("metric", "type", "labels", "meaning"), sorted(rows))


# ---------------------------------------------------------------- command line

_CLI: Final = """\
# Command line

This page shows the `--help` text of the commands that work on a cluster. `python -m topo_scheduler` is the same as
`topo-scheduler`. To begin, look at a cluster, then at one pending workload:

```sh
topo-scheduler topology
topo-scheduler explain training
```

`filter`, `replay`, `simulate` and `demo` need no cluster: [offline commands](cli-offline.md). For RBAC, see
[permissions](cli-permissions.md).

All commands:
"""
_CLI_OFFLINE: Final = """\
# Offline commands

This page shows the `--help` text of the commands that need no cluster. Only `simulate --cluster live` reads one. To
begin, schedule the examples on a cluster inside the process:

```sh
topo-scheduler demo
```

All other commands: [command line](cli.md).
"""
_OFFLINE: Final = ("filter", "replay", "simulate", "demo")


def cli_page() -> str:
    """Return ``cli.md``."""
    names = [name for name in commands() if name not in _OFFLINE]
    return "".join([NOTICE, _CLI, f"\n```text\n{_help(cli, 'topo-scheduler')}\n```\n", *_helps(names)])


def cli_offline_page() -> str:
    """Return ``cli-offline.md``."""
    return "".join([NOTICE, _CLI_OFFLINE, *_helps(_OFFLINE)])


def cli_permissions_page() -> str:
    """Return ``cli-permissions.md``."""
    return NOTICE + RIGHTS


def _helps(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        yield f"\n## {name}\n\n```text\n{_help(commands()[name], f'topo-scheduler {name}')}\n```\n"


def _help(command: click.Command, name: str) -> str:
    context = click.Context(
        command, info_name=name, terminal_width=100, max_content_width=100, **command.context_settings
    )
    with context:
        return "\n".join(line.rstrip() for line in command.get_help(context).splitlines()).rstrip()


# ---------------------------------------------------------------- all of them


def _flush_left(schema: dict[str, object]) -> dict[str, object]:
    """Return a part of a schema with its description cleaned as a docstring: msgspec does that since 0.23 only."""
    description = schema.get("description")
    return {**schema, "description": inspect.cleandoc(description)} if isinstance(description, str) else schema


def schema_page() -> str:
    """Return the schema of ``explain -o json``."""
    described = json.dumps(msgspec.json.schema(Explained))
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Output of topo-scheduler explain -o json",
        **json.loads(described, object_hook=_flush_left),
    }
    return json.dumps(schema, indent=2) + "\n"


def result_page() -> str:
    """Return the schema of ``result.json`` of ``simulate``."""
    return json.dumps(Result.model_json_schema(), indent=2) + "\n"


PAGES: Final[dict[str, Callable[[], str]]] = {
    **config_reference.PAGES,
    **templates.PAGES,
    **stability.PAGES,
    "labels.md": labels_page,
    "metrics.md": metrics_page,
    "cli.md": cli_page,
    "cli-offline.md": cli_offline_page,
    "cli-permissions.md": cli_permissions_page,
    "measurements.md": page_of_copy,
    "explain.schema.json": schema_page,
    "result.schema.json": result_page,
}


def main(names: Sequence[str]) -> None:
    """Write the pages named, or all of them."""
    for name in names or PAGES:
        (REFERENCE / name).write_text(PAGES[name](), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
