"""What commands share: how they fail, how they run, and the options that say which cluster is meant."""

import asyncio
import atexit
import codecs
import gc
import io
import json
import sys
from collections.abc import Callable, Coroutine
from math import isnan
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from topo_scheduler.api.printable import printable

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., Any])

_UNLIMITED: Final = sys.maxsize
"""A command prints what was asked for in full length."""

_OBJECTS_BETWEEN_COLLECTIONS: Final = 200_000
"""More than all imports of a command make; as garbage, some tens of MB."""

USAGE: Final = 2
"""Exit code when what was given can't be used; 1 is for an answer that is no."""


_PLAIN: Final = {"\u2192": "->", "\u25a0": "#", "\u25a1": ".", "\u2026": "...", "\u2013": "-", "\u2014": "-"}
"""Characters of this program's own that the locale may lack, and what stands for them."""


def _in_plain_characters(error: UnicodeError) -> tuple[str, int]:
    """Replace what an encoding lacks: handles errors of a codec."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    found = "".join(_PLAIN.get(one) or one.encode("ascii", "backslashreplace").decode() for one in lacking)
    return found, error.end


def use_plain_characters() -> None:
    """Have standard output and standard error replace the characters that their encoding lacks."""
    codecs.register_error("plain-characters", _in_plain_characters)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="plain-characters")


def visible(text: str) -> str:
    """Return a text of several lines with codes for all characters that are not visible; line breaks stay."""
    return "\n".join(printable(line, _UNLIMITED) for line in text.split("\n"))


def say(line: str, *, err: bool = False) -> None:
    """Print one line, with codes for what is not visible in it: a name can neither forge a line nor move a cursor.

    Args:
        line: what is printed; a line break in it came from outside, and is printed as a code.
        err: print it to standard error.
    """
    click.echo(printable(line, _UNLIMITED), err=err)


class CommandFailure(click.ClickException):
    """Ends the command with one message on standard error and an exit code; no traceback."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(visible(message))
        vars(self)["exit_code"] = code  # click declares it for the class and reads it from the instance


class ShortCommand(click.Command):
    """A command that imports, asks and answers within a second or two, and collects little garbage meanwhile.

    What imports leave is no garbage, and yet a third of the time of such a command went into looking through it: while
    it runs, and once more when the process ends.
    """

    def invoke(self, ctx: click.Context) -> Any:
        """Run it; afterwards garbage is collected as before."""
        before = gc.get_threshold()
        gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS, *before[1:])
        atexit.unregister(gc.freeze)  # in tests many commands run in one process
        atexit.register(gc.freeze)
        try:
            return super().invoke(ctx)
        finally:
            gc.set_threshold(*before)


class Number(click.FloatRange):
    """A number within bounds; "nan" is none, though it is not outside of any."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return it; fail where it is none."""
        found = float(super().convert(value, param, ctx))
        if isnan(found):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return found


def cluster_options(command: Command) -> Command:
    """Give a command ``--kubeconfig`` and ``--context``."""
    for option in (
        click.option("--context", metavar="NAME", help="Context of the kubeconfig; its current one by default."),
        click.option(
            "--kubeconfig",
            metavar="FILE",
            help="Kubeconfig; by default the pod's service account, then $KUBECONFIG, then ~/.kube/config.",
        ),
    ):
        command = option(command)
    return command


config_option = click.option(
    "--config",
    "config_path",
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="Configuration: a YAML file, or a folder of them as a mounted ConfigMap is.",
)
"""``--config``."""


config_map_option = click.option(
    "--config-map",
    metavar="NAMESPACE/NAME",
    help="ConfigMap to read the configuration from; by default the one that the scheduler's Deployment mounts.",
)
"""``--config-map``, for commands that ask the cluster for the configuration."""


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, on uvloop where there is one."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None
    try:
        from topo_scheduler.cli.event_loop import EventLoop as factory
    except ImportError:
        factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(work)


def as_document(found: Any, output: str) -> str:
    """Return an answer as ``json`` or ``yaml``."""
    if output == "json":
        return json.dumps(found, indent=2)
    import yaml

    return str(yaml.safe_dump(found, sort_keys=False)).rstrip("\n")


def first_cause(error: BaseException) -> BaseException:
    """Return the first error inside nested groups: what went wrong, without the tasks it went wrong in."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
