"""Deletion of objects: grace periods and finalizers decide when an object is removed after the request.

The functions follow ``BeforeDelete`` and the generic registry of the real server. They do not store anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from .errors import conflict
from .kinds import ApiKind
from .objects import Json, is_finished, meta, parse_timestamp, spec, timestamp

_GC_FINALIZERS = ("orphan", "foregroundDeletion")


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """Options of a delete request. ``grace`` is in seconds."""

    grace: int | None = None
    propagation: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    dry_run: bool = False


def delete_options(body: Mapping[str, Any], query: Mapping[str, str]) -> DeleteOptions:
    """Read the options from the body of a request; its query supplies missing ones."""
    preconditions = body.get("preconditions") or {}
    grace = body.get("gracePeriodSeconds", query.get("gracePeriodSeconds"))
    propagation = body.get("propagationPolicy", query.get("propagationPolicy"))
    orphan = body.get("orphanDependents", query.get("orphanDependents"))
    if propagation is None and orphan is not None:
        propagation = "Orphan" if str(orphan).lower() == "true" else "Background"
    return DeleteOptions(
        grace=None if grace is None else int(grace),
        propagation=propagation,
        uid=preconditions.get("uid"),
        resource_version=preconditions.get("resourceVersion"),
        dry_run=bool(body.get("dryRun")) or "dryRun" in query,
    )


def check_preconditions(kind: ApiKind, obj: Json, options: DeleteOptions) -> None:
    """Reject a delete whose preconditions name another uid or resource version than the object has."""
    metadata = obj["metadata"]
    checks = (
        ("UID", options.uid, metadata["uid"], "The object might have been deleted and then recreated"),
        (
            "ResourceVersion",
            options.resource_version,
            metadata["resourceVersion"],
            "The object might have been modified",
        ),
    )
    for field, expected, actual, hint in checks:
        if expected is not None and expected != actual:
            raise conflict(
                replace(kind, plural=kind.kind),
                metadata["name"],
                f"the {field} in the precondition ({expected}) does not match the {field} in record ({actual}). {hint}",
            )


def prepare_delete(kind: ApiKind, obj: Json, options: DeleteOptions, moment: datetime) -> tuple[Json, bool]:
    """Return an object after a delete request, and whether it may be removed at once.

    An object of a graceful kind first gets a deletion timestamp in the future; further requests can only shorten the
    grace period. Finalizers keep any object until they are removed.
    """
    deleting = "deletionTimestamp" in obj["metadata"]
    if kind.graceful:
        graceful = _shorten_grace(obj, options, moment) if deleting else _begin_grace(obj, options, moment)
        if graceful is None:
            return obj, False
        obj = graceful
    finalizers = obj["metadata"].get("finalizers", [])
    if not deleting:
        finalizers = _with_gc_finalizer(kind, finalizers, options)
    if not finalizers:
        return obj, not obj["metadata"].get("deletionGracePeriodSeconds")
    metadata = {**obj["metadata"], "finalizers": finalizers}
    if not kind.graceful:
        if not deleting and "generation" in metadata:
            metadata["generation"] += 1
        metadata.setdefault("deletionTimestamp", timestamp(moment))
        metadata["deletionGracePeriodSeconds"] = 0
    return {**obj, "metadata": metadata}, False


def _begin_grace(obj: Json, options: DeleteOptions, moment: datetime) -> Json:
    grace = options.grace
    if grace is None:
        grace = spec(obj).get("terminationGracePeriodSeconds", 0)
    if not spec(obj).get("nodeName") or is_finished(obj):
        grace = 0
    return _with_grace(obj, 1 if grace < 0 else grace, moment + timedelta(seconds=max(grace, 0)), bump=True)


def _shorten_grace(obj: Json, options: DeleteOptions, moment: datetime) -> Json | None:
    current = obj["metadata"].get("deletionGracePeriodSeconds") or 0
    if current == 0:
        return obj
    if options.grace is None or max(options.grace, 0) >= current:
        return None
    grace = options.grace if options.grace >= 0 else 1
    until = parse_timestamp(obj["metadata"]["deletionTimestamp"]) + timedelta(seconds=grace - current)
    if until < moment:
        until, grace = moment, min(grace, 1)
    return _with_grace(obj, grace, until, bump=False)


def _with_grace(obj: Json, grace: int, until: datetime, *, bump: bool) -> Json:
    metadata = {**obj["metadata"], "deletionTimestamp": timestamp(until), "deletionGracePeriodSeconds": grace}
    if bump and "generation" in metadata:
        metadata["generation"] += 1
    return {**obj, "metadata": metadata}


def _with_gc_finalizer(kind: ApiKind, finalizers: list[str], options: DeleteOptions) -> list[str]:
    other_finalizers = [finalizer for finalizer in finalizers if finalizer not in _GC_FINALIZERS]
    policy = options.propagation
    if policy is None and len(other_finalizers) != len(finalizers):
        return finalizers
    if policy == "Foreground":
        return [*other_finalizers, "foregroundDeletion"]
    if policy == "Orphan" or (policy is None and kind.orphans):
        return [*other_finalizers, "orphan"]
    return other_finalizers


def may_vanish(obj: Json) -> bool:
    """Whether a deleted object has neither finalizers nor a grace period left."""
    metadata = meta(obj)
    return (
        "deletionTimestamp" in metadata
        and not metadata.get("finalizers")
        and not metadata.get("deletionGracePeriodSeconds")
    )
