"""The runtime of controllers: events enqueue keys of objects, and reconciling a key reads the whole state again.

Controllers are stateless: all state is in the store, so event order, duplicates and restarts do not matter. A
controller consists of two functions: one returns the keys that an event concerns, one reconciles a key.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from topo_scheduler.simulation.apiserver import Key, ObjectVersion, StatusError, Store, StoreEvent
from topo_scheduler.simulation.apiserver.deletion import DeleteOptions
from topo_scheduler.simulation.apiserver.objects import Json, changed, controller_of
from topo_scheduler.simulation.reconcile_loop import ReconcileLoop

_log = logging.getLogger(__name__)
_RETRY_SECONDS: Final = 1.0
_KEYS_PER_SLICE: Final = 64
"""Reconciliations in a row before the runner yields to the event loop."""

Concerns = Callable[[Store, str, StoreEvent], Iterable[Key]]
Reconcile = Callable[[Store, Key], float | None]
"""Reconciles an object; may return seconds after which it must run again."""


@dataclass(frozen=True, slots=True)
class Controller:
    """A controller: its name, the keys that an event concerns, and the reconcile function."""

    name: str
    concerns: Concerns
    reconcile: Reconcile


@dataclass(frozen=True, slots=True)
class ControllerPlan:
    """The changes that a controller requests for one object."""

    create: Sequence[Json] = ()
    delete: Sequence[ObjectVersion] = ()
    release: Sequence[ObjectVersion] = ()
    """Counted pods, whose tracking finalizer can be removed."""
    status: Json = field(default_factory=dict)


def owner_and_owned(owner_table: str, owned_table: str = "pods") -> Concerns:
    """Return a function that yields the changed owner, or the controller of a changed object."""

    def concerns(store: Store, table: str, event: StoreEvent) -> Iterable[Key]:
        if table == owner_table:
            yield event.key
        elif table == owned_table:
            kind = store.kind(owner_table)
            for record in (event.before, event.after):
                owner = controller_of(record.obj) if record else None
                if owner and owner["kind"] == kind.kind and owner["apiVersion"] == kind.api_version:
                    yield Key(event.key.namespace, owner["name"])

    return concerns


def owned(store: Store, owner: ObjectVersion, table: str = "pods") -> list[ObjectVersion]:
    """Return the objects that an owner controls, in the order of creation."""
    uid = owner["metadata"]["uid"]
    # Users can write any uid, so objects of other namespaces do not count.
    keys = (
        key
        for dependent_table, key in store.dependents(uid)
        if dependent_table == table and key.namespace == owner.key.namespace
    )
    records = (store.find(table, *key.address) for key in keys)
    return [record for record in records if record and (controller_of(record.obj) or {}).get("uid") == uid]


def owner_reference(owner: ObjectVersion) -> Json:
    """Return an owner reference that makes ``owner`` the controller of an object."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner.key.name,
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def pod_of(
    owner: ObjectVersion,
    name: str,
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    finalizers: Sequence[str] = (),
) -> Json:
    """Return a pod from an owner's template, with extra metadata; the server completes a name that ends in a dash."""
    template = owner["spec"]["template"]
    template_metadata = template.get("metadata") or {}
    metadata = {
        "generateName" if name.endswith("-") else "name": name,
        "namespace": owner.key.namespace,
        "ownerReferences": [owner_reference(owner)],
        "labels": {**(template_metadata.get("labels") or {}), **(labels or {})},
        "annotations": {**(template_metadata.get("annotations") or {}), **(annotations or {})},
        "finalizers": list(finalizers),
    }
    return {"metadata": metadata, "spec": template["spec"]}


def carry_out(store: Store, owner: ObjectVersion, plan: ControllerPlan) -> None:
    """Apply a plan, except for the release of pods."""
    for obj in plan.create:
        store.create("pods", obj, owner.key.namespace)
    for record in plan.delete:
        store.delete("pods", *record.key.address, DeleteOptions(propagation="Background"))
    kind = store.kinds.kind_of(owner["apiVersion"], owner["kind"])
    if kind is not None:
        store.modify(kind, *owner.key.address, lambda obj: {**obj, "status": plan.status}, subresource="status")


def drop_finalizer(store: Store, table: str, record: ObjectVersion, finalizer: str) -> None:
    """Remove a finalizer of an object."""
    remaining = [name for name in record["metadata"].get("finalizers") or () if name != finalizer]
    store.modify(table, *record.key.address, lambda obj: changed(obj, "metadata", finalizers=remaining or None))


class ControllerRunner(ReconcileLoop[tuple[int, Key]]):
    """Runs controllers on a store."""

    def __init__(self, store: Store, controllers: Sequence[Controller]) -> None:
        super().__init__(store, "controllers")
        self._controllers = controllers

    def _notice(self, table: str, event: StoreEvent) -> None:
        for number, controller in enumerate(self._controllers):
            for key in controller.concerns(self._store, table, event):
                self._enqueue((number, key))

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            for _ in range(min(_KEYS_PER_SLICE, len(self._due))):
                number, key = entry = next(iter(self._due))
                del self._due[entry]
                self._reconcile(number, key)
            if not self._due:
                self._wake.clear()
            await asyncio.sleep(0)

    def _reconcile(self, number: int, key: Key) -> None:
        controller, retry_seconds = self._controllers[number], None
        self._cancel_timer((number, key))
        try:
            retry_seconds = controller.reconcile(self._store, key)
        except StatusError as error:
            _log.debug("%s of %s: %s", controller.name, key, error)
            retry_seconds = _RETRY_SECONDS
        except Exception:  # a malformed object must not stop the others
            _log.exception("%s of %s", controller.name, key)
        if retry_seconds is not None:
            loop = asyncio.get_running_loop()
            self._timers[number, key] = loop.call_later(retry_seconds, self._enqueue, (number, key))
