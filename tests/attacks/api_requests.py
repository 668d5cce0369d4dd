"""What the API server counted: requests by verb and resource, and how long they took."""

import re
from typing import Final

from tests.e2e.api import Json

_COUNTED: Final = re.compile(r"apiserver_request_duration_seconds_(count|sum)\{([^}]*)\} (\S+)")
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')
SHOWN: Final = 12
"""Kinds of requests in a report."""
Totals = dict[str, tuple[float, float]]
"""Number and seconds of each kind of request."""


def totals(metrics: str) -> Totals:
    """Read the API server's own metrics. Watches are left out."""
    requests: Totals = {}
    for what, labels, value in _COUNTED.findall(metrics):
        label = dict(_LABEL.findall(labels))
        if label["verb"] in ("WATCH", "CONNECT") or not label.get("resource"):
            continue
        kind = f"{label['verb']} {label['resource']}/{label['subresource']}".rstrip("/")
        count, seconds = requests.get(kind, (0.0, 0.0))
        requests[kind] = (count + float(value), seconds) if what == "count" else (count, seconds + float(value))
    return requests


def between(before: Totals, after: Totals) -> Json:
    """Return how many requests there were between two readings and their mean seconds, the most expensive first."""
    grown = {
        kind: (count - before.get(kind, (0, 0))[0], took - before.get(kind, (0, 0))[1])
        for kind, (count, took) in after.items()
    }
    costly = sorted(((kind, *growth) for kind, growth in grown.items() if growth[0]), key=lambda row: -row[2])
    return {kind: {"count": round(count), "mean": round(took / count, 4)} for kind, count, took in costly[:SHOWN]}
