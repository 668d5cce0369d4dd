"""How controllers run: an event says whose turn it is, and whoever's turn it is looks at the whole state again.

Controllers remember nothing. What they know is in the store, so the order of events, duplicates and restarts do not
matter. A controller is two functions: whom an event concerns, and what is to be done for one of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from topo_scheduler.simulation.apiserver import APIError, Key, ObjectVersion, Store, StoreEvent
from topo_scheduler.simulation.apiserver.deletion import DeleteOptions
from topo_scheduler.simulation.apiserver.objects import Json, controller_of
from topo_scheduler.simulation.tending import Tending

_log = logging.getLogger(__name__)
_RETRY_SECONDS: Final = 1.0
_BREATH: Final = 64
"""Reconciliations in a row before others on the event loop get their turn."""

Concerns = Callable[[Store, str, StoreEvent], Iterable[Key]]
Reconcile = Callable[[Store, Key], float | None]
"""Does what is to be done; may return after how many seconds it wants to look again."""


@dataclass(frozen=True, slots=True)
class Controller:
    """A name, whom an event concerns, and what to do."""

    name: str
    concerns: Concerns
    reconcile: Reconcile


@dataclass(frozen=True, slots=True)
class ControllerPlan:
    """What a controller wants for one of its objects, as a value."""

    create: Sequence[Json] = ()
    delete: Sequence[ObjectVersion] = ()
    release: Sequence[ObjectVersion] = ()
    """Pods that are counted in the status and no longer need to be kept for that."""
    status: Json = field(default_factory=dict)


def owner_and_owned(owner_table: str, owned_table: str = "pods") -> Concerns:
    """An event concerns the object itself, or the controller of the object that changed."""

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
    """What an object controls, in the order of creation."""
    uid = owner["metadata"]["uid"]
    # Whoever names an owner of another namespace belongs to nobody: anybody can write any uid.
    near = (key for t, key in store.dependents(uid) if t == table and key.namespace == owner.key.namespace)
    found = (store.find(table, *key.address) for key in near)
    return [record for record in found if record and (controller_of(record.obj) or {}).get("uid") == uid]


def owner_reference(owner: ObjectVersion) -> Json:
    """The reference that makes ``owner`` the controller of something."""
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
    """A pod of the owner's template and marks of its own; a name that ends in a dash is completed by the server."""
    template = owner["spec"]["template"]
    given = template.get("metadata") or {}
    metadata = {
        "generateName" if name.endswith("-") else "name": name,
        "namespace": owner.key.namespace,
        "ownerReferences": [owner_reference(owner)],
        "labels": {**(given.get("labels") or {}), **(labels or {})},
        "annotations": {**(given.get("annotations") or {}), **(annotations or {})},
        "finalizers": list(finalizers),
    }
    return {"metadata": metadata, "spec": template["spec"]}


def carry_out(store: Store, owner: ObjectVersion, plan: ControllerPlan, *, table: str = "pods") -> None:
    """Do what a plan says, but for the release."""
    for obj in plan.create:
        store.create(table, obj, owner.key.namespace)
    for record in plan.delete:
        store.delete(table, *record.key.address, DeleteOptions(propagation="Background"))
    kind = store.kinds.of(owner["apiVersion"], owner["kind"])
    if kind is not None:
        store.modify(kind, *owner.key.address, lambda obj: {**obj, "status": plan.status}, subresource="status")


class ControllerRunner(Tending[tuple[int, Key]]):
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
            for _ in range(min(_BREATH, len(self._due))):
                number, key = entry = next(iter(self._due))
                del self._due[entry]
                self._reconcile(number, key)
            if not self._due:
                self._wake.clear()
            await asyncio.sleep(0)

    def _reconcile(self, number: int, key: Key) -> None:
        controller, again = self._controllers[number], None
        if timer := self._timers.pop((number, key), None):
            timer.cancel()
        try:
            again = controller.reconcile(self._store, key)
        except APIError as error:
            _log.debug("%s of %s: %s", controller.name, key, error)
            again = _RETRY_SECONDS
        except Exception:  # one object that no controller can read must not stop the others
            _log.exception("%s of %s", controller.name, key)
        if again is not None:
            loop = asyncio.get_running_loop()
            self._timers[number, key] = loop.call_later(again, self._enqueue, (number, key))
