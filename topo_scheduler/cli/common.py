"""Code that the commands share: failures, output, and options that select a cluster."""

import atexit
import codecs
import errno
import gc
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import isnan
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from topo_scheduler.api.printable import printable

Command = TypeVar("Command", bound=Callable[..., Any])

_UNLIMITED: Final = sys.maxsize
"""Commands print texts in full length."""

_OBJECTS_BETWEEN_COLLECTIONS: Final = 200_000
"""More objects than all imports of a command create; as garbage, some tens of MB."""

USAGE: Final = 2
"""Exit code for invalid arguments or input; 1 is the exit code for a negative result."""


_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

_PLAIN: Final = {"\u2192": "->", "\u25a0": "#", "\u25a1": ".", "\u2026": "...", "\u2013": "-", "\u2014": "-"}
"""Characters in this program's own output that the locale may lack, and their replacements."""


def _in_plain_characters(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that an encoding lacks; an error handler for codecs."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    unencodable = error.object[error.start : error.end]
    replacement = "".join(
        _PLAIN.get(character) or character.encode("ascii", "backslashreplace").decode() for character in unencodable
    )
    return replacement, error.end


def use_plain_characters() -> None:
    """Let standard output and standard error replace the characters that their encoding lacks."""
    codecs.register_error("plain-characters", _in_plain_characters)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="plain-characters")


def open_standard_files() -> None:
    """Open a closed standard input, output or error on the null device.

    Otherwise a socket or a file of this process gets its number, and output goes there.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one


@contextmanager
def full_disks_reported() -> Iterator[None]:
    """End the process with one line if its output can't be written, for example because its disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM or error.filename is not None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still buffered would fail again at the end
        print(f"Error: the output can't be written: {error.strerror}", file=sys.stderr)
        sys.exit(1)


def visible(text: str) -> str:
    """Return a text of several lines with escape codes for all invisible characters; line breaks stay."""
    return "\n".join(printable(line, _UNLIMITED) for line in text.split("\n"))


def say(line: str, *, err: bool = False) -> None:
    """Print one line, with escape codes for invisible characters, so that no name can forge a line or move the cursor.

    Args:
        line: the line to print; a line break in it is external input, and is printed as an escape code.
        err: whether to print to standard error.
    """
    click.echo(printable(line, _UNLIMITED), err=err)


class CommandFailure(click.ClickException):
    """Ends the command with one message on standard error and an exit code; no traceback."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(visible(message))
        vars(self)["exit_code"] = code  # click declares it for the class and reads it from the instance


def about_file(path: Path, error: Exception) -> str:
    """Return the message of an error with the file that it is about."""
    text = str(error)
    return text if text.startswith(str(path)) else f"{path}: {text}"


class ShortCommand(click.Command):
    """A command that ends within a second or two, and rarely runs the garbage collector.

    Imports leave hardly any garbage. Yet such a command spent a third of its time in collections: while it ran, and
    once more at the end of the process.
    """

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; then restore the thresholds of the garbage collector."""
        threshold = gc.get_threshold()
        gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS, *threshold[1:])
        atexit.unregister(gc.freeze)  # in tests many commands run in one process
        atexit.register(gc.freeze)
        try:
            return super().invoke(ctx)
        finally:
            gc.set_threshold(*threshold)


class Number(click.FloatRange):
    """A number within bounds; "nan" is refused, although it is not outside of any bounds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; fail if the value is none."""
        number = float(super().convert(value, param, ctx))
        if isnan(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


def cluster_options(command: Command) -> Command:
    """Give a command ``--kubeconfig`` and ``--context``."""
    for option in (
        click.option("--context", metavar="NAME", help="Context of the kubeconfig; by default the current one."),
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
    help="Configuration: a YAML file or a folder of them, such as a mounted ConfigMap.",
)
"""``--config``."""


config_map_option = click.option(
    "--config-map",
    metavar="NAMESPACE/NAME",
    help="ConfigMap with the configuration; by default the one that the scheduler's Deployment mounts.",
)
"""``--config-map``, for commands that read the configuration from the cluster."""


def as_document(answer: Any, output: str) -> str:
    """Return an answer as ``json`` or ``yaml``."""
    if output == "json":
        return json.dumps(answer, indent=2)
    import yaml

    return str(yaml.safe_dump(answer, sort_keys=False)).rstrip("\n")


def first_cause(error: BaseException) -> BaseException:
    """Return the first error inside nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
