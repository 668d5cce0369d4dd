"""What goes when something else has gone: the dependents of an owner, and all that is in a namespace."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

from topo_scheduler.simulation.apiserver import Json, Key, ObjectVersion, Store, StoreEvent
from topo_scheduler.simulation.apiserver.deletion import DeleteOptions
from topo_scheduler.simulation.apiserver.objects import changed, is_deleting
from topo_scheduler.simulation.apiserver.selectors import Selection

from .runtime import Controller

_FOREGROUND: Final = "foregroundDeletion"
_ORPHAN: Final = "orphan"
_UID: Final = "uid"
"""Owners are known by their uid here: the key's namespace says so, and its name is the uid."""


def _orphaned(store: Store, table: str, event: StoreEvent) -> Iterable[Key]:
    """Owners that have gone or that wait for their dependents, and owners of what came that are not there."""
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
    """Whether an owner is certainly not there; of a kind that isn't served nobody can tell."""
    return not store.exists(ref["uid"]) and store.kinds.of(ref["apiVersion"], ref["kind"]) is not None


def _waits(owner: tuple[str, ObjectVersion] | None) -> bool:
    """Whether an owner is on its way, held by what its dependents are to do first."""
    if owner is None or not is_deleting(owner[1].obj):
        return False
    return not {_FOREGROUND, _ORPHAN}.isdisjoint(owner[1]["metadata"].get("finalizers") or ())


def _collect(pause_seconds: float, store: Store, key: Key) -> float | None:
    uid, owner = key.name, store.by_uid(key.name)
    if owner is not None and not _waits(owner):
        return None
    dependents = [(table, found) for table, k in store.dependents(uid) if (found := store.find(table, *k.address))]
    if owner is None:
        left = [(table, record) for table, record in dependents if not is_deleting(record.obj)]
        for table, record in left[:1] if pause_seconds else left:
            _leave_or_go(store, table, record, uid)
        return pause_seconds if pause_seconds and len(left) > 1 else None
    if _ORPHAN in owner[1]["metadata"]["finalizers"]:
        for table, record in dependents:
            _disown(store, table, record, uid)
        _drop_finalizer(store, *owner, _ORPHAN)
    else:
        for table, record in dependents:
            if not is_deleting(record.obj):
                store.delete(table, *record.key.address, DeleteOptions(propagation="Foreground"))
        if not any(_blocks(record, uid) for _, record in dependents if _still(store, record)):
            _drop_finalizer(store, *owner, _FOREGROUND)
    return None


def _still(store: Store, record: ObjectVersion) -> bool:
    return store.exists(record["metadata"]["uid"])


def _blocks(dependent: ObjectVersion, uid: str) -> bool:
    refs = dependent["metadata"].get("ownerReferences") or ()
    return any(ref["uid"] == uid and ref.get("blockOwnerDeletion") for ref in refs)


def _leave_or_go(store: Store, table: str, record: ObjectVersion, uid: str) -> None:
    """An object goes with the last of its owners."""
    refs = record["metadata"].get("ownerReferences") or ()
    # The one that has gone is known to have, though its kind may have gone with it.
    others = [ref for ref in refs if ref["uid"] != uid and not _absent(store, ref)]
    if others:
        _disown(store, table, record, uid)
    elif not is_deleting(record.obj):
        store.delete(table, *record.key.address, DeleteOptions(propagation="Background"))


def _disown(store: Store, table: str, record: ObjectVersion, uid: str) -> None:
    refs = [ref for ref in record["metadata"].get("ownerReferences") or () if ref["uid"] != uid]
    store.modify(table, *record.key.address, lambda obj: changed(obj, "metadata", ownerReferences=refs or None))


def _drop_finalizer(store: Store, table: str, record: ObjectVersion, finalizer: str) -> None:
    left = [f for f in record["metadata"].get("finalizers") or () if f != finalizer]
    store.modify(table, *record.key.address, lambda obj: changed(obj, "metadata", finalizers=left or None))


def collector(pause_seconds: float = 0.0) -> Controller:
    """A garbage collector that pauses between two dependents of one owner: one with much to do is as slow."""
    return Controller("garbage-collector", _orphaned, partial(_collect, pause_seconds))


def _namespaces(store: Store, table: str, event: StoreEvent) -> Iterable[Key]:
    """A namespace that came or goes, and one that something has just left."""
    if table == "namespaces":
        yield event.key
    elif event.after is None and event.key.namespace:
        yield Key("", event.key.namespace)


def _tend_namespace(store: Store, key: Key) -> float | None:
    """Give a namespace its account; empty one that terminates, then let it go."""
    namespace = store.find("namespaces", key.name)
    if namespace is None:
        return None
    if not is_deleting(namespace.obj):
        if store.find("serviceaccounts", "default", key.name) is None:
            store.create("serviceaccounts", {"metadata": {"name": "default"}}, key.name)
        return None
    left = 0
    for table in {kind.table for kind in store.kinds if kind.namespaced}:
        for record in store.list(table, Selection(key.name)):
            store.delete(table, record.key.name, key.name, DeleteOptions(propagation="Background"))
            left += store.find(table, record.key.name, key.name) is not None
    if not left:
        store.remove(store.kind("namespaces"), namespace)
    return None


NAMESPACES: Final = Controller("namespace", _namespaces, _tend_namespace)
