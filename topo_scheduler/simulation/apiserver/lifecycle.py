"""The rules every object lives by, whatever its kind: how it is born and how it may change, as functions over dicts.

They follow ``k8s.io/apiserver/pkg/registry/rest``. None of them stores anything; ``Store`` does with what they return.
"""

from __future__ import annotations

import random
import re
import uuid
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

from .errors import APIError, bad_request, conflict, invalid
from .kinds import ApiKind
from .objects import Json, dig, timestamp

_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_BAD_NAME = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
    "and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_BORN_WITH = ("name", "generateName", "namespace", "labels", "annotations", "finalizers", "ownerReferences")
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
_MAX_LABEL = 63


def normal(kind: ApiKind, obj: Json, metadata: Json) -> Json:
    """The object with its type first, which the encoders rely on."""
    rest = {name: value for name, value in obj.items() if name not in ("apiVersion", "kind", "metadata")}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, **rest}


def suffix(rng: random.Random) -> str:
    """What the server appends to a ``generateName``."""
    return "".join(rng.choices(_SUFFIX, k=5))


def prepare_create(kind: ApiKind, obj: Json, namespace: str, moment: datetime, rng: random.Random) -> Json:
    """The object as it is born: named, stamped, without what only the server may say."""
    metadata = _check_create(kind, obj, namespace)
    prefix = metadata.get("generateName") or ""
    name = metadata.get("name") or (prefix and prefix + suffix(rng))
    if not name:
        raise invalid(kind, "", [("metadata.name", "Required value: name or generateName is required")])
    if not kind.group.startswith("rbac."):
        _check_name(kind, name, "name", name)
        _check_name(kind, name, "generateName", re.sub("-$", "a", prefix))
    check_labels(kind, {**metadata, "name": name})
    born = {part: metadata[part] for part in _BORN_WITH if metadata.get(part)}
    born["name"] = name
    if kind.namespaced:
        born["namespace"] = namespace
    born["uid"] = str(uuid.UUID(int=rng.getrandbits(128), version=4))
    born["creationTimestamp"] = timestamp(moment)
    if kind.generation:
        born["generation"] = 1
    born_obj = normal(kind, obj, born)
    if kind.has_status and not kind.status_at_birth:
        born_obj.pop("status", None)
    return born_obj


def _check_name(kind: ApiKind, name: str, part: str, value: str) -> None:
    if value and not _SUBDOMAIN.fullmatch(value):
        raise invalid(kind, name, [(f"metadata.{part}", f'Invalid value: "{value}": {_BAD_NAME}')])


def check_labels(kind: ApiKind, metadata: Json) -> None:
    """Refuse labels and annotations that are no strings, or not spelled as they must be."""
    for part in ("labels", "annotations"):
        given = metadata.get(part) or {}
        if not all(isinstance(value, str) for value in given.values()):
            what = f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}'
            raise bad_request(
                f"{what}: json: cannot unmarshal into Go struct field ObjectMeta.metadata.{part} of type string"
            )
        for key, value in given.items():
            problem = _label_problem(key, value if part == "labels" else "")
            if problem:
                raise invalid(kind, metadata["name"], [(f"metadata.{part}", problem)])


@lru_cache(maxsize=8192)
def _label_problem(key: str, value: str) -> str | None:
    prefix, _, name = key.rpartition("/")
    if not _LABEL_NAME.fullmatch(name) or len(name) > _MAX_LABEL or (prefix and not _SUBDOMAIN.fullmatch(prefix)):
        return f'Invalid value: "{key}": {_BAD_LABEL_NAME}'
    if len(value) > _MAX_LABEL:
        return f'Invalid value: "{value}": must be no more than {_MAX_LABEL} bytes'
    if value and not _LABEL_NAME.fullmatch(value):
        return f'Invalid value: "{value}": {_BAD_LABEL_VALUE}'
    return None


def _check_create(kind: ApiKind, obj: Json, namespace: str) -> Json:
    check_type(kind, obj)
    metadata = obj.get("metadata")
    if not isinstance(metadata, dict):
        metadata = {}
    if metadata.get("resourceVersion"):
        raise APIError(500, "", "resourceVersion should not be set on objects to be created")
    if kind.namespaced and metadata.get("namespace") not in (None, "", namespace):
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    return metadata


def check_type(kind: ApiKind, obj: Mapping[str, Any]) -> None:
    """Refuse a body of another type than the path says, or whose parts are no objects."""
    what = f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}'
    for part in ("metadata", "spec", "status"):
        if not isinstance(obj.get(part, {}), dict | None):
            raise bad_request(f"{what}: json: cannot unmarshal into Go struct field {kind.kind}.{part}")
    given = (obj.get("apiVersion") or kind.api_version, obj.get("kind") or kind.kind)
    if given != (kind.api_version, kind.kind):
        raise bad_request(
            f"{given[1]} in version {given[0]!r} cannot be handled as a {kind.kind}: "
            f"expected {kind.api_version}, Kind={kind.kind}"
        )


def prepare_update(kind: ApiKind, old: Json, new: Json, subresource: str) -> Json:
    """The new version with everything put back that this path may not change.

    Through ``status`` only the status changes (and labels where the kind allows it); through the object itself the
    status stays. ``resourceVersion`` and ``uid`` that the writer sent are its premises: they must still be true.
    """
    before, after = old["metadata"], dict(new.get("metadata") or {})
    _check_premises(kind, before, after)
    if any(after.get(part) is not before.get(part) for part in ("labels", "annotations")):
        check_labels(kind, {**after, "name": before["name"]})
    if subresource == "status":
        keep = {"status": new["status"]} if new.get("status") is not None else {}
        metadata = _with_labels(before, after) if kind.status_writes_labels else before
        return {**{part: value for part, value in old.items() if part != "status"}, "metadata": metadata, **keep}
    for part in ("uid", "name", "namespace", "creationTimestamp", "generation", "resourceVersion"):
        if part in before:
            after[part] = before[part]
    for part in ("deletionTimestamp", "deletionGracePeriodSeconds"):
        after.pop(part, None)
        if part in before:
            after[part] = before[part]
    after.pop("selfLink", None)
    after.pop("managedFields", None)
    after = {part: value for part, value in after.items() if value not in (None, {}, [])}
    updated = normal(kind, new, after)
    if kind.has_status:
        updated.pop("status", None)
        if "status" in old:
            updated["status"] = old["status"]
    _check_immutable(kind, old, updated)
    if kind.generation and _body(kind, old) != _body(kind, updated):
        updated["metadata"] = {**after, "generation": before.get("generation", 0) + 1}
    return updated


def _check_premises(kind: ApiKind, before: Json, after: Json) -> None:
    name = before["name"]
    if after.get("uid") not in (None, "", before["uid"]):
        raise conflict(
            kind, name, f"Precondition failed: UID in precondition: {after['uid']}, UID in object meta: {before['uid']}"
        )
    if after.get("resourceVersion") not in (None, "", before["resourceVersion"]):
        raise conflict(kind, name)


def _with_labels(before: Json, after: Json) -> Json:
    merged = dict(before)
    for part in ("labels", "annotations", "finalizers"):
        merged.pop(part, None)
        if after.get(part):
            merged[part] = after[part]
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
    """What ``generation`` counts the changes of; a custom resource without a status path has its status in it."""
    aside = ("metadata", "status") if kind.has_status else ("metadata",)
    return {part: value for part, value in obj.items() if part not in aside}
