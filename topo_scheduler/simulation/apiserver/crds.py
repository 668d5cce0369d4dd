"""CustomResourceDefinitions: kinds that users add at run time.

A definition is established as soon as it is stored (a real server needs about a second). Versions differ in their
``apiVersion`` only, as the conversion strategy ``None`` demands.
"""

from __future__ import annotations

from typing import Final

from .kinds import ApiKind, Path, View
from .objects import Json

ID: Final = "customresourcedefinitions.apiextensions.k8s.io"


def established(crd: Json, moment: str) -> Json:
    """Return the definition with the status of an established one."""
    conditions = [
        {"type": condition_type, "status": "True", "lastTransitionTime": moment, "reason": reason, "message": message}
        for condition_type, reason, message in (
            ("NamesAccepted", "NoConflicts", "no conflicts found"),
            ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        )
    ]
    names = crd["spec"]["names"]
    accepted = {"singular": names["kind"].lower(), "listKind": names["kind"] + "List", **names}
    spec = {"conversion": {"strategy": "None"}, **crd["spec"], "names": accepted}
    stored = [version["name"] for version in spec["versions"] if version.get("storage")]
    status = {"conditions": conditions, "acceptedNames": accepted, "storedVersions": stored}
    return {**crd, "spec": spec, "status": status}


def kinds_of(crd: Json) -> list[ApiKind]:
    """Return a kind for each served version."""
    return [_kind(crd["spec"], version) for version in crd["spec"]["versions"] if version.get("served", True)]


def _kind(spec: Json, version: Json) -> ApiKind:
    names, group = spec["names"], spec["group"]
    stored = next((candidate["name"] for candidate in spec["versions"] if candidate.get("storage")), version["name"])
    view = None if version["name"] == stored else _version_view(group, version["name"], stored)
    return ApiKind(
        group,
        version["name"],
        names["kind"],
        names["plural"],
        namespaced=spec["scope"] == "Namespaced",
        short=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        subresources=tuple(name for name in (version.get("subresources") or {}) if name == "status"),
        fields=dict(_selectable(field["jsonPath"]) for field in version.get("selectableFields") or ()),
        generation=True,
        blind_put=False,
        custom=True,
        printed=tuple(version.get("additionalPrinterColumns") or ()),
        view=view,
    )


def _selectable(json_path: str) -> tuple[str, Path]:
    label = json_path.removeprefix(".")
    return label, tuple(label.split("."))


def _version_view(group: str, version: str, stored: str) -> View:
    def with_version(name: str, obj: Json) -> Json:
        return {**obj, "apiVersion": f"{group}/{name}"}

    return View(f"{group}/{version}", lambda obj: with_version(version, obj), lambda obj: with_version(stored, obj))
