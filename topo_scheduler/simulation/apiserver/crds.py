"""CustomResourceDefinitions: the kinds that a cluster's users add while it runs.

A definition is established the moment it is stored (a real server needs about a second). Versions convert into each
other by their ``apiVersion`` alone, which is what the strategy ``None`` means.
"""

from __future__ import annotations

from typing import Final

from .kinds import ApiKind, Path, View
from .objects import Json

ID: Final = "customresourcedefinitions.apiextensions.k8s.io"


def established(crd: Json, moment: str) -> Json:
    """The definition with the status that says its resources are served."""
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": moment, "reason": reason, "message": message}
        for kind, reason, message in (
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
    """One kind for each version that is served."""
    return [_kind(crd["spec"], version) for version in crd["spec"]["versions"] if version.get("served", True)]


def _kind(spec: Json, version: Json) -> ApiKind:
    names, group = spec["names"], spec["group"]
    stored = next((v["name"] for v in spec["versions"] if v.get("storage")), version["name"])
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
    def named(name: str, obj: Json) -> Json:
        return {**obj, "apiVersion": f"{group}/{name}"}

    return View(f"{group}/{version}", lambda obj: named(version, obj), lambda obj: named(stored, obj))
