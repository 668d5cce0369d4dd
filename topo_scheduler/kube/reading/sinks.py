"""The events that a reflector delivers, and the interface of their consumers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class Deleted(NamedTuple):
    """A deleted object."""

    namespace: str
    name: str
    uid: str


class Sink(Protocol[T_contra]):
    """The consumer of a reflector. Called on the event loop, in the order of the events, never concurrently."""

    def applied(self, objects: Sequence[T_contra]) -> None:
        """These objects exist now, in this state."""

    def deleted(self, references: Sequence[Deleted]) -> None:
        """These objects no longer exist."""

    def synced(self) -> None:
        """A complete list has been handed over; called after each list."""


def _nothing() -> None:
    """Do nothing: code that needs a complete list waits for the reflector's own event."""


@dataclass(frozen=True, slots=True)
class Calls(Generic[T]):
    """A sink made of functions."""

    applied: Callable[[Sequence[T]], None]
    deleted: Callable[[Sequence[Deleted]], None]
    synced: Callable[[], None] = _nothing


class Batch(Generic[T]):
    """Hands objects that arrived together to the sink, in as few calls as their order allows."""

    def __init__(self, sink: Sink[T]) -> None:
        self._sink = sink
        self._applied: list[T] = []
        self._deleted: list[Deleted] = []

    def apply(self, item: T) -> None:
        """Add an object that exists."""
        if self._deleted:
            self.flush()
        self._applied.append(item)

    def delete(self, reference: Deleted) -> None:
        """Add a deleted object."""
        if self._applied:
            self.flush()
        self._deleted.append(reference)

    def flush(self) -> None:
        """Hand over all added objects."""
        applied, self._applied = self._applied, []
        deleted, self._deleted = self._deleted, []
        if applied:
            self._sink.applied(applied)
        if deleted:
            self._sink.deleted(deleted)
