"""``topo-scheduler explain``: why a pod or job was placed on its nodes, or why it is pending and what would help."""

from pathlib import Path

import click

from topo_scheduler.cli.common import (
    USAGE,
    CommandFailure,
    ShortCommand,
    as_document,
    cluster_options,
    config_map_option,
    config_option,
    run_async,
    say,
)


@click.command(cls=ShortCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("target", metavar="POD|TYPE/NAME|NAMESPACE/POD")
@click.option(
    "-n", "--namespace", metavar="NAME", help="Namespace of the workload; by default that of the kubeconfig's context."
)
@click.option("-A", "--all-namespaces", is_flag=True, help="Look for it in all namespaces.")
@cluster_options
@config_option
@config_map_option
@click.option("--scheduler-name", metavar="NAME", help="Name of the scheduler, where it is not the configured one.")
@click.option("-o", "--output", type=click.Choice(["text", "json", "yaml"]), default="text")
def command(
    target: str,
    namespace: str | None,
    all_namespaces: bool,
    kubeconfig: str | None,
    context: str | None,
    config_path: Path | None,
    config_map: str | None,
    scheduler_name: str | None,
    output: str,
) -> None:
    """Tell why a pod is where it is, or why it has no node yet and what would help.

    Of a bound pod: what was written when it was bound, and its gang. Of a pending one: what a scheduler would decide
    about its workload now, from nodes and pods as they are; when that finds no room, why not, domain by domain, and
    the cheapest ways out, each tried on a copy of the cluster. The name of a Job, JobSet, Deployment or gang, alone or
    as TYPE/NAME (job/train, deploy/web), stands for the first of its pods that waits. What is no type before the slash
    is a namespace, as pods are called in messages (research/train-0). The output of -o json follows a
    published schema. Writes nothing. The rules are those of the ConfigMap that the scheduler's Deployment mounts,
    unless --config or --config-map names others.
    """
    if namespace and all_namespaces:
        raise CommandFailure("--namespace and --all-namespaces exclude each other; give one of them", USAGE)
    run_async(
        _explain(
            target, "" if all_namespaces else namespace, kubeconfig, context, config_path, config_map,
            scheduler_name, output,
        )
    )  # fmt: skip


async def _explain(
    target: str,
    namespace: str | None,
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
