"""``topo-scheduler filter``: feasible nodes of pods in a file by the rules of Kubernetes alone."""

import json
from pathlib import Path

import click

from topo_scheduler.cli.common import USAGE, CommandFailure, about_file, say


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--snapshot",
    "path",
    required=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="JSON or YAML: {nodes, pods, pending, namespaces, pvs, pvcs, storageClasses, …}, or a kubectl List.",
)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text")
def command(path: Path, output: str) -> None:
    """List the feasible nodes of each pending pod by Kubernetes' own filters, and the reasons against the others.

    Reads no cluster. Each pod is filtered by itself, as by kube-scheduler. Gangs, the fabric, readiness of nodes and
    annotations of this scheduler have no effect.

    The command computes with the scheduler's own state and filters. It compiles nothing, but imports more than the
    commands that only read, so it starts more slowly.
    """
    from topo_scheduler.cli.filtering import SnapshotError, filter_snapshot, read_snapshot

    try:
        answer = filter_snapshot(read_snapshot(path))
    except SnapshotError as error:
        raise CommandFailure(about_file(path, error), USAGE) from error
    if output == "json":
        click.echo(json.dumps({"feasible": answer.feasible, "reasons": answer.reasons}, indent=2))
        return
    if not answer.feasible:
        say(f"{path}: no pod is pending; a pod with a node is not filtered, nor is an object without a kind")
    for pod, nodes in answer.feasible.items():
        say(f"{pod}: {len(nodes)} of {len(nodes) + len(answer.reasons[pod])} nodes")
        for node in nodes:
            say(f"  {node}")
        for node, reason in answer.reasons[pod].items():
            say(f"  {node}  {reason}")
