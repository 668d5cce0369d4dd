"""API discovery: groups, versions, resources, and the parts of OpenAPI that kubectl reads.

kubectl reads two things from OpenAPI before it applies a manifest. If PATCH of a kind supports ``fieldValidation``,
kubectl leaves validation to the server. If the kind has no schema, kubectl uses its built-in one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

from .encoding import encode
from .kinds import ApiKind, Registry
from .objects import Json

VERSION: Final[Json] = {
    "major": "1", "minor": "36", "gitVersion": "v1.36.0+embedded", "gitCommit": "", "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z", "goVersion": "none", "compiler": "none", "platform": "python",
}  # fmt: skip
_VERBS: Final = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_SUBRESOURCES: Final[dict[str, tuple[str, str, list[str]]]] = {
    "binding": ("v1", "Binding", ["create"]),
    "eviction": ("policy/v1", "Eviction", ["create"]),
    "token": ("authentication.k8s.io/v1", "TokenRequest", ["create"]),
    "scale": ("autoscaling/v1", "Scale", ["get", "patch", "update"]),
    "log": ("", "", ["get"]),
    "finalize": ("", "", ["update"]),
    "status": ("", "", ["get", "patch", "update"]),
}
"""Group and version, kind (both empty for those of the parent), and verbs."""
UNSTORED: Final[dict[tuple[str, str], str]] = {
    ("", "bindings"): "Binding",
    ("authorization.k8s.io", "selfsubjectaccessreviews"): "SelfSubjectAccessReview",
    ("authorization.k8s.io", "subjectaccessreviews"): "SubjectAccessReview",
}
"""Resources that are posted but not stored: group and plural, with the kind."""
_AGGREGATED: Final = "apidiscovery.k8s.io"
_PROTOBUF: Final = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"


def discover(path: str, kinds: Registry, accept: str) -> tuple[bytes, str] | None:
    """Return the discovery document at a path, and its media type; None if there is none."""
    parts = path.strip("/").split("/")
    if parts in (["api"], ["apis"]) and _AGGREGATED in accept:
        version = "v2" if "v=v2;" in accept.replace(" ", "") + ";" else "v2beta1"
        media_type = f"application/json;g={_AGGREGATED};v={version};as=APIGroupDiscoveryList"
        return encode(_aggregated(kinds, core=parts == ["api"], version=version)), media_type
    if parts == ["openapi", "v2"] and "proto-openapi" in accept:
        return b"", _PROTOBUF  # a document without definitions; kubectl asks for it about kinds that are not served
    document = _document(parts, kinds)
    return (encode(document), "application/json") if document else None


def _document(parts: list[str], kinds: Registry) -> Json | None:
    match parts:
        case ["version"]:
            return VERSION
        case ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        case ["apis"]:
            groups = [_group(name, kinds) for name in _groups(kinds) if name]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        case ["apis", group]:
            return {**_group(group, kinds), "kind": "APIGroup", "apiVersion": "v1"} if group in _groups(kinds) else None
        case ["api", version]:
            return _resources("", version, kinds)
        case ["apis", group, version]:
            return _resources(group, version, kinds)
        case ["openapi", "v3"]:
            return _openapi_index(kinds)
        case ["openapi", "v3", "api", version]:
            return _openapi("", version, kinds)
        case ["openapi", "v3", "apis", group, version]:
            return _openapi(group, version, kinds)
        case ["openapi", "v2"]:
            return {"swagger": "2.0", "info": {"title": "Kubernetes", "version": VERSION["gitVersion"]}, "paths": {}}
    return None


def _groups(kinds: Registry) -> dict[str, list[str]]:
    """Return each group with its versions, the preferred version first."""
    groups: dict[str, list[str]] = {"": ["v1"], **{group: ["v1"] for group, _ in UNSTORED}}
    for kind in kinds:
        versions = groups.setdefault(kind.group, [])
        if kind.version not in versions:
            versions.insert(0 if kind.view is None else len(versions), kind.version)
    return groups


def _group(name: str, kinds: Registry) -> Json:
    versions = [{"groupVersion": f"{name}/{version}", "version": version} for version in _groups(kinds)[name]]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def _kinds_of(group: str, version: str, kinds: Registry) -> list[ApiKind]:
    return [kind for kind in kinds if (kind.group, kind.version) == (group, version)]


def _resources(group: str, version: str, kinds: Registry) -> Json | None:
    if version not in _groups(kinds).get(group, ()):
        return None
    resources = [resource for kind in _kinds_of(group, version, kinds) for resource in _resource_entries(kind)]
    for (unstored_group, plural), name in UNSTORED.items():
        if unstored_group == group:
            resources.append(
                {"name": plural, "singularName": "", "namespaced": not group, "kind": name, "verbs": ["create"]}
            )
    group_version = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources}


def _resource_entries(kind: ApiKind) -> Iterable[Json]:
    yield {
        "name": kind.plural, "singularName": kind.kind.lower(), "namespaced": kind.namespaced, "kind": kind.kind,
        "verbs": _VERBS, "shortNames": list(kind.short), "categories": list(kind.categories),
        "storageVersionHash": "",
    }  # fmt: skip
    for name in kind.subresources:
        api_version, response_kind, verbs = _SUBRESOURCES[name]
        group, _, version = api_version.rpartition("/")
        group_version = {"group": group, "version": version} if api_version else {}
        yield {
            "name": f"{kind.plural}/{name}", "singularName": "", "namespaced": kind.namespaced,
            "kind": response_kind or kind.kind, "verbs": verbs, **group_version,
        }  # fmt: skip


def _aggregated(kinds: Registry, *, core: bool, version: str) -> Json:
    items = [
        {
            "metadata": {"name": name, "creationTimestamp": None},
            "versions": [
                {
                    "version": group_version,
                    "freshness": "Current",
                    "resources": [_aggregated_resource(kind) for kind in _kinds_of(name, group_version, kinds)],
                }
                for group_version in versions
            ],
        }
        for name, versions in _groups(kinds).items()
        if (name == "") == core
    ]
    return {"kind": "APIGroupDiscoveryList", "apiVersion": f"{_AGGREGATED}/{version}", "metadata": {}, "items": items}


def _aggregated_resource(kind: ApiKind) -> Json:
    subresources = []
    for name in kind.subresources:
        api_version, response_kind, verbs = _SUBRESOURCES[name]
        group, _, version = (api_version or kind.api_version).rpartition("/")
        type_meta = {"group": group, "version": version, "kind": response_kind or kind.kind}
        subresources.append({"subresource": name, "responseKind": type_meta, "verbs": verbs})
    return {
        "resource": kind.plural,
        "responseKind": {"group": kind.group, "version": kind.version, "kind": kind.kind},
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "singularResource": kind.kind.lower(),
        "verbs": _VERBS,
        "shortNames": list(kind.short),
        "categories": list(kind.categories),
        "subresources": subresources,
    }


def _openapi_index(kinds: Registry) -> Json:
    paths = {}
    for group, versions in _groups(kinds).items():
        for version in versions:
            path = f"apis/{group}/{version}" if group else f"api/{version}"
            digest = hashlib.sha256(encode(_openapi(group, version, kinds))).hexdigest()
            paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={digest}"}
    return {"paths": paths}


def _openapi(group: str, version: str, kinds: Registry) -> Json:
    root = f"/apis/{group}/{version}" if group else f"/api/{version}"
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": VERSION["gitVersion"]},
        "paths": {f"{root}/{_object_path(kind)}": {"patch": _patch(kind)} for kind in _kinds_of(group, version, kinds)},
        "components": {"schemas": {}},
    }


def _object_path(kind: ApiKind) -> str:
    return f"namespaces/{{namespace}}/{kind.plural}/{{name}}" if kind.namespaced else f"{kind.plural}/{{name}}"


def _patch(kind: ApiKind) -> Json:
    type_meta = {"group": kind.group, "version": kind.version, "kind": kind.kind}
    names = ("dryRun", "fieldManager", "fieldValidation", "force", "pretty")
    return {
        "x-kubernetes-action": "patch",
        "x-kubernetes-group-version-kind": type_meta,
        "parameters": [{"name": name, "in": "query", "schema": {"type": "string"}} for name in names],
        "responses": {"200": {"description": "OK"}},
    }
