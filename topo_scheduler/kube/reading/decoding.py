"""Decode the bytes of a list page or a watch line to structs; one bad object does not affect the others.

Usually one typed pass over the bytes suffices. If it fails, the codec splits the input into raw items and decodes
each one. An item that still fails is returned as :class:`Bad`, never raised. Nulls, and what API servers take but
decoders refuse, are read as Go reads them: see `odd_json`. Input that is not JSON at all (truncated, or an HTML page)
raises ``Undecodable``.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from topo_scheduler.api.base import Base
from topo_scheduler.api.objects import ListMeta, ObjectMeta, PartialObject, Status
from topo_scheduler.kube.connection.errors import Undecodable
from topo_scheduler.kube.connection.odd_json import REFUSED, decode_object, decoded, readable
from topo_scheduler.kube.connection.resources import Object, Resource

T = TypeVar("T", bound=Object)
Item = TypeVar("Item")

LARGE_BYTES = 4 * 1024 * 1024
"""Bytes beyond which a page is decoded in slices: 4 MiB take about 20 ms, and at most six times as much memory."""

SLICE_OBJECTS = 100
"""Objects of a page that are handed over between two turns of the event loop."""

SLICE_BYTES = 256 * 1024
"""Approximate bytes of such a slice: pods that take long to interpret are large and must not delay other work."""


@dataclass(frozen=True, slots=True)
class Bad:
    """An object that does not fit its type: its metadata, and the decoding problem."""

    metadata: ObjectMeta
    problem: str


@dataclass(frozen=True, slots=True)
class Unchanged:
    """An object that was not decoded, because the caller knows this version of it."""

    metadata: ObjectMeta


_TYPES = frozenset({"ADDED", "MODIFIED", "DELETED", "BOOKMARK"})


Decoded: TypeAlias = T | Bad
Listed: TypeAlias = T | Bad | Unchanged


class _ListPage(Base, Generic[Item]):
    metadata: ListMeta = msgspec.field(default_factory=ListMeta)
    items: list[Item] | msgspec.UnsetType | None = msgspec.UNSET


class _WatchEvent(Base, Generic[Item]):
    type: str = ""
    object: Item | msgspec.UnsetType = msgspec.UNSET


class Codec(Generic[T]):
    """Decoders for one resource. ``resource`` also gives metadata-only objects their kind."""

    def __init__(self, resource: Resource[T]) -> None:
        self._resource = resource
        self._object = msgspec.json.Decoder(resource.type)
        self._page = msgspec.json.Decoder(_ListPage[resource.type])  # type: ignore[name-defined]
        self._event = msgspec.json.Decoder(_WatchEvent[resource.type])  # type: ignore[name-defined]

    def page(
        self, answer: bytes, is_known: Callable[[ObjectMeta], bool] | None = None
    ) -> tuple[ListMeta, Iterator[list[Listed[T]]]]:
        """Return the list's own metadata, and its objects in slices that are decoded as the caller consumes them.

        Args:
            answer: the page.
            is_known: returns whether the caller knows this version of an object. Of a large page such objects are
                not decoded, which takes a tenth of the time.
        """
        try:
            return decoded(lambda text: self._read_page(text, is_known), answer)
        except REFUSED as error:
            raise Undecodable(f"list of {self._resource.described}: {error}") from error

    def _read_page(
        self, answer: bytes, is_known: Callable[[ObjectMeta], bool] | None
    ) -> tuple[ListMeta, Iterator[list[Listed[T]]]]:
        if len(answer) <= LARGE_BYTES:
            try:
                page = self._page.decode(answer)
                items = self._items(page)
                if self._resource.type is PartialObject:
                    items = [self._named(item) for item in items]
                return page.metadata, _cut(items, SLICE_BYTES * len(items) // max(1, len(answer)))
            except msgspec.ValidationError:
                pass
        raw = _raw_page.decode(answer)
        return raw.metadata, self._slices(self._items(raw), is_known)

    def one(self, answer: bytes) -> T:
        """Decode the answer to a GET.

        Raises:
            Undecodable: the answer is not JSON, or does not fit the type.
        """
        try:
            return self._named(self._decoded(answer))
        except REFUSED as error:
            raise Undecodable(f"{self._resource.described}: {error}") from error

    def event(self, line: bytes) -> tuple[str, Decoded[T] | Status]:
        """Return the type and the object of a watch event; for an ERROR event, the ``Status``."""
        try:
            return decoded(self._read_event, line)
        except REFUSED as error:
            raise Undecodable(f"watch of {self._resource.described}: {error}") from error

    def _read_event(self, line: bytes) -> tuple[str, Decoded[T] | Status]:
        try:
            event = self._event.decode(line)
            if event.type in _TYPES and event.object is not msgspec.UNSET:
                return event.type, self._named(event.object)
        except msgspec.ValidationError:
            pass
        raw = _raw_event.decode(line)
        if raw.type == "ERROR":
            return raw.type, _status.decode(_bytes(raw.object))
        if raw.type not in _TYPES:
            raise Undecodable(f"watch of {self._resource.described}: {raw.type!r} is not a type of event")
        return raw.type, self._item(_bytes(raw.object))

    def _items(self, page: _ListPage[Any]) -> list[Any]:
        # An empty object decodes like an empty list, and would delete everything.
        if page.items is msgspec.UNSET or not page.metadata.resource_version:
            raise Undecodable(f"list of {self._resource.described}: the answer is not a list")
        return page.items or []

    def _slices(
        self, items: list[msgspec.Raw], is_known: Callable[[ObjectMeta], bool] | None
    ) -> Iterator[list[Listed[T]]]:
        slice_: list[Listed[T]] = []
        size = 0
        for item in items:
            metadata = _metadata_of(item) if is_known is not None else None
            if is_known is not None and metadata is not None and is_known(metadata):
                slice_.append(Unchanged(metadata))
            else:
                slice_.append(self._item(item))
            size += len(memoryview(item))
            if len(slice_) == SLICE_OBJECTS or size >= SLICE_BYTES:
                yield slice_
                slice_, size = [], 0
        if slice_:
            yield slice_

    def _item(self, raw: msgspec.Raw | bytes) -> Decoded[T]:
        try:
            return self._named(self._decoded(raw))
        except REFUSED as error:
            problem = str(error)
        try:
            return Bad(_partial.decode(raw).metadata, problem)
        except REFUSED:
            return Bad(ObjectMeta(), problem)

    def _decoded(self, raw: msgspec.Raw | bytes) -> T:
        try:
            return decode_object(self._object, raw)
        except REFUSED as error:
            if isinstance(error, msgspec.ValidationError):
                raise
            return decode_object(self._object, readable(bytes(memoryview(raw))))

    def _named(self, item: T) -> T:
        """Set the kind: items of a list carry none, and metadata-only objects carry that of their envelope."""
        if isinstance(item, PartialObject):
            item.kind = self._resource.kind
            item.api_version = self._resource.api_version
        return item


def _metadata_of(raw: msgspec.Raw) -> ObjectMeta | None:
    try:
        return _partial.decode(raw).metadata
    except REFUSED:
        return None


def _cut(items: list[Item], count: int) -> Iterator[list[Item]]:
    """Return slices of ``count`` items, at most `SLICE_OBJECTS`."""
    count = min(SLICE_OBJECTS, max(1, count))
    return (items[begin : begin + count] for begin in range(0, len(items), count))


def _bytes(raw: msgspec.Raw | msgspec.UnsetType) -> msgspec.Raw:
    return raw if isinstance(raw, msgspec.Raw) else msgspec.Raw(b"{}")


_raw_page = msgspec.json.Decoder(_ListPage[msgspec.Raw])
_raw_event = msgspec.json.Decoder(_WatchEvent[msgspec.Raw])
_partial = msgspec.json.Decoder(PartialObject)
_status = msgspec.json.Decoder(Status)
