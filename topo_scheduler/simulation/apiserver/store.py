"""The objects of the embedded cluster: every write goes through here, whoever makes it and however it arrived.

What always holds: there is one revision for everything and each write takes the next; a write that changes nothing
takes none and nobody hears of it; what is read is never changed afterwards; what was asked to be only tried
(``dry_run``) leaves no trace. The store belongs to one event loop; nothing in it waits, so a write is atomic.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from . import admission, crds
from .deletion import DeleteOptions, check_preconditions, may_vanish, prepare_delete
from .errors import already_exists, conflict, invalid, not_found, too_large_version
from .kinds import ApiKind, Registry
from .lifecycle import check_type, prepare_create, prepare_update
from .log import Log, ObjectVersion, Observer, StoreEvent, Watch
from .objects import Clock, Json, Key, key_of, timestamp, utc_now
from .selectors import EVERYTHING, Selection

_GENERATE_ATTEMPTS = 8
_AS_USUAL = DeleteOptions()
_BORN_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
_BORN_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


class _KindTable:
    """All objects of one kind, and what happened to them."""

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
    """A part of a list, all of it as it was at one revision."""

    records: list[ObjectVersion]
    revision: int
    last: Key | None = None
    """Where the next page goes on; None on the last one."""
    remaining: int | None = None


class Store:
    """Objects by kind, namespace and name.

    ``clock`` gives the time written into objects, ``seed`` makes uids and generated names repeatable, ``window`` is
    how many events of each kind are remembered for watchers that come late.
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
        for name in _BORN_NAMESPACES:
            self.create("namespaces", {"metadata": {"name": name}})
        for name, value in _BORN_PRIORITIES.items():
            self.create("priorityclasses.scheduling.k8s.io", {"metadata": {"name": name}, "value": value})

    # Reading

    def kind(self, kind: ApiKind | str) -> ApiKind:
        """The kind of that id, such as ``pods`` or ``jobs.batch``."""
        return self.kinds[kind] if isinstance(kind, str) else kind

    def _table(self, kind: ApiKind) -> _KindTable:
        table = self._tables.get(kind.table)
        if table is None:
            table = self._tables[kind.table] = _KindTable(Log(self._window, self.revision))
        return table

    def find(self, kind: ApiKind | str, name: str, namespace: str = "") -> ObjectVersion | None:
        """An object, or None."""
        return self._table(self.kind(kind)).items.get(Key(namespace, name))

    def get(self, kind: ApiKind | str, name: str, namespace: str = "") -> ObjectVersion:
        """An object; raises 404."""
        kind = self.kind(kind)
        found = self._table(kind).items.get(Key(namespace, name))
        if found is None:
            raise not_found(kind, name)
        return found

    def list(self, kind: ApiKind | str, selection: Selection = EVERYTHING) -> list[ObjectVersion]:
        """All objects a selection means, in the order of their keys."""
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
        """At most ``limit`` objects behind ``after`` as they were at ``revision``; raises 410 if that is forgotten."""
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
        """Follow a kind from a revision on, or from now; raises 410 if that is too long ago."""
        log = self._table(self.kind(kind)).log
        return Watch(log, log.end if since is None else log.position(since), selection)

    def observe(self, observer: Observer) -> None:
        """Have ``observer`` called with every event of every kind, within the write that causes it."""
        self._observers.append(observer)

    def ignore(self, observer: Observer) -> None:
        """Call an observer no more."""
        self._observers.remove(observer)

    def dependents(self, uid: str) -> Sequence[tuple[str, Key]]:
        """The table and key of each object that names ``uid`` as an owner, oldest first."""
        return list(self._dependents.get(uid, ()))

    def exists(self, uid: str) -> bool:
        """Whether an object with that uid is there."""
        return uid in self._by_uid

    def by_uid(self, uid: str) -> tuple[str, ObjectVersion] | None:
        """The table and the object with that uid."""
        if (place := self._by_uid.get(uid)) is None:
            return None
        return place[0], self._tables[place[0]].items[place[1]]

    def compact(self) -> None:
        """Forget all history: whoever watches from before now is told 410."""
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
            born = prepare_create(kind, obj, namespace, moment, self.rng)
            existing = table.items.get(key_of(born))
            if existing is None:
                return self._commit(kind, None, admission.admit(kind, born, self, moment), dry_run=dry_run)
            if not generated:
                break
        deleting = existing is not None and "deletionTimestamp" in existing["metadata"]
        raise already_exists(kind, born["metadata"]["name"], deleting=deleting, generated=generated)

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
        """Replace an object by ``change`` of it; ``change`` must leave what it is given as it is."""
        kind = self.kind(kind)
        old = self.get(kind, name, namespace)
        new = change(kind.view.show(old.obj) if kind.view else old.obj)
        if kind.view:
            check_type(kind, new)
            new, kind = kind.view.store(new), self.kinds[kind.table]
        updated = prepare_update(kind, old.obj, new, subresource)
        admission.check_update(kind, old.obj, updated)
        return self.write(kind, old, updated, dry_run=dry_run)

    def replace(
        self, kind: ApiKind | str, obj: Json, *, subresource: str = "", dry_run: bool = False
    ) -> tuple[ObjectVersion, bool]:
        """Put a whole object, as HTTP's PUT does; also tells whether it was created by that."""
        kind, (namespace, name) = self.kind(kind), key_of(obj)
        if kind.put_creates and self.find(kind, name, namespace) is None:
            return self.create(kind, obj, namespace, dry_run=dry_run), True
        if not kind.blind_put and not obj["metadata"].get("resourceVersion"):
            self.get(kind, name, namespace)
            raise invalid(
                kind, name, [("metadata.resourceVersion", "Invalid value: 0: must be specified for an update")]
            )
        filled = obj if subresource else admission.default(kind, obj)
        return self.modify(kind, name, namespace, lambda _: filled, subresource=subresource, dry_run=dry_run), False

    def write(self, kind: ApiKind, old: ObjectVersion, new: Json, *, dry_run: bool = False) -> ObjectVersion:
        """Store a version that the rules of its path already passed."""
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
        options: DeleteOptions = _AS_USUAL,
    ) -> tuple[ObjectVersion, bool]:
        """Ask for an object's deletion; also tells whether it is gone already."""
        kind = self.kind(kind)
        kind = self.kinds[kind.table]
        old = self.get(kind, name, namespace)
        check_preconditions(kind, old.obj, options)
        doomed, at_once = prepare_delete(kind, old.obj, options, self.clock())
        if kind.id == "namespaces":
            doomed, at_once = _terminating(doomed, timestamp(self.clock()))
        if doomed != old.obj:
            old = self._commit(kind, old, doomed, dry_run=options.dry_run)
        if not at_once:
            return old, False
        return self.remove(kind, old, dry_run=options.dry_run), True

    def remove(self, kind: ApiKind, record: ObjectVersion, *, dry_run: bool = False) -> ObjectVersion:
        """Take an object away, whatever it says about that itself; returns its last state."""
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
        """Keep who depends on whom, and who exists."""
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
            held = self._dependents[uid]
            del held[entry]
            if not held:
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
        """Let the kinds follow the CustomResourceDefinitions."""
        name = event.record["metadata"]["name"]
        if event.after is None:
            for kind in {k.table: k for k in self.kinds if k.id == name}.values():
                for record in self.list(kind):
                    self.remove(kind, record)
            self.kinds.remove(name)
        elif event.before is None or event.before["spec"] != event.after["spec"]:
            self.kinds.remove(name)
            for kind in crds.kinds_of(event.after.obj):
                self.kinds.add(kind)


def _at(table: _KindTable, revision: int) -> tuple[dict[Key, ObjectVersion], list[Key]]:
    """The table as it was: what happened since is undone, newest first."""
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
    """A namespace stays, terminating, until its finalizer was taken off: that is, until it is empty."""
    if not (namespace.get("spec") or {}).get("finalizers"):
        return namespace, True
    metadata = {"deletionTimestamp": moment, **namespace["metadata"]}
    return {**namespace, "metadata": metadata, "status": {"phase": "Terminating"}}, False
