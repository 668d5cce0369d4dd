"""Garbage collection of dependents, and deletion of the content of namespaces."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

from topo_scheduler.simulation.apiserver import Json, Key, ObjectVersion, Store, StoreEvent
from topo_scheduler.simulation.apiserver.deletion import DeleteOptions
from topo_scheduler.simulation.apiserver.objects import changed, is_deleting
from topo_scheduler.simulation.apiserver.selectors import Selection

from .runtime import Controller, drop_finalizer

_FOREGROUND: Final = "foregroundDeletion"
_ORPHAN: Final = "orphan"
_UID: Final = "uid"
"""Namespace of the keys here, whose name is the uid of an owner."""


def _concerned_owners(store: Store, table: str, event: StoreEvent) -> Iterable[Key]:
    """Yield owners that were removed, owners that wait for their dependents, and missing owners of new objects."""
    metadata = event.record["metadata"]
    refs = metadata.get("ownerReferences") or ()
    if event.after is None:
        if store.dependents(metadata["uid"]):
            yield Key(_UID, metadata["uid"])
        yield from (Key(_UID, ref["uid"]) for ref in refs if _waits(store.by_uid(ref["uid"])))
        return
    if _waits((table, event.after)):
        yield Key(_UID, metadata["uid"])
    if event.before is None:
        yield from (Key(_UID, ref["uid"]) for ref in refs if _absent(store, ref))


def _absent(store: Store, ref: Json) -> bool:
    """Whether an owner certainly does not exist; an owner of an unserved kind may exist."""
    return not store.exists(ref["uid"]) and store.kinds.kind_of(ref["apiVersion"], ref["kind"]) is not None


def _waits(owner: tuple[str, ObjectVersion] | None) -> bool:
    """Whether an owner is being deleted and waits for its dependents."""
    if owner is None or not is_deleting(owner[1].obj):
        return False
    return not {_FOREGROUND, _ORPHAN}.isdisjoint(owner[1]["metadata"].get("finalizers") or ())


def _collect(pause_seconds: float, store: Store, key: Key) -> float | None:
    uid, owner = key.name, store.by_uid(key.name)
    if owner is not None and not _waits(owner):
        return None
    dependents = [
        (table, record) for table, key in store.dependents(uid) if (record := store.find(table, *key.address))
    ]
    if owner is None:
        remaining = [(table, record) for table, record in dependents if not is_deleting(record.obj)]
        for table, record in remaining[:1] if pause_seconds else remaining:
            _delete_or_disown(store, table, record, uid)
        return pause_seconds if pause_seconds and len(remaining) > 1 else None
    if _ORPHAN in owner[1]["metadata"]["finalizers"]:
        for table, record in dependents:
            _disown(store, table, record, uid)
        drop_finalizer(store, *owner, _ORPHAN)
    else:
        for table, record in dependents:
            if not is_deleting(record.obj):
                store.delete(table, *record.key.address, DeleteOptions(propagation="Foreground"))
        if not any(_blocks(record, uid) for _, record in dependents if store.exists(record["metadata"]["uid"])):
            drop_finalizer(store, *owner, _FOREGROUND)
    return None


def _blocks(dependent: ObjectVersion, uid: str) -> bool:
    refs = dependent["metadata"].get("ownerReferences") or ()
    return any(ref["uid"] == uid and ref.get("blockOwnerDeletion") for ref in refs)


def _delete_or_disown(store: Store, table: str, record: ObjectVersion, uid: str) -> None:
    """Delete an object whose last owner was removed; otherwise remove the owner reference."""
    refs = record["metadata"].get("ownerReferences") or ()
    # The removed owner is excluded by its uid, since its kind may be unserved by now.
    other_owners = [ref for ref in refs if ref["uid"] != uid and not _absent(store, ref)]
    if other_owners:
        _disown(store, table, record, uid)
    elif not is_deleting(record.obj):
        store.delete(table, *record.key.address, DeleteOptions(propagation="Background"))


def _disown(store: Store, table: str, record: ObjectVersion, uid: str) -> None:
    refs = [ref for ref in record["metadata"].get("ownerReferences") or () if ref["uid"] != uid]
    store.modify(table, *record.key.address, lambda obj: changed(obj, "metadata", ownerReferences=refs or None))


def collector(pause_seconds: float) -> Controller:
    """Return a garbage collector that pauses between two dependents of one owner, as a busy one would."""
    return Controller("garbage-collector", _concerned_owners, partial(_collect, pause_seconds))


def _namespaces(store: Store, table: str, event: StoreEvent) -> Iterable[Key]:
    """Yield a changed namespace, and the namespace of a removed object."""
    if table == "namespaces":
        yield event.key
    elif event.after is None and event.key.namespace:
        yield Key("", event.key.namespace)


def _reconcile_namespace(store: Store, key: Key) -> float | None:
    """Create the default ServiceAccount of a namespace; empty a terminating namespace, then remove it."""
    namespace = store.find("namespaces", key.name)
    if namespace is None:
        return None
    if not is_deleting(namespace.obj):
        if store.find("serviceaccounts", "default", key.name) is None:
            store.create("serviceaccounts", {"metadata": {"name": "default"}}, key.name)
        return None
    remaining = 0
    for table in {kind.table for kind in store.kinds if kind.namespaced}:
        for record in store.list(table, Selection(key.name)):
            store.delete(table, record.key.name, key.name, DeleteOptions(propagation="Background"))
            remaining += store.find(table, record.key.name, key.name) is not None
    if not remaining:
        store.remove(store.kind("namespaces"), namespace)
    return None


NAMESPACES: Final = Controller("namespace", _namespaces, _reconcile_namespace)
