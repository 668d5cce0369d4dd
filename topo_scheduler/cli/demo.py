"""``topo-scheduler demo``: schedules the examples with the real scheduler on a cluster inside this process."""

import asyncio
import contextlib
import errno
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from topo_scheduler.cli.common import CommandFailure, first_cause
from topo_scheduler.cli.coroutines import run_async, stop_event

if TYPE_CHECKING:
    from rich.console import Console

    from topo_scheduler.api.config import Configuration
    from topo_scheduler.simulation.apiserver import EmbeddedAPIServer, Store

LEAD_SECONDS: Final = 120.0
"""Longest wait for the scheduler to lead; on a slow machine the first compilation of kernels takes most of it."""
BIND_SECONDS: Final = 20.0
EVENT_SECONDS: Final = 10.0


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--serve", is_flag=True, help="Keep the cluster and the scheduler up for kubectl, until Ctrl-C.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, metavar="PORT", help="Port of the API server.")
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="Show the scheduler's logs as text."
)
def command(serve: bool, port: int, log_level: str | None) -> None:
    """Schedule the examples on a cluster inside this process. It needs nothing else and leaves nothing behind.

    The command builds a leaf-spine cluster and submits the files of examples/ one after the other. The daemon of `run`
    places them over HTTP. Tables show each placement and its reason. Kernels that were never compiled on this machine
    run as plain Python, with the same decisions; with --serve they are compiled.
    """
    from topo_scheduler.kernels.warm import interpret_unless_compiled, warm_beside
    from topo_scheduler.observability import logs

    interpreted = not serve and interpret_unless_compiled()
    if not interpreted:
        warm_beside()
    # The tables of the demo show what the scheduler warns about, so its warnings are not logged.
    logs.configure(log_level or "error", "text")
    try:
        run_async(_demo(serve, port, interpreted))
    except OSError as error:
        raise _unusable(error, port) from error
    except BaseExceptionGroup as group:
        cause = first_cause(group)
        if isinstance(cause, click.ClickException):
            raise cause from group
        raise


def _unusable(error: OSError, port: int) -> CommandFailure:
    if error.errno == errno.EADDRINUSE:
        return CommandFailure(f"port {port} is in use by another process; leave --port out to take a free one")
    return CommandFailure(str(error))


async def _demo(serve: bool, port: int, interpreted: bool) -> None:
    from topo_scheduler.cli import render, report
    from topo_scheduler.simulation import demo
    from topo_scheduler.simulation.cluster import ClusterDescription

    started = time.perf_counter()
    stop = stop_event()
    screen = render.console()
    examples = demo.examples_folder()
    manifests, config = demo.example_files(examples)
    manifests += demo.claim_files(examples)
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="topo-scheduler-demo-")))
        server = await stack.enter_async_context(
            demo.embedded_cluster(ClusterDescription.read(demo.DESCRIPTION), port=port)
        )
        kubeconfig = server.write_kubeconfig(folder / "kubeconfig")
        configuration = _configuration(config, kubeconfig)
        demo.release_lease(server.store, configuration.scheduler.leader_election)
        demo.publish_configuration(server.store, config)
        demo.publish_devices(server.store)
        async with _scheduling(configuration, stop) as leading:
            # Every encoding has the characters of this spinner.
            with screen.status("starting: kernels are loaded, or compiled the first time", spinner="line") as status:
                await _or_stop(leading.wait(), stop, LEAD_SECONDS, "the scheduler did not start to lead")
                ready = time.perf_counter()
                await _place(server.store, manifests, configuration.scheduler.scheduler_name, status.update)
                placed = time.perf_counter()
            await report.show(screen, server, configuration)
            screen.print(
                f"\nscheduler ready in {ready - started:.1f} s, {len(manifests)} files placed in"
                f" {placed - ready:.2f} s: the daemon of `topo-scheduler run`, over HTTP on {server.url}"
                + ("; its kernels were interpreted, as none is compiled yet" if interpreted else ""),
                style="dim",
            )
            if serve:
                _invite(screen, server, kubeconfig)
                await stop.wait()


def _configuration(path: Path | None, kubeconfig: Path) -> "Configuration":
    """Return the configuration of the examples, for this cluster and any free port."""
    from topo_scheduler.cli.run import with_flags
    from topo_scheduler.runtime.config_files import read_configuration

    flags = {"kubeconfig": str(kubeconfig), "bind_address": "127.0.0.1", "metrics_port": 0}
    return with_flags(read_configuration(path), flags)


@contextlib.asynccontextmanager
async def _scheduling(configuration: "Configuration", stop: asyncio.Event) -> AsyncIterator[asyncio.Event]:
    """Run the scheduler while the context lasts; yield the event that is set while it leads."""
    from topo_scheduler.daemon import Daemon
    from topo_scheduler.kube.connection.client import Client

    connection = configuration.scheduler.client_connection
    client = await Client.connect(connection.kubeconfig, None)
    try:
        daemon = Daemon(configuration, client)
        async with asyncio.TaskGroup() as group:
            daemon_task = group.create_task(daemon.run(), name="daemon")
            try:
                yield daemon.leading
            finally:
                daemon_task.cancel()
    finally:
        await client.close()


async def _or_stop(work: Coroutine[Any, Any, object], stop: asyncio.Event, seconds: float, complaint: str) -> None:
    """Wait for a coroutine; fail on Ctrl-C, or after ``seconds``."""
    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())]
    try:
        completed, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
    if stop.is_set():
        raise CommandFailure("interrupted", 130)
    if not completed:
        raise CommandFailure(f"{complaint} within {seconds:.0f} s; --log-level info shows more")
    completed.pop().result()


async def _place(store: "Store", manifests: list[Path], scheduler: str, report: Callable[[str], None]) -> None:
    """Submit the files one by one, each after the pods of the previous one are bound, for a reproducible result."""
    from topo_scheduler.simulation import demo

    expected = 0

    def submitted_specs() -> list[dict[str, object]]:
        return [pod["spec"] for pod in store.list("pods") if pod["spec"].get("schedulerName") == scheduler]

    def all_bound() -> bool:
        return sum(bool(spec.get("nodeName")) for spec in submitted_specs()) >= expected

    for path in manifests:
        report(f"submitting {path.name}")
        expected += demo.submit(store, path)
        await demo.until(store, all_bound, BIND_SECONDS)
        if missing := expected - sum(bool(spec.get("nodeName")) for spec in submitted_specs()):
            raise CommandFailure(
                f"{path.name}: {missing} of its pods are not bound within {BIND_SECONDS:.0f} s:"
                f" {'; '.join(_failures(store)) or '--log-level info shows more'}"
            )

    def all_reported() -> bool:
        return [event["reason"] for event in store.list("events")].count("Scheduled") >= expected

    await demo.until(store, all_reported, EVENT_SECONDS)


def _failures(store: "Store") -> list[str]:
    return sorted({str(event.obj.get("message")) for event in store.list("events") if event["type"] == "Warning"})


def _invite(screen: "Console", server: "EmbeddedAPIServer", kubeconfig: Path) -> None:
    screen.print(f"\nThe cluster is up at {server.url}. In another terminal:\n")
    for line in (
        f"kubectl --kubeconfig {kubeconfig} get pods -o wide",
        f"kubectl --kubeconfig {kubeconfig} describe pod bare-gang-0",
        f"topo-scheduler topology --kubeconfig {kubeconfig} -o wide",
        f"topo-scheduler explain bare-gang-0 --kubeconfig {kubeconfig}",
    ):
        screen.print(f"  {line}", soft_wrap=True)
    screen.print("\nCtrl-C ends it.")
