"""``topo-scheduler topology``: the fabric of a cluster as a tree, with what is free."""

import json
from pathlib import Path

import click

from topo_scheduler.cli.common import USAGE, Failure, cluster_options, config_option, run_async


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@cluster_options
@config_option
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "wide", "json"]),
    default="text",
    help="wide also tells who sits where.",
)
def command(kubeconfig: str | None, context: str | None, config_path: Path | None, output: str) -> None:
    """Show the fabric as a tree: domains and nodes with their GPUs, how full they are and how fragmented.

    Lists nodes and pods once; writes nothing. --config tells other labels or GPU resources than the usual ones.
    """
    run_async(_show(kubeconfig, context, config_path, output))


async def _show(kubeconfig: str | None, context: str | None, config_path: Path | None, output: str) -> None:
    from topo_scheduler.api.config import ConfigError
    from topo_scheduler.cli import render, views
    from topo_scheduler.cli.snapshot import build_world, connected, list_cluster
    from topo_scheduler.daemon import read_configuration

    try:
        configuration = read_configuration(config_path)
    except ConfigError as error:
        raise Failure(str(error), USAGE) from error
    async with connected(kubeconfig, context) as client:
        listed = await list_cluster(client)
    root = views.tree(build_world(listed, configuration), listed.pods)
    for problem in render.problems(listed.problems):
        click.echo(f"warning: {problem}", err=True)
    if root is None:
        raise Failure("the cluster has no nodes")
    if output == "json":
        click.echo(json.dumps(render.as_json(root), indent=2))
        return
    screen = render.console()
    screen.print(render.fabric(root, wide=output == "wide", tenants=output == "wide"))
    if note := render.unlabelled_note(root):
        screen.print(note, style="yellow")
