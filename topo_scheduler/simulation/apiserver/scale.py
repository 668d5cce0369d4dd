"""The ``scale`` subresource: how many replicas a workload has, seen and written without knowing what it is."""

from __future__ import annotations

from .objects import Json, changed, meta, spec, status
from .selectors import selector_text

API_VERSION = "autoscaling/v1"


def scale_of(obj: Json) -> Json:
    """A workload's scale."""
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    return {
        "kind": "Scale",
        "apiVersion": API_VERSION,
        "metadata": {part: meta(obj)[part] for part in kept if part in meta(obj)},
        "spec": {"replicas": spec(obj).get("replicas", 0)},
        "status": {"replicas": status(obj).get("replicas", 0), "selector": selector_text(spec(obj).get("selector"))},
    }


def scaled(obj: Json, scale: Json) -> Json:
    """The workload at another scale; a version in the scale is the writer's premise."""
    version = {"resourceVersion": meta(scale)["resourceVersion"]} if "resourceVersion" in meta(scale) else {}
    return changed(changed(obj, "spec", replicas=spec(scale).get("replicas", 0)), "metadata", **version)
