"""The ``scale`` subresource: reads and writes the replicas of any kind of workload."""

from __future__ import annotations

from .objects import Json, changed, meta, spec, status
from .selectors import selector_text

API_VERSION = "autoscaling/v1"


def scale_of(obj: Json) -> Json:
    """Return the scale of a workload."""
    fields = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    return {
        "kind": "Scale",
        "apiVersion": API_VERSION,
        "metadata": {field: meta(obj)[field] for field in fields if field in meta(obj)},
        "spec": {"replicas": spec(obj).get("replicas", 0)},
        "status": {"replicas": status(obj).get("replicas", 0), "selector": selector_text(spec(obj).get("selector"))},
    }


def scaled(obj: Json, scale: Json) -> Json:
    """Return the workload with another scale; a resource version in the scale is a precondition."""
    version = {"resourceVersion": meta(scale)["resourceVersion"]} if "resourceVersion" in meta(scale) else {}
    return changed(changed(obj, "spec", replicas=spec(scale).get("replicas", 0)), "metadata", **version)
