"""The four patch types. Each builds a new object and leaves the old one unchanged.

A strategic merge treats some lists as maps; the table below has their keys, for fields that clients patch here.
Server-side apply merges in the same way, without field ownership: a field that a later apply leaves out stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import jsonpatch
import jsonpointer
import yaml

from .errors import StatusError, bad_request, unsupported_media_type
from .kinds import ApiKind
from .objects import Json

JSON_PATCH: Final = "application/json-patch+json"
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"
_ALL: Final = (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH)

_BY_NAME: Final = (
    "containers", "env", "ephemeralContainers", "imagePullSecrets", "initContainers", "resourceClaimStatuses",
    "resourceClaims", "schedulingGates", "secrets", "volumes",
)  # fmt: skip
_MERGE_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(_BY_NAME, ("name",)),
    **dict.fromkeys(("addresses", "conditions"), ("type",)),
    **dict.fromkeys(("hostAliases", "hostIPs", "podIPs"), ("ip",)),
    **dict.fromkeys(("ownerReferences", "reservedFor"), ("uid",)),
    "ports": ("containerPort", "port"),
    "topologySpreadConstraints": ("topologyKey",),
    "volumeDevices": ("devicePath",),
    "volumeMounts": ("mountPath",),
}
"""For each list that is a map: the fields that identify an item (ports have one of two). As in the API types, any other
list, such as taints or tolerations, is replaced as a whole."""
_MERGE_SETS: Final = frozenset({"finalizers", "podCIDRs"})
"""Lists of plain values that are merged as sets."""


def apply_patch(kind: ApiKind, media_type: str, patch: Any, obj: Json) -> Json:
    """Return the object after a patch, which ``decode_patch`` has decoded."""
    if media_type == JSON_PATCH:
        return _json_patch(kind, patch, obj)
    if not isinstance(patch, dict):
        raise bad_request("a merge patch must be an object")
    result: Json = merge(obj, patch) if media_type == MERGE_PATCH else strategic_merge(obj, patch)
    return result


def decode_patch(kind: ApiKind, media_type: str, body: bytes, decode: Any) -> Any:
    """Return the decoded body of a patch; rejects media types that the kind does not accept."""
    accepted = tuple(accepted_type for accepted_type in _ALL if not (kind.custom and accepted_type == STRATEGIC_PATCH))
    if media_type not in accepted:
        raise unsupported_media_type(media_type, accepted)
    try:
        return yaml.safe_load(body) if media_type == APPLY_PATCH else decode(body)
    except (ValueError, yaml.YAMLError) as error:
        raise bad_request(f"error decoding patch: {error}") from error


def _json_patch(kind: ApiKind, patch: Any, obj: Json) -> Json:
    try:
        result = jsonpatch.apply_patch(obj, patch)
    except (jsonpatch.JsonPatchTestFailed, jsonpatch.JsonPatchConflict, jsonpointer.JsonPointerException) as error:
        raise StatusError(422, "Invalid", "the server rejected our request due to an error in our request") from error
    except (jsonpatch.JsonPatchException, KeyError, TypeError) as error:
        raise bad_request(str(error)) from error
    if not isinstance(result, dict):
        raise bad_request(f"the patch does not leave a {kind.kind} behind")
    return result


def merge(target: Any, patch: Any) -> Any:
    """Merge as in RFC 7396: objects merge, null removes, all else replaces."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merge(result.get(name), value)
    return result


def strategic_merge(target: Any, patch: Any, field: str = "") -> Any:
    """Apply a strategic merge patch: like ``merge``, but lists that are maps are merged item by item."""
    if isinstance(patch, dict):
        return _merge_maps(target if isinstance(target, dict) else {}, patch)
    if isinstance(patch, list):
        return _merge_lists(target if isinstance(target, list) else [], patch, field)
    return patch


def _merge_maps(target: Json, patch: Json) -> Json:
    directive = patch.get("$patch")
    if directive == "replace":
        return {name: value for name, value in patch.items() if name != "$patch"}
    if directive == "delete":
        return {}
    result = dict(target)
    removed = {name.partition("/")[2]: value for name, value in patch.items() if name.startswith("$deleteFrom")}
    order = {name.partition("/")[2]: value for name, value in patch.items() if name.startswith("$setElementOrder")}
    for name, value in patch.items():
        if name.startswith("$"):
            if name == "$retainKeys":
                result = {key: result[key] for key in result if key in value}
        elif value is None:
            result.pop(name, None)
        else:
            result[name] = strategic_merge(result.get(name), value, name)
    for name, values in removed.items():
        result[name] = [item for item in result.get(name, []) if item not in values]
    for name, client_order in order.items():
        if name in result:
            result[name] = _ordered(result[name], client_order, name)
    return result


def _merge_lists(target: list[Any], patch: list[Any], field: str) -> list[Any]:
    keys = _MERGE_KEYS.get(field)
    if field in _MERGE_SETS:
        return [*target, *(value for value in patch if value not in target)]
    if keys is None or not all(isinstance(item, dict) for item in patch):
        return patch
    if any(item.get("$patch") == "replace" for item in patch):
        return [item for item in patch if item.get("$patch") != "replace"]
    result = {_name(item, keys): item for item in target}
    for item in patch:
        name = _name(item, keys)
        if item.get("$patch") == "delete":
            result.pop(name, None)
        else:
            result[name] = _merge_maps(result.get(name, {}), item)
    return list(result.values())


def _name(item: Json, keys: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(item.get(key) for key in keys)


def _ordered(items: list[Any], client_order: list[Any], field: str) -> list[Any]:
    """Return items in the order that a client has sent; items unknown to the client go to the end."""
    keys = _MERGE_KEYS.get(field)
    if keys is None:
        ranks: dict[Any, int] = {value: rank for rank, value in enumerate(client_order)}
        return sorted(items, key=lambda item: ranks.get(item, len(ranks)))
    ranks = {_name(item, keys): rank for rank, item in enumerate(client_order)}
    return sorted(items, key=lambda item: ranks.get(_name(item, keys), len(ranks)))
