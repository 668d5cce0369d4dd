"""The composition root: builds the components, wires them, and runs them while this replica leads.

All state about the cluster is rebuilt for each term of leadership, from a list of the API server. A new leader takes
over no state of the last one. A standby only waits for the Lease.
"""

import asyncio
import gc
import importlib
import logging
import os
import signal
import socket
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from topo_scheduler.api.config import ConfigError, Configuration
from topo_scheduler.kernels.cache import OWN_VARIABLE
from topo_scheduler.kernels.warm import Warmth, warm
from topo_scheduler.kube.connection.client import Client
from topo_scheduler.kube.connection.fence import UNFENCED, Fence
from topo_scheduler.kube.leading.lease import LeaderElector, boot_time
from topo_scheduler.kube.reading.token_review import Access, TokenReviewer
from topo_scheduler.kube.writing.events import EventRecorder
from topo_scheduler.observability import health
from topo_scheduler.observability.certificates import CertificateError, Certificates
from topo_scheduler.observability.metrics import DomainState, LinkLoad, Metrics, Snapshot
from topo_scheduler.observability.outputs import Outputs, open_outputs
from topo_scheduler.observability.serving import serving as listening
from topo_scheduler.plugins.isolation import Isolated
from topo_scheduler.runtime.config_files import read_configuration
from topo_scheduler.runtime.device_watch import capped
from topo_scheduler.runtime.handover import SERVED_APIS, Handover
from topo_scheduler.runtime.server_time import server_time
from topo_scheduler.scheduling.barrier import FAULT, Activity
from topo_scheduler.scheduling.fabric_warnings import leaves_above_limits
from topo_scheduler.scheduling.surveying import waiting
from topo_scheduler.scheduling.surveying.fragmentation import fragmentation
from topo_scheduler.scheduling.surveying.link_survey import survey_links
from topo_scheduler.scheduling.surveying.plugin_partitions import plugin_partitions
from topo_scheduler.scheduling.surveying.survey import survey, survey_accelerators
from topo_scheduler.state.nodes.resources import GPU

if TYPE_CHECKING:
    from topo_scheduler.runtime.term import Term
    from topo_scheduler.scheduling.extensions.registry import Extensions

log = logging.getLogger(__name__)

FLUSH_SECONDS: Final = 5.0
"""Maximum wait at the end of the process for events that are not posted yet."""
MODULES_OF_A_TERM: Final = (
    "topo_scheduler.kube.connection.retry_policy",
    "topo_scheduler.recording.listeners",
    "topo_scheduler.runtime.term",
)
"""Modules imported before this replica contends for the Lease.

A standby that takes over has no time for imports, and neither has a leader whose first request fails.
"""
MBIT: Final = 1e6
_ANSWERS: Final = {
    Access.ALLOWED: health.ScrapeVerdict.ALLOWED,
    Access.UNAUTHENTICATED: health.ScrapeVerdict.UNAUTHENTICATED,
    Access.FORBIDDEN: health.ScrapeVerdict.FORBIDDEN,
    Access.UNKNOWN: health.ScrapeVerdict.UNAVAILABLE,
}
CONFIG_POLL_SECONDS: Final = 2.0
"""Interval between reads of the configuration files. A ConfigMap takes up to a minute to reach its pod anyway."""


def collect_last_term() -> None:
    """Free what the last term froze, before this replica contends for the lease again.

    The next term collects garbage too. It would walk the imported modules with it, a second on a busy machine, while a
    short lease runs out.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()


class Daemon:
    """One replica. When `run` is cancelled, it waits for binds in flight, releases the Lease and ends."""

    def __init__(
        self,
        configuration: Configuration,
        client: Client,
        *,
        config_path: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        lease_clock: Callable[[], float] = boot_time,
    ) -> None:
        """Set up one replica; `run` starts it.

        Args:
            configuration: the configuration.
            client: the client of the API server.
            config_path: configuration file or folder to watch for changes; None for no watch.
            clock: monotonic seconds.
            wall: seconds since the epoch.
            lease_clock: monotonic seconds that also count time asleep.
        """
        self.configuration = configuration
        self.client = client
        self.metrics = Metrics(self._snapshot)
        self.metrics.expect_failures(Activity, FAULT)
        # One for the process: plugins are loaded once, and a disabled plugin stays disabled in the next term.
        self.isolated = Isolated(configuration.scheduler.plugin_timeout, self.metrics)
        self.extensions: Extensions | None = None
        self.term: Term | None = None
        name = configuration.scheduler.scheduler_name
        # One for the process, not for a term: events of a term are still posted after it has ended.
        self.events = EventRecorder(client, name, name, busy=self._busy, clock=clock, wall=wall)
        self.port = 0
        self.warmth: Warmth | None = None
        self.identity = f"{socket.gethostname()}_{uuid.uuid4().hex[:12]}"
        self.leading = asyncio.Event()
        """Set while this replica leads and its caches are filled, so that it schedules."""
        self._config_path = config_path
        self._refused_config = ""
        """Why the configuration on disk is refused while an earlier one is in effect; empty if it is not."""
        self._clock = clock
        self._wall = wall
        self._lease_clock = lease_clock
        self._beat = clock()
        self._served = asyncio.Event()
        self.outputs = Outputs()

    async def run(self) -> None:
        """Serve health and metrics, warm the kernels, load plugins, then schedule whenever this replica leads.

        Raises:
            ConfigError: a configured plugin can't be loaded, or a record or audit log can't be written.
        """
        self.outputs = await asyncio.to_thread(open_outputs, self.configuration.scheduler)
        try:
            await self._run()
        finally:
            gc.unfreeze()
            await asyncio.to_thread(self.outputs.close)

    async def _run(self) -> None:
        serving = self.configuration.scheduler.metrics
        app = health.application(
            live={"event-loop": self._check_loop, "recovery": self._check_recovery},
            ready={"kernels": self._check_kernels, "caches": self._check_caches},
            metrics=self.metrics.exposition,
            authorize=self._authorizer(),
        )
        certificates = await self._certificates()
        context = (lambda: certificates.context) if certificates is not None else None
        async with listening(app, serving.bind_address, serving.port, context) as self.port:
            self._served.set()
            # In a thread: compiling takes seconds, and /livez must answer meanwhile.
            self.warmth = await asyncio.to_thread(warm)
            self.metrics.kernels.set(self.warmth.seconds)
            log.info(
                "kernels ready",
                extra={"seconds": round(self.warmth.seconds, 2), "cached": self.warmth.cached},
            )
            self.extensions = await asyncio.to_thread(self._load_plugins)
            # Imported modules stay in memory. The CLI disables garbage collection until here: collections found next
            # to nothing and took a tenth of the CPU time of imports. Without the freeze, a new leader would walk all of
            # it once more before its first decision.
            gc.freeze()
            gc.enable()
            if not self.warmth.folder:
                log.warning(
                    "no folder for compiled kernels is writable: they are compiled again at each start; mount a"
                    " writable volume and name it in %s",
                    OWN_VARIABLE,
                )
            # Not before here: a coroutine that is never awaited is a warning at an early end.
            watches = [certificates.watch()] if certificates is not None else []
            async with _cancelled_at_end(self._watch_config(), self._heartbeat(), self.events.run(), *watches):
                try:
                    await self._contend()
                finally:
                    await self.events.flush(FLUSH_SECONDS)

    def _authorizer(self) -> health.Authorize | None:
        if self.configuration.scheduler.metrics.authorization == "none":
            return None
        reviewer = TokenReviewer(self.client)

        async def authorize(token: str) -> health.ScrapeVerdict:
            return _ANSWERS[await reviewer.access(token)]

        return authorize

    async def _certificates(self) -> Certificates | None:
        tls = self.configuration.scheduler.metrics.tls
        if not tls.enabled:
            return None
        certificates = Certificates(tls.cert_file, tls.key_file)
        try:
            await asyncio.to_thread(certificates.load)
        except CertificateError as error:
            raise ConfigError(f"SchedulerConfig: metrics.tls: {error}") from error
        return certificates

    def reopen(self) -> None:
        """Reopen the audit log, for example after log rotation."""
        self.outputs.reopen()

    def _load_plugins(self) -> "Extensions":
        # Imported late: these modules load the kernels, which must be compiled while health is served.
        for module in MODULES_OF_A_TERM:
            importlib.import_module(module)
        from topo_scheduler.plugins.loading import load_extensions

        return load_extensions(self.configuration.scheduler, self.isolated)

    async def wait_served(self) -> int:
        """Wait until health and metrics are served; return their port."""
        await self._served.wait()
        return self.port

    async def _contend(self) -> None:
        election = self.configuration.scheduler.leader_election
        if not election.leader_elect:
            await self._lead(UNFENCED, lambda: None)
            return
        elector = LeaderElector(
            self.client,
            election.resource_namespace,
            election.resource_name,
            self.identity,
            lease_duration=election.lease_duration,
            renew_deadline=election.renew_deadline,
            retry_period=election.retry_period,
            clock=self._lease_clock,
            wall=self._wall,
            renewed=self._renewed,
        )
        name = self.configuration.scheduler.scheduler_name

        def handover() -> Handover:
            return Handover(
                name,
                elector.quiet_seconds,
                may_be_first=elector.found_none,
                served=elector.noted(SERVED_APIS),
                note=lambda text: elector.note(SERVED_APIS, text),
            )

        await elector.run(lambda: self._lead(elector.fence, handover), lost=collect_last_term)

    def _renewed(self, seconds: float) -> None:
        if self.term is not None:
            self.term.api_server_answered(seconds)

    async def _lead(self, fence: Fence, handover: Callable[[], Handover | None]) -> None:
        """Run one term; another one if it ends by itself."""
        while True:
            await self._lead_for_a_term(fence, handover())
            await fence.settled()
            collect_last_term()

    async def _lead_for_a_term(self, fence: Fence, handover: Handover | None) -> None:
        # Imported late: it loads the kernels, which must be compiled while health is served, in `run`.
        from topo_scheduler.recording.listeners import listeners_for
        from topo_scheduler.runtime.term import Term

        self.term = Term(
            self.configuration,
            self.client.fenced(fence),
            self.metrics,
            self.events,
            handover=handover,
            clock=self._clock,
            wall=await server_time(self.client, self._clock, self._wall),
            extensions=self.extensions,
            isolated=self.isolated,
            listeners=listeners_for(self.outputs),
        )
        try:
            await self.term.run(self.leading)
        finally:
            self.leading.clear()
            self.term = None

    # ------------------------------------------------------------ configuration

    async def _watch_config(self) -> None:
        """Apply changes of the configuration. If a change is invalid, log it and keep the old configuration."""
        if self._config_path is None:
            return
        read: Configuration | None = None
        kinds = self.configuration.kinds
        while True:
            await asyncio.sleep(CONFIG_POLL_SECONDS)
            try:
                fresh = await asyncio.to_thread(read_configuration, self._config_path)
            except ConfigError as error:
                if str(error) != self._refused_config:
                    self._refused_config = str(error)
                    log.error("the changed configuration is refused, the old one stays: %s", error)
                continue
            self._refused_config = ""
            for kind in set(kinds).difference(fresh.kinds):
                rest = " that SchedulerConfig.spec does not set" if "SchedulerConfig" in fresh.kinds else ""
                log.warning("the configuration has no %s any more: its fields%s have their defaults", kind, rest)
            kinds = fresh.kinds
            # Compare with the last read of the file, not with the configuration in use: flags may override that.
            if read is not None and fresh.scheduler != read.scheduler:
                log.warning("SchedulerConfig changed: it takes effect when this process is started again")
            read = fresh
            if fresh.topology.spec != self.configuration.topology.spec:
                self._reconfigure(fresh)

    def _reconfigure(self, fresh: Configuration) -> None:
        log.info("TopologySchedulerConfig changed", extra={"spec": fresh.topology.spec.model_dump(by_alias=True)})
        self.configuration = Configuration(self.configuration.scheduler, fresh.topology)
        if self.term is not None:
            self.term.configure(self.configuration)

    # ------------------------------------------------------------ health and metrics

    async def _heartbeat(self) -> None:
        while True:
            self._beat = self._clock()
            await asyncio.sleep(1.0)

    def _busy(self) -> bool:
        return self.term is not None and self.term.busy()

    def _check_loop(self) -> str:
        if self.warmth is None:
            return ""
        silent = self._clock() - self._beat
        return f"event loop stalled for {silent:.0f} s" if silent > 30 else ""

    def _check_recovery(self) -> str:
        return self.term.recovery.wrong() if self.term is not None else ""

    def _check_kernels(self) -> str:
        if self.warmth is None:
            return "kernels are being compiled"
        return "" if self.extensions is not None else "plugins are being loaded"

    def _check_caches(self) -> str:
        # A standby is ready: it has no caches to fill until it leads.
        term = self.term
        return term.not_synced() if term is not None else ""

    def _snapshot(self) -> Snapshot:
        term = self.term
        if term is None:
            return Snapshot(
                api_requests=dict(self.client.traffic.requests),
                api_bytes=self.client.traffic.bytes_received,
                plugin_threads=self.isolated.lost_threads,
                configuration_refused=bool(self._refused_config),
                written=self.outputs.state(),
            )
        world = term.engine.world
        domains = list(survey(world))
        torn = fragmentation(world)
        largest = {(gang.level, gang.model, "node"): gang.whole_gpus for gang in torn.gangs}
        largest |= {(gang.level, gang.model, "typical"): gang.gpus for gang in torn.gangs}
        over = world.held() > world.nodes.allocatable
        unlabelled = world.fabric.unlabelled()
        return Snapshot(
            domains=[
                DomainState(d.level, "/".join(d.path), d.utilization, d.fragmentation)
                for d in (*domains, *survey_accelerators(world))
            ],
            links=[
                LinkLoad(
                    link.level,
                    "/".join(link.path),
                    None if link.capacity is None else link.capacity * MBIT,
                    link.reserved * MBIT,
                )
                for link in survey_links(world)
            ],
            unknown_links={level: unknown for level, (unknown, _) in world.links.unknown().items()},
            gpu_allocation=domains[0].utilization if domains else 0.0,
            largest_gangs=largest,
            stranded_gpus=torn.stranded,
            pending=waiting.pending_pods(term.engine),
            longest_wait=waiting.longest_waits(term.engine, self._clock()),
            shares=waiting.shares(term.engine),
            staleness=term.staleness(),
            nodes=len(world.nodes),
            unlabelled_nodes=len(unlabelled),
            unlabelled_gpu_nodes=sum(
                bool(world.nodes.allocatable[world.nodes.row_of[name], GPU]) for name in unlabelled
            ),
            leaves_above_limits=leaves_above_limits(term.engine.config, world.layout, world.nodes),
            oversubscribed_nodes=int(over.any(axis=1).sum()),
            admission_backoff_classes=len(term.engine.outcomes.admission_backoff),
            reservations=len(term.engine.reserving.holds),
            reserved_gpus=term.engine.reserving.gpus,
            migrations=term.recovery.under_way,
            spares=term.engine.spares.counts(),
            devices=capped(term.devices.totals.devices, plugin_partitions(world)),
            partition_fragmentation=term.devices.totals.fragmentation,
            device_problems=term.devices.totals.problems,
            binds_in_flight=term.engine.outcomes.in_flight,
            leading=self.leading.is_set(),
            api_requests=dict(self.client.traffic.requests),
            api_bytes=self.client.traffic.bytes_received,
            events={
                "posted": self.events.posted,
                "dropped": self.events.dropped,
                "failed": self.events.failed,
            },
            plugin_threads=self.isolated.lost_threads,
            configuration_refused=bool(self._refused_config),
            written=self.outputs.state(),
        )


@asynccontextmanager
async def _cancelled_at_end(*coroutines: "asyncio._CoroutineLike[None]") -> AsyncIterator[None]:
    """Run coroutines concurrently with the body and cancel them when it ends. If one fails, the body ends too."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(coroutine) for coroutine in coroutines]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


async def serve(configuration: Configuration, *, config_path: Path | None, stop: asyncio.Event) -> None:
    """Connect and run one replica until ``stop`` is set.

    Raises:
        KubeError: the connection settings can't be used.
    """
    connection = configuration.scheduler.client_connection
    client = await Client.connect(
        connection.kubeconfig or None,
        connection.context or None,
    )
    try:
        daemon = Daemon(configuration, client, config_path=config_path)
        if sys.platform != "win32":
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, daemon.reopen)
        log.info(
            "starting",
            extra={"server": client.server, "scheduler": configuration.scheduler.scheduler_name, "pid": os.getpid()},
        )
        running = asyncio.create_task(daemon.run())
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait((running, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
    finally:
        await client.close()
