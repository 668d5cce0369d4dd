"""``topo-scheduler check-config``: whether a scheduler would accept a configuration."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from topo_scheduler.cli.common import CommandFailure, ShortCommand, about_file, cluster_options, say
from topo_scheduler.cli.coroutines import run_async

if TYPE_CHECKING:
    from topo_scheduler.api.config import Configuration


@click.command(cls=ShortCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
@click.option("--live", is_flag=True, help="Also compare it with the nodes of the cluster.")
@cluster_options
def command(file: Path, live: bool, kubeconfig: str | None, context: str | None) -> None:
    """Check a configuration file, or every .yaml file of a folder.

    The file may also be a manifest of the ConfigMap. The command skips other objects in it, and names them.

    Exit code 0 if the scheduler would accept the configuration, 1 with file, field and remedy if not. Warnings on
    standard error name what it would accept and ignore. The command loads the plugins that the file names, so they
    must be installed here too.

    With --live it lists the nodes. Warnings then name limits per leaf below the size of a leaf, and levels for which
    no node has a label. They also name domains of quotas, domainAccess and links that are unknown or ambiguous, and
    nodes without labels for their position.
    """
    from topo_scheduler.api.config import ConfigError
    from topo_scheduler.runtime.config_files import read_configuration

    try:
        configuration = read_configuration(file)
        if configuration.skipped:
            say(f"{file}: skipped, as they are no configuration: {', '.join(configuration.skipped)}", err=True)
        for text in _about_plugins(configuration):
            say(f"{file}: {text}", err=True)
    except ConfigError as error:
        raise CommandFailure(about_file(file, error)) from error
    if live:
        for text in run_async(_about_fabric(configuration, kubeconfig, context)):
            say(f"{file}: warning: {text}", err=True)
    say(f"{file}: ok")


async def _about_fabric(configuration: "Configuration", kubeconfig: str | None, context: str | None) -> list[str]:
    """Return messages on parts of the configuration that don't match the nodes of the cluster."""
    from topo_scheduler.api.text import lacking_labels
    from topo_scheduler.cli.snapshot import Listed, build_world, connected
    from topo_scheduler.kube.connection.resources import NODES
    from topo_scheduler.kube.reading.listing import list_all

    async with connected(kubeconfig, context) as client:
        nodes, bad = await list_all(client, NODES)
    if not nodes:
        raise CommandFailure("the cluster has no nodes")
    from topo_scheduler.scheduling.fabric_warnings import fabric_problems
    from topo_scheduler.scheduling.rules.domains import configured_domains

    world = build_world(Listed(nodes, [], bad), configuration)
    unlabelled = lacking_labels(world.fabric.unlabelled(), len(world.nodes))
    domains = world.domains.problems(configured_domains(configuration.topology.spec))
    return [
        *bad,
        *filter(None, [unlabelled]),
        *fabric_problems(configuration, world.layout, world.nodes),
        *dict.fromkeys(message for _, message in domains),
    ]


def _about_plugins(configuration: "Configuration") -> list[str]:
    """Load the configured plugins, and return messages on unknown scores; without plugins nothing is imported."""
    from topo_scheduler.scheduling.unknown_scores import names_scores, unknown_scores

    if not configuration.scheduler.plugins and not names_scores(configuration):
        return []
    from topo_scheduler.plugins.loading import load_extensions

    return unknown_scores(configuration, load_extensions(configuration.scheduler, remedy="Install it here, too"))
