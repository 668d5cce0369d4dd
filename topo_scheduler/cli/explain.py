"""``topo-scheduler explain``: why a pod or job was placed on its nodes, or why it is pending and what would help."""

from pathlib import Path
from typing import Any

import click

from topo_scheduler.cli.common import (
    USAGE,
    CommandFailure,
    ShortCommand,
    as_document,
    cluster_options,
    config_map_option,
    config_option,
    say,
)
from topo_scheduler.cli.coroutines import run_async


@click.command(cls=ShortCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("target", metavar="POD|TYPE/NAME|NAMESPACE/POD")
@click.option(
    "-n", "--namespace", metavar="NAME", help="Namespace of the workload; by default that of the kubeconfig's context."
)
@click.option("-A", "--all-namespaces", is_flag=True, help="Search all namespaces.")
@cluster_options
@config_option
@config_map_option
@click.option("--scheduler-name", metavar="NAME", help="Name of the scheduler; by default the configured one.")
@click.option("-o", "--output", type=click.Choice(["text", "json", "yaml"]), default="text")
def command(namespace: str | None, all_namespaces: bool, **options: Any) -> None:
    """Report why a pod was placed on its node, or why it is pending and what would help.

    For a bound pod it shows what the scheduler recorded when it bound the pod, and the pod's gang. For a pending pod
    it shows what the scheduler would decide about the workload now. If there is no room, it shows the reasons for each
    domain and the cheapest remedies, each tested on a copy of the state.

    The name of a Job, JobSet, Deployment or gang, alone or as TYPE/NAME (job/train, deploy/web), stands for its first
    pending pod. A word before the slash that is no type is a namespace (research/train-0).

    The output of -o json follows a published schema. The command writes nothing. It reads the ConfigMap that the
    scheduler's Deployment mounts, unless --config or --config-map names another configuration.
    """
    if namespace and all_namespaces:
        raise CommandFailure("--namespace and --all-namespaces exclude each other; give one of them", USAGE)
    run_async(_explain("" if all_namespaces else namespace, **options))


async def _explain(
    namespace: str | None,
    target: str,
    kubeconfig: str | None,
    context: str | None,
    config_path: Path | None,
    config_map: str | None,
    scheduler_name: str | None,
    output: str,
) -> None:
    from topo_scheduler.cli import explanation, explanation_text
    from topo_scheduler.cli.live_config import live_configuration
    from topo_scheduler.cli.name_resolution import parse_target
    from topo_scheduler.cli.snapshot import connected

    async with connected(kubeconfig, context) as client:
        live = await live_configuration(client, config_path, config_map, scheduler_name)
        from topo_scheduler.api.config import ConfigError

        named_object = parse_target(target, client.namespace if namespace is None else namespace)
        try:
            report = await explanation.explain(client, live.configuration, named_object)
        except ConfigError as error:
            raise CommandFailure(str(error), USAGE) from error
    if output == "text":
        for line in explanation_text.lines(report):
            say(line)
    else:
        click.echo(as_document(report, output))
