"""``topo-scheduler explain``: why a pod or job is where it is, or why it has no nodes yet and what would help."""

import json
from pathlib import Path

import click

from topo_scheduler.cli.common import USAGE, Failure, cluster_options, config_option, run_async


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("pod", metavar="POD|JOB")
@click.option("-n", "--namespace", default="default", show_default=True, metavar="NAME", help="Namespace of the pod.")
@cluster_options
@config_option
@click.option("--scheduler-name", metavar="NAME", help="Name of the scheduler, where it is not the usual one.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text")
def command(
    pod: str,
    namespace: str,
    kubeconfig: str | None,
    context: str | None,
    config_path: Path | None,
    scheduler_name: str | None,
    output: str,
) -> None:
    """Tell why a pod is where it is, or why it has no node yet and what would help.

    Of a bound pod: what was written when it was bound, and its gang. Of a pending one: what a scheduler would decide
    about its workload now, from nodes and pods as they are; when that finds no room, why not, domain by domain, and
    the cheapest ways out, each tried on a copy of the cluster. The name of a Job or gang stands for the first of its
    pods that waits. The output of -o json follows a published schema. Writes nothing. Give the scheduler's own
    --config so that the same rules hold.
    """
    namespace, _, pod = pod.rpartition("/") if "/" in pod else (namespace, "", pod)
    run_async(_explain(pod, namespace, kubeconfig, context, config_path, scheduler_name, output))


async def _explain(
    name: str,
    namespace: str,
    kubeconfig: str | None,
    context: str | None,
    config_path: Path | None,
    scheduler_name: str | None,
    output: str,
) -> None:
    from topo_scheduler.api.config import ConfigError
    from topo_scheduler.cli import explanation, explanation_text, render
    from topo_scheduler.cli.run import with_flags
    from topo_scheduler.cli.snapshot import connected
    from topo_scheduler.daemon import read_configuration

    try:
        configuration = with_flags(read_configuration(config_path), {"scheduler_name": scheduler_name})
    except ConfigError as error:
        raise Failure(str(error), USAGE) from error
    async with connected(kubeconfig, context) as client:
        try:
            told = await explanation.explain(client, configuration, namespace, name)
        except ConfigError as error:
            raise Failure(str(error), USAGE) from error
    if output == "json":
        click.echo(json.dumps(told, indent=2))
    else:
        screen = render.console()
        for line in explanation_text.lines(told):
            screen.print(line, markup=False, soft_wrap=True)
