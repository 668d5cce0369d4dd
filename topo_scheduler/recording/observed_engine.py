"""An observed engine: listeners get its calls, what it queries during a call, and its results.

All inputs that could make two engines differ go through this module. These are the calls with their times, clock
readings that end a step, owners that the engine queries during a call, and answers of plugins. An engine without
listeners is a plain one, at no extra cost.
"""

import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Protocol, TypeVar

from topo_scheduler.api.config import Configuration
from topo_scheduler.api.objects import Pod
from topo_scheduler.kube.reading.sinks import Deleted
from topo_scheduler.kube.reading.storage import StorageSink, storage_sinks
from topo_scheduler.recording.calls import SIGNATURES, Signature
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.scheduling.extensions.extension import PluginError, PluginGuard
from topo_scheduler.scheduling.extensions.registry import Extensions
from topo_scheduler.scheduling.instructions import Instruction
from topo_scheduler.scheduling.intake.arrivals import Resolve
from topo_scheduler.scheduling.intake.understand import Lineage

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(slots=True)
class Heard:
    """One call.

    Attributes:
        name: name of the method.
        arguments: arguments without the clock.
        owners: pods whose owners the engine queried, with the answer; None where they were unknown.
        answers: answers of plugins, or their failures.
        clock: readings of the clock.
        out: the resulting instructions.
        raised: the exception with which the call ended; empty for none.
    """

    name: str
    arguments: Sequence[Any]
    owners: list[tuple[Pod, Lineage | None]] = field(default_factory=list)
    answers: list[object] = field(default_factory=list)
    clock: list[float] = field(default_factory=list)
    out: Sequence[Instruction] = ()
    raised: str = ""


class CallListener(Protocol):
    """A listener. It must be fast, because decisions wait for it. A listener that raises gets no further calls."""

    def begins(self, engine: Engine) -> None:
        """An engine was made and has no state yet."""

    def hears(self, name: str, arguments: Sequence[Any]) -> None:
        """The engine is about to be called."""

    def heard(self, heard: Heard) -> None:
        """The call has ended."""

    def ends(self) -> None:
        """The engine gets no further calls."""

    def broke(self, error: Exception) -> None:
        """The listener raised, and gets no further calls of this engine."""


class Ear:
    """Passes the calls of one engine to its listeners."""

    def __init__(self, resolve: Resolve, epoch: float, listeners: Sequence[CallListener]) -> None:
        self.epoch = epoch
        self._listeners = list(listeners)
        self.open: Heard | None = None
        """The call in progress. Calls of the engine's own methods within it are part of it."""
        self._owners = resolve
        self.resolve: Resolve = self._resolve
        """The function that the engine gets; always the same object."""

    def _resolve(self, pod: Pod) -> Lineage | None:
        lineage = self._owners(pod)
        if self.open is not None:
            self.open.owners.append((pod, lineage))
        return lineage

    def hear(self, name: str, arguments: Sequence[Any], work: Callable[[Heard], T]) -> T:
        """Make a call and notify the listeners."""
        self.tell(lambda listener: listener.hears(name, arguments))
        heard = self.open = Heard(name, arguments)
        try:
            result = work(heard)
            if isinstance(result, list):
                heard.out = result
            return result
        except Exception as error:
            heard.raised = f"{type(error).__name__}: {error}"
            raise
        finally:
            self.open = None
            self.tell(lambda listener: listener.heard(heard))

    def tell(self, notify: Callable[[CallListener], None]) -> None:
        """Notify each listener. A failure of a listener does not stop scheduling."""
        for listener in tuple(self._listeners):
            try:
                notify(listener)
            except Exception as error:
                self._listeners.remove(listener)
                log.exception("%s failed, and gets no more calls in this term", type(listener).__name__)
                listener.broke(error)


class OverheardGuard:
    """A plugin guard that records the answers of plugins."""

    def __init__(self, inner: PluginGuard, ear: Ear) -> None:
        self.inner = inner
        self._ear = ear

    def call(self, plugin: str, point: str, work: Callable[[], T]) -> T:
        """Make a call and record its result."""
        try:
            answer = self.inner.call(plugin, point, work)
        except PluginError as error:
            self._note(error)
            raise
        self._note(answer)
        return answer

    def begin(self) -> None:
        """Start a decision."""
        self.inner.begin()

    def pardon(self) -> None:
        """Forget failures, because the configuration changed."""
        self.inner.pardon()

    def _note(self, answer: object) -> None:
        if self._ear.open is not None:
            self._ear.open.answers.append(answer)


class ObservedEngine(Engine):
    """An engine with listeners. `_observed` makes each of its recorded methods from that of the engine."""

    def __init__(
        self,
        config: Configuration,
        resolve: Resolve,
        extensions: Extensions | None,
        epoch: float,
        listeners: Sequence[CallListener],
    ) -> None:
        self.ear = Ear(resolve, epoch, listeners)
        super().__init__(config, self.ear.resolve, extensions, epoch)
        guard = self.extensions.guard
        self.extensions.guard = OverheardGuard(guard.inner if isinstance(guard, OverheardGuard) else guard, self.ear)
        self.ear.tell(lambda listener: listener.begins(self))


def _observed(name: str, signature: Signature) -> Callable[..., Any]:
    """Return a method that makes a call of the engine and notifies the listeners; iterators become lists."""
    bind = inspect.signature(signature.method).bind

    @wraps(signature.method)
    def observed(self: ObservedEngine, *arguments: Any, **named: Any) -> Any:
        bound = bind(self, *arguments, **named)
        bound.apply_defaults()
        values: list[Any] = [
            list(value) if position in signature.iterables else value for position, value in enumerate(bound.args[1:])
        ]
        method = getattr(super(ObservedEngine, self), name)
        if self.ear.open is not None:  # it is part of another call
            return method(*values)
        if signature.clock < 0:
            return self.ear.hear(name, values, lambda _: method(*values))
        clock = values.pop(signature.clock)

        def timed(heard: Heard) -> Any:
            def read() -> float:
                heard.clock.append(clock())
                return heard.clock[-1]

            return method(*values[: signature.clock], read, *values[signature.clock :])

        return self.ear.hear(name, values, timed)

    return observed


for _name, _signature in SIGNATURES.items():
    setattr(ObservedEngine, _name, _observed(_name, _signature))


def new_engine(
    config: Configuration,
    resolve: Resolve,
    extensions: Extensions | None,
    epoch: float,
    listeners: Sequence[CallListener] = (),
) -> Engine:
    """Return a plain engine, or an observed one if there are listeners."""
    if not listeners:
        return Engine(config, resolve, extensions, epoch)
    return ObservedEngine(config, resolve, extensions, epoch, listeners)


class _HeardSink:
    """Observes changes of storage, which do not go through methods of the engine."""

    def __init__(self, sink: StorageSink[Any, Any], ear: Ear) -> None:
        self.resource = sink.resource
        self._sink = sink
        self._ear = ear

    def applied(self, objects: Sequence[Any]) -> None:
        """Pass on objects that exist now."""
        self._ear.hear("storage_applied", [self.resource.plural, objects], lambda _: self._sink.applied(objects))

    def deleted(self, references: Sequence[Deleted]) -> None:
        """Pass on objects that no longer exist."""
        arguments = [self.resource.plural, references]
        self._ear.hear("storage_deleted", arguments, lambda _: self._sink.deleted(references))

    def synced(self) -> None:
        """Pass on that a list is complete."""
        self._ear.hear("storage_synced", [self.resource.plural], lambda _: self._sink.synced())


def sinks_of_storage(engine: Engine, changed: Callable[[], None]) -> Sequence[StorageSink[Any, Any] | _HeardSink]:
    """Return the sinks for objects of storage, observed if the engine is."""
    sinks = storage_sinks(engine.world.around.storage, changed)
    return [_HeardSink(sink, engine.ear) for sink in sinks] if isinstance(engine, ObservedEngine) else sinks
