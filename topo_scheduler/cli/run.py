"""``topo-scheduler run``: the scheduler process. Flags override the configuration file, which overrides defaults."""

import errno
import gc
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from topo_scheduler.cli.common import USAGE, CommandFailure, cluster_options, config_option, first_cause
from topo_scheduler.cli.coroutines import run_async, stop_event

if TYPE_CHECKING:
    from topo_scheduler.api.config import Configuration


class Duration(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A duration such as ``15s``; the configuration checks its range."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the duration in seconds."""
        from topo_scheduler.api.durations import DurationError, parse_duration

        try:
            return parse_duration(str(value))
        except DurationError as error:
            self.fail(str(error), param, ctx)


class Size(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A size such as ``512Mi``; the configuration checks its range."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the size in bytes."""
        from topo_scheduler.api.quantity import QuantityError, parse_quantity

        try:
            return parse_quantity(value, 1)
        except QuantityError as error:
            self.fail(str(error), param, ctx)


def election_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command kube-scheduler's flags for leader election."""
    for flag, kind, text in (
        ("resource-namespace", str, "Namespace of the Lease."),
        ("resource-name", str, "Name of the Lease."),
        ("retry-period", Duration(), "Pause between attempts to take or renew the Lease."),
        ("renew-deadline", Duration(), "How long a leader tries to renew before it stops leading."),
        ("lease-duration", Duration(), "How long other replicas wait after the last renewal."),
    ):
        parameter, metavar = flag.replace("-", "_"), "NAME" if kind is str else "DURATION"
        command = click.option(f"--leader-elect-{flag}", parameter, type=kind, metavar=metavar, help=text)(command)
    # As in kube-scheduler: `--leader-elect`, `--leader-elect=false`.
    return click.option(
        "--leader-elect",
        type=click.BOOL,
        is_flag=False,
        flag_value="true",
        metavar="[=true|false]",
        help="Take a Lease before scheduling; on by default.",
    )(command)


@contextmanager
def _collections_enabled_at_end() -> Iterator[None]:
    try:
        yield
    finally:
        gc.enable()


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@cluster_options
@config_option
@click.option("--scheduler-name", metavar="NAME", help="Schedule pods with this schedulerName.")
@election_options
@click.option("--bind-address", metavar="ADDRESS", help="Address that serves metrics and health.")
@click.option("--metrics-port", type=int, metavar="PORT", help="Port of metrics and health; 0 takes any free port.")
@click.option(
    "--metrics-tls",
    type=click.BOOL,
    is_flag=False,
    flag_value="true",
    metavar="[=true|false]",
    help="Serve metrics and health over TLS; off by default.",
)
@click.option(
    "--metrics-authorization",
    type=click.Choice(["none", "tokenReview"]),
    help="Access to /metrics; tokenReview needs TLS. The default is none.",
)
@click.option("--record", metavar="DIR", help="Record every decision with its inputs in DIR, for `replay`.")
@click.option("--record-max-bytes", type=Size(), metavar="SIZE", help="Maximum size of DIR, such as 2Gi.")
@click.option("--audit-log", metavar="FILE", help="Append requests, decisions and actions to FILE; - for stdout.")
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="Lowest severity that is logged."
)
@click.option("--log-format", type=click.Choice(["json", "text"]), help="JSON lines, or text.")
@_collections_enabled_at_end()
def command(config_path: Path | None, **flags: Any) -> None:
    """Run the scheduler.

    Flags override the file given with --config. SIGTERM and SIGINT trigger a graceful shutdown: the
    scheduler awaits binds in flight and releases the Lease.
    """
    from topo_scheduler import kernels
    from topo_scheduler.kernels.warm import warm_beside

    warm_beside()
    if kernels.CACHE.whole:
        # Imports leave little garbage, compilation much. The daemon enables collections after all imports.
        gc.disable()
    from topo_scheduler.api.config import ConfigError
    from topo_scheduler.kube.connection.errors import Misconfigured
    from topo_scheduler.observability import logs
    from topo_scheduler.runtime.config_files import read_configuration

    try:
        configuration = with_flags(read_configuration(config_path), flags)
    except ConfigError as error:
        raise CommandFailure(str(error), USAGE) from error
    logging = configuration.scheduler.logging
    logs.configure(logging.level, logging.format)
    try:
        run_async(_serve(configuration, config_path))
    except (ConfigError, Misconfigured) as error:
        raise CommandFailure(str(error), USAGE) from error
    except OSError as error:
        raise _port_failure(error, configuration) from error
    except BaseExceptionGroup as group:
        cause = first_cause(group)
        if isinstance(cause, ConfigError):
            raise CommandFailure(str(cause), USAGE) from group
        if isinstance(cause, OSError):
            raise _port_failure(cause, configuration) from group
        raise


def with_flags(configuration: "Configuration", flags: dict[str, Any]) -> "Configuration":
    """Return the configuration with the given flags, which override the values of the file.

    Raises:
        ConfigError: a value that can't be used.
    """
    from pydantic import ValidationError

    from topo_scheduler.api.config import ConfigError
    from topo_scheduler.api.process import SchedulerConfig

    given = {name: value for name, value in flags.items() if value is not None}
    scheduler = configuration.scheduler
    merged = scheduler.model_dump()
    for section, names in _SECTIONS.items():
        section_values = merged
        for part in section.split(".") if section else ():
            section_values = section_values[part]
        section_values.update({field: given[flag] for flag, field in names.items() if flag in given})
    try:
        return replace(configuration, scheduler=SchedulerConfig.model_validate(merged))
    except ValidationError as error:
        raise ConfigError("; ".join(_explain(item) for item in error.errors())) from error


_SECTIONS = {
    "": {"scheduler_name": "scheduler_name"},
    "leader_election": {
        name: name
        for name in (
            "leader_elect", "lease_duration", "renew_deadline", "retry_period", "resource_name", "resource_namespace"
        )
    },
    "client_connection": {"kubeconfig": "kubeconfig", "context": "context"},
    "metrics": {
        "bind_address": "bind_address", "metrics_port": "port", "metrics_authorization": "authorization"
    },
    "metrics.tls": {"metrics_tls": "enabled"},
    "logging": {"log_level": "level", "log_format": "format"},
    "record": {"record": "directory", "record_max_bytes": "max_bytes"},
    "audit_log": {"audit_log": "path"},
}  # fmt: skip
"""By section of SchedulerConfig, the field of each flag."""


def _explain(error: Any) -> str:
    from topo_scheduler.api.config_errors import problem, with_found

    section = str(error["loc"][0]) if error["loc"] else ""
    field = str(error["loc"][-1]) if error["loc"] else ""
    names = {
        field_name: flag for flag, field_name in _SECTIONS.get(section if len(error["loc"]) > 1 else "", {}).items()
    }
    if field in names:
        prefix = "leader-elect-" if section == "leader_election" and field != "leader_elect" else ""
        return f"--{prefix}{names[field].replace('_', '-')}: {with_found(error)}"
    return f"{section.replace('_', ' ')}: {problem(error)}" if section else problem(error)


async def _serve(configuration: "Configuration", config_path: Path | None) -> None:
    from topo_scheduler.daemon import serve

    await serve(configuration, config_path=config_path, stop=stop_event())


def _port_failure(error: OSError, configuration: "Configuration") -> CommandFailure:
    serving = configuration.scheduler.metrics
    where = f"{serving.bind_address}:{serving.port}"
    if error.errno == errno.EADDRINUSE:
        return CommandFailure(
            f"{where} is in use by another process; choose another with metrics.port or --metrics-port, 0 takes a free"
            " one"
        )
    remedy = ""
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        remedy = "; metrics.bindAddress or --bind-address must name an address of this machine, such as 0.0.0.0"
    elif error.errno == errno.EACCES:
        remedy = "; set metrics.port or --metrics-port to 1024 or above"
    return CommandFailure(f"cannot serve metrics and health on {where}: {error.strerror or error}{remedy}")
