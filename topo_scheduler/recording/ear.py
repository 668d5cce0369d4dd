"""An engine that is listened to: what it is told, what it asks for meanwhile, and what it answers.

Everything that could make two engines differ goes through here: the calls with their times, the readings of the clock
that end a step, the owners of pods that are asked for in the middle of a call, and what plugins answer. An engine that
nobody listens to is a plain one; this costs it nothing.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from topo_scheduler.api.config import Configuration
from topo_scheduler.api.objects import Pod
from topo_scheduler.kube.sinks import Deleted
from topo_scheduler.kube.storage import StorageSink, storage_sinks
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

    ``arguments`` without the clock; ``owners`` that were asked for, None where they were not known; ``answers`` of
    plugins, or their failures; ``clock`` its readings; ``out`` what came of it; ``raised`` what it ended with instead.
    """

    name: str
    arguments: Sequence[Any]
    owners: list[tuple[Pod, Lineage | None]] = field(default_factory=list)
    answers: list[object] = field(default_factory=list)
    clock: list[float] = field(default_factory=list)
    out: Sequence[Instruction] = ()
    raised: str = ""


class CallListener(Protocol):
    """Who listens. It must not take long: decisions wait for it. One that raises hears nothing more."""

    def begins(self, engine: Engine) -> None:
        """An engine was made and knows nothing yet."""

    def hears(self, name: str, arguments: Sequence[Any]) -> None:
        """A call is about to be made."""

    def heard(self, heard: Heard) -> None:
        """The call has ended."""

    def ends(self) -> None:
        """The engine is told nothing more."""

    def broke(self, error: Exception) -> None:
        """It raised, and hears nothing more of this engine."""


class Ear:
    """Listens to one engine, for some listeners."""

    def __init__(self, resolve: Resolve, epoch: float, listeners: Sequence[CallListener]) -> None:
        self.epoch = epoch
        self._listeners = list(listeners)
        self.open: Heard | None = None
        """The call that is being made. What the engine calls of itself in it is part of it."""
        self._owners = resolve
        self.resolve: Resolve = self._resolve
        """What the engine is given, one and the same object."""

    def _resolve(self, pod: Pod) -> Lineage | None:
        lineage = self._owners(pod)
        if self.open is not None:
            self.open.owners.append((pod, lineage))
        return lineage

    def hear(self, name: str, arguments: Sequence[Any], work: Callable[[Heard], T]) -> T:
        """Make a call and tell the listeners."""
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

    def tell(self, what: Callable[[CallListener], None]) -> None:
        """Tell each listener. Whatever one does wrong, scheduling goes on."""
        for listener in tuple(self._listeners):
            try:
                what(listener)
            except Exception as error:
                self._listeners.remove(listener)
                log.exception("%s failed, and is told nothing more in this term", type(listener).__name__)
                listener.broke(error)


class OverheardGuard:
    """The guard of plugins, listened to."""

    def __init__(self, inner: PluginGuard, ear: Ear) -> None:
        self.inner = inner
        self._ear = ear

    def call(self, plugin: str, point: str, work: Callable[[], T]) -> T:
        """Make a call and keep what came of it."""
        try:
            answer = self.inner.call(plugin, point, work)
        except PluginError as error:
            self._note(error)
            raise
        self._note(answer)
        return answer

    def begin(self) -> None:
        """A decision begins."""
        self.inner.begin()

    def pardon(self) -> None:
        """The configuration changed."""
        self.inner.pardon()

    def _note(self, answer: object) -> None:
        if self._ear.open is not None:
            self._ear.open.answers.append(answer)


class ObservedEngine(Engine):
    """An engine that is listened to."""

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
    method, at = signature.method, signature.clock

    def call(self: ObservedEngine, *args: Any, **kwargs: Any) -> Any:
        ear = self.ear
        if ear.open is not None:
            return method(self, *args, **kwargs)
        whole = signature.positional(args, kwargs)
        if at < 0:
            return ear.hear(name, whole, lambda heard: method(self, *whole))
        clock = whole[at]

        def timed(heard: Heard) -> Any:
            def read() -> float:
                heard.clock.append(clock())
                return heard.clock[-1]

            return method(self, *whole[:at], read, *whole[at + 1 :])

        return ear.hear(name, [*whole[:at], *whole[at + 1 :]], timed)

    return call


for _name, _method in SIGNATURES.items():
    setattr(ObservedEngine, _name, _observed(_name, _method))


def new_engine(
    config: Configuration,
    resolve: Resolve,
    extensions: Extensions | None,
    epoch: float,
    listeners: Sequence[CallListener] = (),
) -> Engine:
    """Return an engine; one that is listened to where anybody listens."""
    if not listeners:
        return Engine(config, resolve, extensions, epoch)
    return ObservedEngine(config, resolve, extensions, epoch, listeners)


class _HeardSink:
    """Storage is told past the engine's methods; this hears it."""

    def __init__(self, sink: StorageSink[Any, Any], ear: Ear) -> None:
        self.resource = sink.resource
        self._sink = sink
        self._ear = ear

    def applied(self, objects: Sequence[Any]) -> None:
        """These exist now."""
        self._ear.hear("storage_applied", [self.resource.plural, objects], lambda _: self._sink.applied(objects))

    def deleted(self, references: Sequence[Deleted]) -> None:
        """These exist no more."""
        arguments = [self.resource.plural, references]
        self._ear.hear("storage_deleted", arguments, lambda _: self._sink.deleted(references))

    def synced(self) -> None:
        """A list is complete."""
        self._ear.hear("storage_synced", [self.resource.plural], lambda _: self._sink.synced())


def sinks_of_storage(engine: Engine, changed: Callable[[], None]) -> Sequence[StorageSink[Any, Any] | _HeardSink]:
    """Return who takes over what is told of storage, listened to as the engine is."""
    sinks = storage_sinks(engine.world.around.storage, changed)
    return [_HeardSink(sink, engine.ear) for sink in sinks] if isinstance(engine, ObservedEngine) else sinks
