"""The objects of the embedded cluster. Every write goes through the store, from HTTP or from this process.

Invariants: one revision counter covers all objects, and each write takes the next revision. A write that changes
nothing takes no revision and causes no event. Objects that were read never change. A write with ``dry_run`` has no
effect. The store belongs to one event loop and never awaits, so each write is atomic.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from . import admission, crds
from .deletion import DeleteOptions, check_preconditions, may_vanish, prepare_delete
from .errors import already_exists, conflict, invalid, not_found, too_large_version
from .kinds import ApiKind, Registry
from .lifecycle import check_type, prepare_create, prepare_update
from .log import Log, ObjectVersion, Observer, StoreEvent, Watch
from .objects import Clock, Json, Key, changed, key_of, timestamp, utc_now
from .selectors import EVERYTHING, Selection

_GENERATE_ATTEMPTS = 8
_DEFAULT_OPTIONS = DeleteOptions()
_INITIAL_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
_INITIAL_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


class _KindTable:
    """All objects of one kind, and the log of their changes."""

    __slots__ = ("items", "keys", "log")

    def __init__(self, log: Log) -> None:
        self.items: dict[Key, ObjectVersion] = {}
        self.keys: list[Key] = []
        self.log = log

    def put(self, record: ObjectVersion) -> None:
        if record.key not in self.items:
            insort(self.keys, record.key)
        self.items[record.key] = record

    def drop(self, key: Key) -> None:
        del self.items[key]
        del self.keys[bisect_left(self.keys, key)]


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a list, consistent at one revision."""

    records: list[ObjectVersion]
    revision: int
    last: Key | None = None
    """The key after which the next page starts; None on the last page."""
    remaining: int | None = None


class Store:
    """Objects by kind, namespace and name.

    ``clock`` returns the time written into objects. ``seed`` makes uids and generated names repeatable. ``window`` is
    the number of events of each kind kept for watchers that are behind.
    """

    def __init__(self, *, clock: Clock = utc_now, seed: int | None = None, window: int = 10_000) -> None:
        self.clock = clock
        self.kinds = Registry()
        self.revision = 1
        self.rng = random.Random(seed)
        self._window = window
        self._tables: dict[str, _KindTable] = {}
        self._observers: list[Observer] = []
        self._dependents: dict[str, dict[tuple[str, Key], None]] = {}
        self._by_uid: dict[str, tuple[str, Key]] = {}
        for name in _INITIAL_NAMESPACES:
            self.create("namespaces", {"metadata": {"name": name}})
        for name, value in _INITIAL_PRIORITIES.items():
            self.create("priorityclasses.scheduling.k8s.io", {"metadata": {"name": name}, "value": value})

    # Reading

    def kind(self, kind: ApiKind | str) -> ApiKind:
        """Return the kind of an id such as ``pods`` or ``jobs.batch``."""
        return self.kinds[kind] if isinstance(kind, str) else kind

    def _table(self, kind: ApiKind) -> _KindTable:
        table = self._tables.get(kind.table)
        if table is None:
            table = self._tables[kind.table] = _KindTable(Log(self._window, self.revision))
        return table

    def find(self, kind: ApiKind | str, name: str, namespace: str = "") -> ObjectVersion | None:
        """Return an object, or None."""
        return self._table(self.kind(kind)).items.get(Key(namespace, name))

    def get(self, kind: ApiKind | str, name: str, namespace: str = "") -> ObjectVersion:
        """Return an object; raises 404 if there is none."""
        if (record := self.find(kind, name, namespace)) is None:
            raise not_found(self.kind(kind), name)
        return record

    def list(self, kind: ApiKind | str, selection: Selection = EVERYTHING) -> list[ObjectVersion]:
        """Return all selected objects, in the order of their keys."""
        return self.page(kind, selection).records

    def page(
        self,
        kind: ApiKind | str,
        selection: Selection = EVERYTHING,
        *,
        limit: int = 0,
        after: Key | None = None,
        revision: int | None = None,
    ) -> Page:
        """Return at most ``limit`` objects after the key ``after`` at ``revision``; raises 410 if it was compacted."""
        table = self._table(self.kind(kind))
        revision = self.revision if revision is None else revision
        if revision > self.revision:
            raise too_large_version(revision, self.revision)
        items, keys = _at(table, revision)
        start = bisect_right(keys, after) if after else bisect_left(keys, Key(selection.namespace, ""))
        stop = bisect_left(keys, Key(selection.namespace + "\0", "")) if selection.namespace else len(keys)
        records: list[ObjectVersion] = []
        for position in range(start, stop):
            record = items[keys[position]]
            if selection is not EVERYTHING and not selection.includes(record.key, record.obj):
                continue
            if limit and len(records) == limit:
                remaining = stop - position if selection.everything else None
                return Page(records, revision, records[-1].key, remaining)
            records.append(record)
        return Page(records, revision)

    def watch(self, kind: ApiKind | str, since: int | None = None, selection: Selection = EVERYTHING) -> Watch:
        """Watch a kind from a revision on, or from now; raises 410 if the revision is too old."""
        log = self._table(self.kind(kind)).log
        return Watch(log, log.end if since is None else log.position(since), selection)

    def observe(self, observer: Observer) -> None:
        """Call ``observer`` with every event of every kind, synchronously within the write."""
        self._observers.append(observer)

    def ignore(self, observer: Observer) -> None:
        """Remove an observer."""
        self._observers.remove(observer)

    def dependents(self, uid: str) -> Sequence[tuple[str, Key]]:
        """Return the table and key of each object with the owner ``uid``, oldest first."""
        return list(self._dependents.get(uid, ()))

    def exists(self, uid: str) -> bool:
        """Whether an object with that uid exists."""
        return uid in self._by_uid

    def by_uid(self, uid: str) -> tuple[str, ObjectVersion] | None:
        """Return the table and the object with that uid, or None."""
        if (entry := self._by_uid.get(uid)) is None:
            return None
        return entry[0], self._tables[entry[0]].items[entry[1]]

    def compact(self) -> None:
        """Drop all history: watches from earlier revisions get 410."""
        for table in self._tables.values():
            table.log.compact()
            table.log.wake()

    # Writing

    def create(self, kind: ApiKind | str, obj: Json, namespace: str = "", *, dry_run: bool = False) -> ObjectVersion:
        """Store a new object; ``namespace`` defaults to the object's own, then to ``default``."""
        kind = self.kind(kind)
        check_type(kind, obj)
        if kind.view:
            obj = kind.view.store(obj)
            kind = self.kinds[kind.table]
        if kind.namespaced:
            namespace = namespace or key_of(obj).namespace or "default"
        table, moment = self._table(kind), self.clock()
        generated = not (obj.get("metadata") or {}).get("name")
        for _ in range(_GENERATE_ATTEMPTS):
            new_obj = prepare_create(kind, obj, namespace, moment, self.rng)
            existing = table.items.get(key_of(new_obj))
            if existing is None:
                return self._commit(kind, None, admission.admit(kind, new_obj, self, moment), dry_run=dry_run)
            if not generated:
                break
        deleting = existing is not None and "deletionTimestamp" in existing["metadata"]
        raise already_exists(kind, new_obj["metadata"]["name"], deleting=deleting, generated=generated)

    def modify(
        self,
        kind: ApiKind | str,
        name: str,
        namespace: str,
        change: Callable[[Json], Json],
        *,
        subresource: str = "",
        dry_run: bool = False,
    ) -> ObjectVersion:
        """Replace an object by ``change(obj)``; ``change`` must not modify its argument."""
        kind = self.kind(kind)
        old = self.get(kind, name, namespace)
        new = change(kind.view.show(old.obj) if kind.view else old.obj)
        if kind.view:
            check_type(kind, new)
            new, kind = kind.view.store(new), self.kinds[kind.table]
        updated = prepare_update(kind, old.obj, new, subresource)
        admission.check_update(kind, old.obj, updated)
        return self.write(kind, old, updated, dry_run=dry_run)

    def patch_status(self, kind: ApiKind | str, key: Key, **fields: Any) -> ObjectVersion:
        """Set fields of the status of an object; None removes a field."""
        return self.modify(kind, *key.address, lambda obj: changed(obj, "status", **fields), subresource="status")

    def replace(
        self, kind: ApiKind | str, obj: Json, *, subresource: str = "", dry_run: bool = False
    ) -> tuple[ObjectVersion, bool]:
        """Replace a whole object, as HTTP PUT does; also return whether the object was created."""
        kind, (namespace, name) = self.kind(kind), key_of(obj)
        if kind.put_creates and self.find(kind, name, namespace) is None:
            return self.create(kind, obj, namespace, dry_run=dry_run), True
        if not kind.blind_put and not obj["metadata"].get("resourceVersion"):
            self.get(kind, name, namespace)
            raise invalid(
                kind, name, [("metadata.resourceVersion", "Invalid value: 0: must be specified for an update")]
            )
        defaulted = obj if subresource else admission.default(kind, obj)
        return self.modify(kind, name, namespace, lambda _: defaulted, subresource=subresource, dry_run=dry_run), False

    def write(self, kind: ApiKind, old: ObjectVersion, new: Json, *, dry_run: bool = False) -> ObjectVersion:
        """Store a version that was validated already."""
        if new == old.obj:
            return old
        if may_vanish(new):
            self.remove(kind, old, dry_run=dry_run)
            return ObjectVersion(old.key, new, old.revision)
        return self._commit(kind, old, new, dry_run=dry_run)

    def delete(
        self,
        kind: ApiKind | str,
        name: str,
        namespace: str = "",
        options: DeleteOptions = _DEFAULT_OPTIONS,
    ) -> tuple[ObjectVersion, bool]:
        """Request deletion of an object; also return whether it was removed at once."""
        kind = self.kind(kind)
        kind = self.kinds[kind.table]
        old = self.get(kind, name, namespace)
        check_preconditions(kind, old.obj, options)
        deleting, removable = prepare_delete(kind, old.obj, options, self.clock())
        if kind.id == "namespaces":
            deleting, removable = _terminating(deleting, timestamp(self.clock()))
        if deleting != old.obj:
            old = self._commit(kind, old, deleting, dry_run=options.dry_run)
        if not removable:
            return old, False
        return self.remove(kind, old, dry_run=options.dry_run), True

    def remove(self, kind: ApiKind, record: ObjectVersion, *, dry_run: bool = False) -> ObjectVersion:
        """Remove an object regardless of finalizers and grace period; return its last state."""
        if dry_run:
            return record
        table = self._table(kind)
        if table.items.get(record.key) is not record:
            raise conflict(kind, record.key.name)
        self.revision += 1
        table.drop(record.key)
        event = StoreEvent(record, None, self.revision)
        self._index(kind, event)
        self._announce(kind, table, event)
        return event.gone()

    def _commit(self, kind: ApiKind, old: ObjectVersion | None, new: Json, *, dry_run: bool) -> ObjectVersion:
        if dry_run:
            return ObjectVersion(key_of(new), new, self.revision)
        self.revision += 1
        obj = {**new, "metadata": {**new["metadata"], "resourceVersion": str(self.revision)}}
        record = ObjectVersion(key_of(obj), obj, self.revision)
        table = self._table(kind)
        table.put(record)
        event = StoreEvent(old, record, self.revision)
        self._index(kind, event)
        self._announce(kind, table, event)
        return record

    def _index(self, kind: ApiKind, event: StoreEvent) -> None:
        """Update the indexes of dependents and of uids."""
        before = _owners(event.before)
        after = _owners(event.after)
        if event.before is None:
            self._by_uid[event.record["metadata"]["uid"]] = (kind.table, event.key)
        elif event.after is None:
            del self._by_uid[event.before["metadata"]["uid"]]
        if before == after:
            return
        entry = (kind.table, event.key)
        for uid in before - after:
            dependents = self._dependents[uid]
            del dependents[entry]
            if not dependents:
                del self._dependents[uid]
        for uid in after - before:
            self._dependents.setdefault(uid, {})[entry] = None

    def _announce(self, kind: ApiKind, table: _KindTable, event: StoreEvent) -> None:
        table.log.append(event)
        if kind.id == crds.ID:
            self._serve(event)
        for observer in self._observers:
            observer(kind.table, event)

    def _serve(self, event: StoreEvent) -> None:
        """Update the served kinds after a change of a CustomResourceDefinition."""
        name = event.record["metadata"]["name"]
        if event.after is None:
            for kind in {served.table: served for served in self.kinds if served.id == name}.values():
                for record in self.list(kind):
                    self.remove(kind, record)
            self.kinds.remove(name)
        elif event.before is None or event.before["spec"] != event.after["spec"]:
            self.kinds.remove(name)
            for kind in crds.kinds_of(event.after.obj):
                self.kinds.add(kind)


def _at(table: _KindTable, revision: int) -> tuple[dict[Key, ObjectVersion], list[Key]]:
    """Return the table at a revision by undoing later events, newest first."""
    if not (later := table.log.since(table.log.position(revision))):
        return table.items, table.keys
    items = dict(table.items)
    for event in reversed(later):
        if event.before is None:
            del items[event.key]
        else:
            items[event.key] = event.before
    return items, sorted(items)


def _owners(record: ObjectVersion | None) -> frozenset[str]:
    refs: Iterable[Json] = record["metadata"].get("ownerReferences", ()) if record else ()
    return frozenset(ref["uid"] for ref in refs)


def _terminating(namespace: Json, moment: str) -> tuple[Json, bool]:
    """Return a terminating namespace, and whether it may be removed; its finalizer keeps it until it is empty."""
    if not (namespace.get("spec") or {}).get("finalizers"):
        return namespace, True
    metadata = {"deletionTimestamp": moment, **namespace["metadata"]}
    return {**namespace, "metadata": metadata, "status": {"phase": "Terminating"}}, False
