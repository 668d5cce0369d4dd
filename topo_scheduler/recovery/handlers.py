"""kopf in a thread and a loop of its own: it watches nodes and Migrations, and nothing else.

Its handlers translate and post; they decide nothing, and write nothing: on nodes and Migrations alike there are
handlers of raw events only, which leave no finalizers and no annotations. A node of which nothing changed that matters
here is not posted; of Migrations kopf hears which changed, not what they say (see `kopf_session`). kopf cancels
whatever else runs in its loop when it ends, hence one of its own.
"""

import asyncio
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from topo_scheduler.api.labels import PREFIX
from topo_scheduler.api.migrations import GROUP, PLURAL, VERSION
from topo_scheduler.api.recovery import RecoverySpec
from topo_scheduler.kube.transport import Connection
from topo_scheduler.recovery.health import NodeHealth, read_health
from topo_scheduler.recovery.kopf_session import open_session

if TYPE_CHECKING:
    import kopf

log = logging.getLogger(__name__)

STOP_SECONDS: Final = 10.0
"""Longest wait for the thread to end."""
CLOSE_SECONDS: Final = 0.1
"""How long the loop goes on once kopf has ended: connections that it was opening just then are closed only now."""
LOGIN_SECONDS: Final = 2.0
"""Seconds between attempts to get credentials."""
SILENCE_SECONDS: Final = 70.0
"""A watch without a byte for so long is opened anew."""


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A node appeared or changed."""

    health: NodeHealth


@dataclass(frozen=True, slots=True)
class NodeGone:
    """A node was deleted."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class MigrationChanged:
    """A Migration appeared or changed. What it says is read by who can bound it: see `migration_reader`."""

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


Message = NodeSeen | NodeGone | MigrationChanged | MigrationGone


class _Pauses:
    """Seconds between attempts while the API server is away: it is never given up."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((0.2, 0.5, 1.0, 2.0), itertools.repeat(5.0))


class Watcher:
    """The thread. Used once: started, stopped.

    Args:
        spec: what is read of nodes.
        gpu_resources: names of GPU resources.
        connect: awaited in the loop of the caller for server and credentials.
        wake: called in the loop of the caller when there are messages.
    """

    def __init__(
        self,
        spec: RecoverySpec,
        gpu_resources: tuple[str, ...],
        connect: Callable[[], Awaitable[Connection]],
        wake: Callable[[], None],
    ) -> None:
        self._spec = spec
        self._gpu_resources = gpu_resources
        self._connect = connect
        self._wake = wake
        self._messages: deque[Message] = deque()
        self._told: dict[str, NodeHealth] = {}
        self._stop = threading.Event()
        self._told_to_end = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._failure = ""
        self._session: tuple[Connection, kopf.AiohttpSession] | None = None
        self.heard = time.monotonic()
        """When the last event was heard, in seconds of the monotonic clock."""

    def start(self) -> None:
        """Start the thread; called in the loop that is to be woken."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._work, name="kopf", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """End the thread, and wait for that."""
        self._told_to_end = True
        self._stop.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, STOP_SECONDS)
            if self._thread.is_alive():
                log.error("the thread of kopf did not end within %g s", STOP_SECONDS)

    def wrong(self) -> str:
        """Return what is wrong with the thread; empty while it lives, or was told to end."""
        if self._thread is None or self._thread.is_alive() or self._told_to_end:
            return ""
        return f"the thread that watches nodes and Migrations has ended: {self._failure or 'nobody knows why'}"

    def take(self) -> list[Message]:
        """Return what was heard since the last call."""
        found = []
        while self._messages:
            found.append(self._messages.popleft())
        return found

    # ------------------------------------------------------------ in the thread

    def _work(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = f"{type(error).__name__}: {error}"
            log.exception("the thread that watches nodes and Migrations has failed")
        finally:
            self._call(self._wake)

    async def _serve(self) -> None:
        import kopf  # not above: it costs time and memory that only a leader with recovery should pay
        from kopf._cogs.structs.references import Insights  # it has no public name to ask what was found by

        logging.getLogger("kopf").setLevel(logging.WARNING)
        logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)  # that signals are not its own is meant
        registry = kopf.OperatorRegistry()
        kopf.on.login(registry=registry, backoff=LOGIN_SECONDS)(self._login)
        kopf.on.event("", "v1", "nodes", registry=registry)(self._node)
        kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)(self._migration)
        found = Insights()
        serving = asyncio.ensure_future(
            kopf.operator(
                registry=registry,
                settings=_settings(kopf),
                insights=found,
                clusterwide=True,
                standalone=True,
                stop_flag=self._stop,
            )
        )
        looking = asyncio.ensure_future(found.ready_resources.wait())
        await asyncio.wait({serving, looking}, return_when=asyncio.FIRST_COMPLETED)
        # kopf only warns, and would never hear of Migrations whose definition comes a moment later.
        if not serving.done() and all(one.plural != PLURAL for one in found.watched_resources):
            self._failure = f"{PLURAL}.{GROUP} was not defined when it was looked for"
            self._stop.set()
        try:
            await serving
        finally:
            # However it ended: a thread in which kopf waits for this would keep the loop from closing, and the end of
            # ours from being noticed.
            self._stop.set()
        await asyncio.sleep(CLOSE_SECONDS)

    async def _login(self, **_: Any) -> "kopf.AiohttpSession":
        assert self._loop is not None

        async def ask() -> Connection:
            return await self._connect()

        asked: Future[Connection] = asyncio.run_coroutine_threadsafe(ask(), self._loop)
        found = await asyncio.wrap_future(asked)
        if self._session is None or self._session[0] != found:
            self._session = found, open_session(found)
        return self._session[1]  # the same again where it is refused: kopf takes none twice

    async def _node(self, event: Mapping[str, Any], **_: Any) -> None:
        health = read_health(event["object"], self._spec, self._gpu_resources)
        if event.get("type") == "DELETED":
            self._told.pop(health.name, None)
            self._post(NodeGone(health.name, health.uid))
        elif self._told.get(health.name) != health:
            self._told[health.name] = health
            self._post(NodeSeen(health))

    async def _migration(self, event: Mapping[str, Any], **_: Any) -> None:
        meta = event["object"].get("metadata") or {}
        namespace, name, uid = (str(meta.get(field) or "") for field in ("namespace", "name", "uid"))
        if event.get("type") == "DELETED":
            self._post(MigrationGone(namespace, name, uid))
        else:
            self._post(MigrationChanged(namespace, name, uid, str(meta.get("resourceVersion") or "")))

    def _post(self, message: Message) -> None:
        self.heard = time.monotonic()
        self._messages.append(message)
        self._call(self._wake)

    def _call(self, what: Callable[[], None]) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(what)
        except RuntimeError:
            log.debug("nobody listens any more")


def _settings(kopf: Any) -> Any:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    # An operator without handlers that need kopf's finalizer takes it off objects where another one put it.
    settings.persistence.finalizer = f"{PREFIX}finalizer"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=GROUP)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=GROUP)
    settings.watching.inactivity_timeout = SILENCE_SECONDS
    settings.watching.chunk_size = 500
    settings.queueing.idle_timeout = 0.5
    settings.networking.error_backoffs = _Pauses()
    settings.process.ultimate_exiting_timeout = None
    return settings
