"""The commands with their options, read from the command line."""

from collections.abc import Iterator

import click

from topo_scheduler.cli.main import main as cli


def commands() -> dict[str, click.Command]:
    """Return every command by name."""
    assert isinstance(cli, click.Group)
    context = click.Context(cli)
    by_name = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    return {name: command for name, command in by_name.items() if command is not None}


def options() -> Iterator[tuple[str, str]]:
    """Yield each command with each of its options."""
    for name, command in commands().items():
        for option in command.params:
            if isinstance(option, click.Option):
                yield from ((name, flag) for flag in (*option.opts, *option.secondary_opts))
