"""Rules for creates and updates that are common to all kinds, as functions over dicts.

They follow ``k8s.io/apiserver/pkg/registry/rest``. They store nothing; ``Store`` stores what they return.
"""

from __future__ import annotations

import random
import re
import uuid
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

from .errors import StatusError, bad_request, conflict, invalid
from .kinds import ApiKind
from .objects import Json, dig, timestamp

_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_BAD_NAME = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
    "and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_CLIENT_METADATA = ("name", "generateName", "namespace", "labels", "annotations", "finalizers", "ownerReferences")
_LABEL_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_BAD_LABEL_NAME = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_BAD_LABEL_VALUE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_MAX_LABEL_CHARACTERS = 63


def normal(kind: ApiKind, obj: Json, metadata: Json) -> Json:
    """Return the object with its type first, as the encoders expect."""
    other_fields = {name: value for name, value in obj.items() if name not in ("apiVersion", "kind", "metadata")}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, **other_fields}


def suffix(rng: random.Random) -> str:
    """Return a random suffix for a ``generateName``."""
    return "".join(rng.choices(_SUFFIX, k=5))


def prepare_create(kind: ApiKind, obj: Json, namespace: str, moment: datetime, rng: random.Random) -> Json:
    """Return the object for a create: with name, uid and timestamp, and without fields that only the server sets."""
    metadata = _check_create(kind, obj, namespace)
    prefix = metadata.get("generateName") or ""
    name = metadata.get("name") or (prefix and prefix + suffix(rng))
    if not name:
        raise invalid(kind, "", [("metadata.name", "Required value: name or generateName is required")])
    if not kind.group.startswith("rbac."):
        _check_name(kind, name, "name", name)
        _check_name(kind, name, "generateName", re.sub("-$", "a", prefix))
    check_labels(kind, {**metadata, "name": name})
    new_metadata = {field: metadata[field] for field in _CLIENT_METADATA if metadata.get(field)}
    new_metadata["name"] = name
    if kind.namespaced:
        new_metadata["namespace"] = namespace
    new_metadata["uid"] = str(uuid.UUID(int=rng.getrandbits(128), version=4))
    new_metadata["creationTimestamp"] = timestamp(moment)
    if kind.generation:
        new_metadata["generation"] = 1
    new_obj = normal(kind, obj, new_metadata)
    if kind.has_status and not kind.status_at_birth:
        new_obj.pop("status", None)
    return new_obj


def _check_name(kind: ApiKind, name: str, field: str, value: str) -> None:
    if value and not _SUBDOMAIN.fullmatch(value):
        raise invalid(kind, name, [(f"metadata.{field}", f'Invalid value: "{value}": {_BAD_NAME}')])


def check_labels(kind: ApiKind, metadata: Json) -> None:
    """Reject labels and annotations that are no strings or violate the syntax."""
    for field in ("labels", "annotations"):
        entries = metadata.get(field) or {}
        if not all(isinstance(value, str) for value in entries.values()):
            prefix = f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}'
            raise bad_request(
                f"{prefix}: json: cannot unmarshal into Go struct field ObjectMeta.metadata.{field} of type string"
            )
        for key, value in entries.items():
            problem = _label_problem(key, value if field == "labels" else "")
            if problem:
                raise invalid(kind, metadata["name"], [(f"metadata.{field}", problem)])


@lru_cache(maxsize=8192)
def _label_problem(key: str, value: str) -> str | None:
    prefix, _, name = key.rpartition("/")
    if (
        not _LABEL_NAME.fullmatch(name)
        or len(name) > _MAX_LABEL_CHARACTERS
        or (prefix and not _SUBDOMAIN.fullmatch(prefix))
    ):
        return f'Invalid value: "{key}": {_BAD_LABEL_NAME}'
    if len(value) > _MAX_LABEL_CHARACTERS:
        return f'Invalid value: "{value}": must be no more than {_MAX_LABEL_CHARACTERS} bytes'
    if value and not _LABEL_NAME.fullmatch(value):
        return f'Invalid value: "{value}": {_BAD_LABEL_VALUE}'
    return None


def _check_create(kind: ApiKind, obj: Json, namespace: str) -> Json:
    check_type(kind, obj)
    metadata = obj.get("metadata")
    if not isinstance(metadata, dict):
        metadata = {}
    if metadata.get("resourceVersion"):
        raise StatusError(500, "", "resourceVersion should not be set on objects to be created")
    if kind.namespaced and metadata.get("namespace") not in (None, "", namespace):
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    return metadata


def check_type(kind: ApiKind, obj: Mapping[str, Any]) -> None:
    """Reject a body of another type than the path, or whose sections are no objects."""
    prefix = f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}'
    for field in ("metadata", "spec", "status"):
        if not isinstance(obj.get(field, {}), dict | None):
            raise bad_request(f"{prefix}: json: cannot unmarshal into Go struct field {kind.kind}.{field}")
    body_type = (obj.get("apiVersion") or kind.api_version, obj.get("kind") or kind.kind)
    if body_type != (kind.api_version, kind.kind):
        raise bad_request(
            f"{body_type[1]} in version {body_type[0]!r} cannot be handled as a {kind.kind}: "
            f"expected {kind.api_version}, Kind={kind.kind}"
        )


def prepare_update(kind: ApiKind, old: Json, new: Json, subresource: str) -> Json:
    """Return the new version, with fields restored that this path may not change.

    A write to ``status`` changes the status only (and labels if the kind allows that). A write to the object keeps the
    status. ``resourceVersion`` and ``uid`` in the request are preconditions.
    """
    before, after = old["metadata"], dict(new.get("metadata") or {})
    _check_preconditions(kind, before, after)
    if any(after.get(field) is not before.get(field) for field in ("labels", "annotations")):
        check_labels(kind, {**after, "name": before["name"]})
    if subresource == "status":
        new_status = {"status": new["status"]} if new.get("status") is not None else {}
        if kind.plural == "resourceclaims":
            _check_reservations(kind, before["name"], new_status.get("status") or {})
            new_status = _without_deallocated(old.get("status") or {}, new_status)
        metadata = _with_labels(before, after) if kind.status_writes_labels else before
        return {
            **{field: value for field, value in old.items() if field != "status"},
            "metadata": metadata,
            **new_status,
        }
    for field in ("uid", "name", "namespace", "creationTimestamp", "generation", "resourceVersion"):
        if field in before:
            after[field] = before[field]
    for field in ("deletionTimestamp", "deletionGracePeriodSeconds"):
        after.pop(field, None)
        if field in before:
            after[field] = before[field]
    after.pop("selfLink", None)
    after.pop("managedFields", None)
    after = {field: value for field, value in after.items() if value not in (None, {}, [])}
    updated = normal(kind, new, after)
    if kind.has_status:
        updated.pop("status", None)
        if "status" in old:
            updated["status"] = old["status"]
    _check_immutable(kind, old, updated)
    if kind.generation and _body(kind, old) != _body(kind, updated):
        updated["metadata"] = {**after, "generation": before.get("generation", 0) + 1}
    return updated


def _check_reservations(kind: ApiKind, name: str, status: Json) -> None:
    if status.get("reservedFor") and not status.get("allocation"):
        raise invalid(
            kind, name, [("status.reservedFor", "Forbidden: may not be specified when `allocated` is not set")]
        )


def _without_deallocated(old: Json, new: Json) -> Json:
    """Return a status (below ``status``) without what drivers reported of devices that are not allocated any more."""
    status = new.get("status") or {}
    deallocated = set(map(_device_of, _results(old))) - set(map(_device_of, _results(status)))
    if not status.get("devices") or not deallocated:
        return new
    kept = [device for device in status["devices"] if _device_of(device) not in deallocated]
    rest = {field: value for field, value in status.items() if field != "devices"}
    return {"status": {**rest, "devices": kept} if kept else rest}


def _results(status: Json) -> list[Json]:
    return list(((status.get("allocation") or {}).get("devices") or {}).get("results") or [])


def _device_of(entry: Json) -> tuple[object, ...]:
    return tuple(entry.get(field) for field in ("driver", "pool", "device", "shareID"))


def _check_preconditions(kind: ApiKind, before: Json, after: Json) -> None:
    name = before["name"]
    if after.get("uid") not in (None, "", before["uid"]):
        raise conflict(
            kind, name, f"Precondition failed: UID in precondition: {after['uid']}, UID in object meta: {before['uid']}"
        )
    if after.get("resourceVersion") not in (None, "", before["resourceVersion"]):
        raise conflict(kind, name)


def _with_labels(before: Json, after: Json) -> Json:
    merged = dict(before)
    for field in ("labels", "annotations", "finalizers"):
        merged.pop(field, None)
        if after.get(field):
            merged[field] = after[field]
    return merged


def _check_immutable(kind: ApiKind, old: Json, new: Json) -> None:
    problems = [
        (".".join(path), "Invalid value: field is immutable")
        for path in kind.immutable
        if dig(old, path) != dig(new, path) and dig(old, path) is not None
    ]
    if problems:
        raise invalid(kind, old["metadata"]["name"], problems)


def _body(kind: ApiKind, obj: Json) -> Json:
    """Return the fields whose changes ``generation`` counts; they include a status without its own subresource."""
    excluded = ("metadata", "status") if kind.has_status else ("metadata",)
    return {field: value for field, value in obj.items() if field not in excluded}
