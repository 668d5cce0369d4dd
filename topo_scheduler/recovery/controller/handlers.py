"""kopf in a thread with its own event loop: it watches nodes and Migrations.

Its handlers translate and post; they decide nothing and write nothing. All are handlers of raw events, which leave no
finalizers and no annotations. A node without a relevant change is not posted. Of Migrations, kopf receives only the
metadata (see `kopf_session`). kopf cancels all tasks of its loop when it ends, so it gets a loop of its own.
"""

import asyncio
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from topo_scheduler.api.labels import PREFIX
from topo_scheduler.api.migrations import GROUP, PLURAL, VERSION
from topo_scheduler.api.recovery import RecoverySpec
from topo_scheduler.kube.connection.transport import Connection
from topo_scheduler.recovery.controller.kopf_session import Reports, open_session
from topo_scheduler.recovery.detection.node_health import NodeHealth, read_health

if TYPE_CHECKING:
    import kopf

log = logging.getLogger(__name__)

STOP_SECONDS: Final = 10.0
"""Longest wait for the thread to end."""
CLOSE_SECONDS: Final = 0.1
"""Seconds that the loop goes on after kopf has ended, to close connections that kopf was just opening."""
END_SECONDS: Final = 7.0
"""Seconds that kopf may take to end, of which it waits 5 s for its own tasks, before they are cancelled again."""
SILENT_LOGGERS: Final = (
    "kopf._core.reactor.running",
    "kopf._core.reactor.orchestration",
    "kopf._cogs.clients.watching",
)
"""Loggers of kopf that warn about signals, and log each failed request, at the end with tracebacks.

The daemon logs an outage itself, refusals (`WatchFailed`), and why the thread ended.
"""
LOGIN_SECONDS: Final = 2.0
"""Seconds between attempts to get credentials."""
SILENCE_SECONDS: Final = 70.0
"""Seconds without a byte after which a watch is reopened."""
UNKNOWN_NODES: Final = 64
"""Nodes in addition to twice those that exist, beyond which `Watcher` forgets those that do not exist."""


@dataclass(frozen=True, slots=True)
class NodeGone:
    """A node was deleted."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class MigrationChanged:
    """A Migration appeared or changed. `migration_reader` reads its content, with limits."""

    namespace: str
    name: str
    uid: str
    version: str


@dataclass(frozen=True, slots=True)
class MigrationGone:
    """A Migration was deleted."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class MigrationsListed:
    """kopf has listed all Migrations again: ``keys`` are the namespaces and names of those that exist.

    kopf does not report which were deleted while its watch was away.
    """

    keys: frozenset[str]


@dataclass(frozen=True, slots=True)
class WatchFailed:
    """The API server refuses requests for a resource, or its watch brings errors; kopf goes on trying."""

    resource: str
    code: int
    message: str


@dataclass(frozen=True, slots=True)
class WatchWorks:
    """A watch that failed works again."""

    resource: str


Message = NodeHealth | NodeGone | MigrationChanged | MigrationGone | MigrationsListed | WatchFailed | WatchWorks
"""What kopf reports; the health of a node that appeared or changed."""


class _Pauses:
    """Seconds between attempts while the API server is away: the attempts never end."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((0.2, 0.5, 1.0, 2.0), itertools.repeat(5.0))


@dataclass(eq=False)
class Watcher:
    """The thread. It can be started and stopped once.

    Args:
        spec: decides what is read of nodes.
        gpu_resources: names of GPU resources.
        connect: awaited in the loop of the caller for server and credentials.
        wake: called in the loop of the caller when there are messages.
        heard: when the watch of each resource last showed a sign of life, in seconds of the monotonic clock.
    """

    spec: RecoverySpec
    gpu_resources: tuple[str, ...]
    connect: Callable[[], Awaitable[Connection]]
    wake: Callable[[], None]
    heard: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._messages: deque[Message] = deque()
        self._last_posted: dict[str, NodeHealth] = {}
        self._stop = threading.Event()
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._failure = ""
        self._session: tuple[Connection, kopf.AiohttpSession] | None = None
        self._failing: set[str] = set()
        """Resources of which kopf sees nothing."""
        self.refused = False
        """Whether the API server's answer ended the thread, not a fault of its own."""

    def start(self) -> None:
        """Start the thread; must be called in the event loop to wake."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._work, name="kopf", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Stop the thread, and wait for its end."""
        self._stopping = True
        self._stop.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, STOP_SECONDS)
            if self._thread.is_alive():
                log.error("the thread of kopf did not end within %g s", STOP_SECONDS)

    def wrong(self) -> str:
        """Return the problem of the thread; empty while it lives, or if it was stopped."""
        if self._thread is None or self._thread.is_alive() or self._stopping:
            return ""
        return f"the thread that watches nodes and Migrations has ended: {self._failure or 'reason unknown'}"

    def take(self) -> list[Message]:
        """Return the messages since the last call."""
        messages = []
        while self._messages:
            messages.append(self._messages.popleft())
        return messages

    def forget_unknown(self, nodes: Collection[str]) -> bool:
        """Forget nodes that do not exist, once they are many; return whether that was so.

        kopf does not report what was deleted while its watch was away.
        """
        many = len(self._last_posted) > 2 * len(nodes) + UNKNOWN_NODES
        for name in list(self._last_posted) if many else ():
            if name not in nodes:
                self._last_posted.pop(name, None)
        return many

    # ------------------------------------------------------------ in the thread

    def _work(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = f"{type(error).__name__}: {error}"
            if (status := getattr(error, "status", None)) is not None:  # the API server refused a watch
                self.refused = True
                self._failure = f"{status} {error.args[0] if error.args else ''}".rstrip()
            else:
                log.exception("the thread that watches nodes and Migrations has failed")
        finally:
            self._call(self.wake)

    async def _serve(self) -> None:
        import kopf  # not above: only a leader with recovery pays its time and memory
        from kopf._cogs.structs.references import Insights  # kopf has no public name for it

        logging.getLogger("kopf").setLevel(logging.WARNING)
        for name in SILENT_LOGGERS:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        registry = kopf.OperatorRegistry()
        kopf.on.login(registry=registry, backoff=LOGIN_SECONDS)(self._login)
        kopf.on.event("", "v1", "nodes", registry=registry)(self._node)
        kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)(self._migration)
        insights = Insights()
        ready = asyncio.ensure_future(insights.ready_resources.wait())
        own = asyncio.all_tasks()
        tasks = await kopf.spawn_tasks(
            registry=registry,
            settings=_settings(kopf),
            insights=insights,
            clusterwide=True,
            standalone=True,
            stop_flag=self._stop,
        )
        errors: list[BaseException] = []
        for task in tasks:
            task.add_done_callback(lambda task: errors.extend(_error(task)))
        serving = asyncio.ensure_future(kopf.run_tasks(tasks, ignored=own))
        await asyncio.wait({serving, ready, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        # kopf only warns, and would never watch Migrations whose definition appears a moment later.
        if (
            ready.done()
            and not serving.done()
            and all(resource.plural != PLURAL for resource in insights.watched_resources)
        ):
            self._failure, self.refused = f"{PLURAL}.{GROUP} was not defined when it was read", True
            self._stop.set()
        try:
            await _ended(serving, tasks, {*own, serving})
        except Exception as error:
            # The first one: kopf raises any, and the other watches fail only because their session is closed.
            raise next(iter(errors), error) from None
        finally:
            # Always: kopf waits for this flag in a thread. As long as it does, the event loop can't close, and nothing
            # notices that this thread has ended.
            self._stop.set()
            if self._session is not None:
                await self._session[1].aiohttp_session.close()
        await asyncio.sleep(CLOSE_SECONDS)

    async def _login(self, **_: Any) -> "kopf.AiohttpSession":
        assert self._loop is not None

        async def connect() -> Connection:
            return await self.connect()

        connecting: Future[Connection] = asyncio.run_coroutine_threadsafe(connect(), self._loop)
        connection = await asyncio.wrap_future(connecting)
        if self._session is None or self._session[0] != connection:
            self._session = connection, open_session(connection, Reports(self._listed, self._seen, self._failed))
        return self._session[1]  # the same object again after a refusal: kopf does not accept it twice

    async def _node(self, event: Mapping[str, Any], **_: Any) -> None:
        health = read_health(event["object"], self.spec, self.gpu_resources)
        if event.get("type") == "DELETED":
            self._last_posted.pop(health.name, None)
            self._post(NodeGone(health.name, health.uid))
        elif self._last_posted.get(health.name) != health:
            self._last_posted[health.name] = health
            self._post(health)

    async def _migration(self, event: Mapping[str, Any], **_: Any) -> None:
        meta = event["object"].get("metadata") or {}
        namespace, name, uid = (str(meta.get(field) or "") for field in ("namespace", "name", "uid"))
        if event.get("type") == "DELETED":
            self._post(MigrationGone(namespace, name, uid))
        else:
            self._post(MigrationChanged(namespace, name, uid, str(meta.get("resourceVersion") or "")))

    def _listed(self, keys: frozenset[str]) -> None:
        self._post(MigrationsListed(keys))

    def _seen(self, resource: str) -> None:
        self.heard[resource] = time.monotonic()
        if resource in self._failing:
            self._failing.discard(resource)
            self._post(WatchWorks(resource))

    def _failed(self, resource: str, code: int, message: str) -> None:
        self._failing.add(resource)
        self._post(WatchFailed(resource, code, message))

    def _post(self, message: Message) -> None:
        self._messages.append(message)
        self._call(self.wake)

    def _call(self, callback: Callable[[], None]) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            log.debug("the event loop of the daemon is closed")


async def _ended(
    serving: asyncio.Future[None], tasks: Collection[asyncio.Task[Any]], ignored: Collection[asyncio.Future[Any]]
) -> None:
    """Wait until kopf has ended. If that takes too long, cancel again what is left.

    A watch of kopf that is cancelled while it waits for its request may take that for an end of the request, and open
    another. kopf then waits for it without end, and nothing notices that the thread does nothing any more.
    """
    await asyncio.wait({serving, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    # Callbacks of such a watch fail as well, which asyncio would log with a traceback.
    asyncio.get_running_loop().set_exception_handler(lambda _, context: log.debug("kopf ends: %s", context["message"]))
    await asyncio.wait({serving}, timeout=END_SECONDS)
    while not serving.done():
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            if task not in ignored:
                task.cancel()
        await asyncio.wait({serving}, timeout=1.0)
    await serving


def _error(task: asyncio.Task[Any]) -> list[BaseException]:
    error = None if task.cancelled() else task.exception()
    return [] if error is None else [error]


def _settings(kopf: Any) -> Any:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    # An operator without handlers that need kopf's finalizer removes it from objects where another operator added it.
    settings.persistence.finalizer = f"{PREFIX}finalizer"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=GROUP)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=GROUP)
    settings.watching.inactivity_timeout = SILENCE_SECONDS
    settings.watching.chunk_size = 500
    settings.queueing.idle_timeout = 0.5
    settings.networking.error_backoffs = _Pauses()
    settings.process.ultimate_exiting_timeout = None
    return settings
