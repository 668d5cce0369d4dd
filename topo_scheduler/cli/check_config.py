"""``topo-scheduler check-config``: whether a configuration would be taken over."""

from pathlib import Path

import click

from topo_scheduler.cli.common import Failure


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
def command(file: Path) -> None:
    """Check a configuration file, or every .yaml file of a folder.

    The file may also be a manifest of the ConfigMap, alone or among other objects.

    Exit code 0 if a scheduler would take it over, 1 with file, field and remedy if not. What it would take over and
    ignore is told on standard error. Plugins that it names are loaded, so they must be installed here too.
    """
    from topo_scheduler.api.config import ConfigError
    from topo_scheduler.daemon import read_configuration
    from topo_scheduler.loading import load_extensions
    from topo_scheduler.scheduling.settings import unknown_scores

    try:
        configuration = read_configuration(file)
        extensions = load_extensions(configuration.scheduler)
    except ConfigError as error:
        raise Failure(str(error)) from error
    for text in unknown_scores(configuration, extensions):
        click.echo(f"{file}: {text}", err=True)
    click.echo(f"{file}: ok")
