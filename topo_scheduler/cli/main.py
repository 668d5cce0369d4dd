"""``topo-scheduler``: the commands. Each is imported only when it is called.

So ``--help`` and ``--version`` are fast: importing numba and the Kubernetes client takes a second.
"""

from importlib import import_module
from typing import Any, Final

import click

from topo_scheduler import __version__
from topo_scheduler.cli.common import full_disks_reported, open_standard_files, use_plain_characters

COMMANDS: Final = {
    "run": "Run the scheduler: in a cluster, or with a kubeconfig.",
    "check-config": "Check a configuration file or a folder of them.",
    "topology": "Show the fabric as a tree with its free GPUs.",
    "explain": "Report why a pod was placed or is pending, and what would help.",
    "drain": "Empty a domain or a node by Migrations.",
    "filter": "List the feasible nodes of a snapshot's pods by Kubernetes' own filters.",
    "replay": "Repeat recorded decisions and report the first that differs.",
    "simulate": "Schedule a workload on a cluster in virtual time, and compare policies.",
    "demo": "Schedule the examples on a cluster inside this process.",
}
"""All commands with their line in ``--help``; ``a-b`` is ``command`` in ``topo_scheduler.cli.a_b``."""


class LazyCommands(click.Group):
    """A group of commands that imports only the command that is called."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command; output characters that the locale lacks are replaced."""
        open_standard_files()
        use_plain_characters()
        with full_disks_reported():
            return super().main(*args, **kwargs)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the help text."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"topo_scheduler.cli.{cmd_name.replace('-', '_')}")
        command = module.command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(cls=LazyCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="topo-scheduler")
def main() -> None:
    """A topology-aware, gang-aware GPU scheduler for Kubernetes."""
