"""What the server says about itself: groups, versions, resources and as much OpenAPI as kubectl wants to see.

kubectl asks two things of OpenAPI before it applies a manifest: whether a kind's PATCH knows ``fieldValidation``
(then it leaves validation to the server), and the schema of the kind (without one it uses what it has built in).
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
"""Group and version, kind (both empty for the parent's own) and verbs."""
UNSTORED: Final[dict[tuple[str, str], str]] = {
    ("", "bindings"): "Binding",
    ("authorization.k8s.io", "selfsubjectaccessreviews"): "SelfSubjectAccessReview",
    ("authorization.k8s.io", "subjectaccessreviews"): "SubjectAccessReview",
}
"""Group and resource of what is posted and stored nowhere, with its kind."""
_AGGREGATED: Final = "apidiscovery.k8s.io"


def discover(path: str, kinds: Registry, accept: str) -> tuple[Json, str] | None:
    """The document at a path of the discovery, and its media type; None where there is none."""
    parts = path.strip("/").split("/")
    if parts in (["api"], ["apis"]) and _AGGREGATED in accept:
        version = "v2" if "v=v2;" in accept.replace(" ", "") + ";" else "v2beta1"
        media = f"application/json;g={_AGGREGATED};v={version};as=APIGroupDiscoveryList"
        return _aggregated(kinds, core=parts == ["api"], version=version), media
    document = _document(parts, kinds)
    return (document, "application/json") if document else None


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
    """Every group with its versions, the preferred one first."""
    groups: dict[str, list[str]] = {"": ["v1"], **{group: ["v1"] for group, _ in UNSTORED}}
    for kind in kinds:
        versions = groups.setdefault(kind.group, [])
        if kind.version not in versions:
            versions.insert(0 if kind.view is None else len(versions), kind.version)
    return groups


def _group(name: str, kinds: Registry) -> Json:
    versions = [{"groupVersion": f"{name}/{version}", "version": version} for version in _groups(kinds)[name]]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def _of(group: str, version: str, kinds: Registry) -> list[ApiKind]:
    return [kind for kind in kinds if (kind.group, kind.version) == (group, version)]


def _resources(group: str, version: str, kinds: Registry) -> Json | None:
    if version not in _groups(kinds).get(group, ()):
        return None
    resources = [resource for kind in _of(group, version, kinds) for resource in _plain(kind)]
    for (unstored_group, plural), name in UNSTORED.items():
        if unstored_group == group:
            resources.append(
                {"name": plural, "singularName": "", "namespaced": not group, "kind": name, "verbs": ["create"]}
            )
    group_version = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources}


def _plain(kind: ApiKind) -> Iterable[Json]:
    yield {
        "name": kind.plural, "singularName": kind.kind.lower(), "namespaced": kind.namespaced, "kind": kind.kind,
        "verbs": _VERBS, "shortNames": list(kind.short), "categories": list(kind.categories),
        "storageVersionHash": "",
    }  # fmt: skip
    for name in kind.subresources:
        api_version, other, verbs = _SUBRESOURCES[name]
        group, _, version = api_version.rpartition("/")
        typed = {"group": group, "version": version} if api_version else {}
        yield {
            "name": f"{kind.plural}/{name}", "singularName": "", "namespaced": kind.namespaced,
            "kind": other or kind.kind, "verbs": verbs, **typed,
        }  # fmt: skip


def _aggregated(kinds: Registry, *, core: bool, version: str) -> Json:
    items = [
        {
            "metadata": {"name": name, "creationTimestamp": None},
            "versions": [
                {"version": v, "freshness": "Current", "resources": [_rich(kind) for kind in _of(name, v, kinds)]}
                for v in versions
            ],
        }
        for name, versions in _groups(kinds).items()
        if (name == "") == core
    ]
    return {"kind": "APIGroupDiscoveryList", "apiVersion": f"{_AGGREGATED}/{version}", "metadata": {}, "items": items}


def _rich(kind: ApiKind) -> Json:
    subresources = []
    for name in kind.subresources:
        api_version, other, verbs = _SUBRESOURCES[name]
        group, _, version = (api_version or kind.api_version).rpartition("/")
        typed = {"group": group, "version": version, "kind": other or kind.kind}
        subresources.append({"subresource": name, "responseKind": typed, "verbs": verbs})
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
        "paths": {f"{root}/{_object_path(kind)}": {"patch": _patch(kind)} for kind in _of(group, version, kinds)},
        "components": {"schemas": {}},
    }


def _object_path(kind: ApiKind) -> str:
    return f"namespaces/{{namespace}}/{kind.plural}/{{name}}" if kind.namespaced else f"{kind.plural}/{{name}}"


def _patch(kind: ApiKind) -> Json:
    typed = {"group": kind.group, "version": kind.version, "kind": kind.kind}
    names = ("dryRun", "fieldManager", "fieldValidation", "force", "pretty")
    return {
        "x-kubernetes-action": "patch",
        "x-kubernetes-group-version-kind": typed,
        "parameters": [{"name": name, "in": "query", "schema": {"type": "string"}} for name in names],
        "responses": {"200": {"description": "OK"}},
    }
