"""Which replica wrote what, and when, by the API server's own audit log."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

import yaml

from tests.e2e.api import Json

CREDENTIAL: Final = "authentication.kubernetes.io/pod-name"
WRITES: Final = ("create", "update", "patch", "delete")
UNFENCED: Final = ("leases", "events")
"""What no lease protects: see `topo_scheduler.kube.connection.fence`."""
BINDING: Final = "create pods/binding"
NOMINATION: Final = "patch pods/status: nominatedNodeName"
"""A write of a pod's status that nominates a node, told from the other writes of a status."""


@dataclass(frozen=True, slots=True)
class Write:
    """A request that changed something. ``credential`` that it was made with, ``done`` seconds since the epoch."""

    credential: str
    done: float
    received: float
    what: str
    name: str


def flags(folder: Path) -> list[str]:
    """Return the flags of kube-apiserver that have it log requests of the scheduler that write."""
    policy = folder / "audit-policy.yaml"
    user = "system:serviceaccount:kube-system:topology-scheduler"
    rule = {"level": "Metadata", "users": [user], "verbs": list(WRITES)}
    statuses = {**rule, "level": "Request", "resources": [{"group": "", "resources": ["pods/status"]}]}
    document = {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [statuses, rule, {"level": "None"}],
    }
    policy.write_text(yaml.safe_dump(document))
    return [f"--audit-policy-file={policy}", f"--audit-log-path={folder / 'audit.log'}", "--audit-log-mode=blocking"]


def writes(folder: Path) -> list[Write]:
    """Return the writes that took effect, in their order."""
    entries = []
    # The API server may be in the middle of the last line.
    for line in (folder / "audit.log").read_text().split("\n")[:-1]:
        event = json.loads(line)
        about = event.get("objectRef") or {}
        if event.get("stage") != "ResponseComplete" or event["responseStatus"].get("code", 500) >= 300:
            continue
        name = f"{about.get('namespace', '')}/{about.get('name', '')}"
        entries.append(
            Write(
                event["user"]["extra"][CREDENTIAL][0],
                _seconds(event["stageTimestamp"]),
                _seconds(event["requestReceivedTimestamp"]),
                _what(event),
                name,
            )
        )
    return sorted(entries, key=lambda write: write.done)


def _what(event: Json) -> str:
    about = event["objectRef"]
    what = f"{event['verb']} {about['resource']}"
    if about.get("subresource"):
        what += f"/{about['subresource']}"
    status = (event.get("requestObject") or {}).get("status") or {}
    return NOMINATION if status.get("nominatedNodeName") else what


def bound_at(log: Sequence[Write], name: str) -> float | None:
    """Return when the bind of a pod of the default namespace took effect, None where none has."""
    return next((write.done for write in log if write.what == BINDING and write.name == f"default/{name}"), None)


def lease_holder(log: Sequence[Write]) -> str:
    """Return the credential that wrote the Lease last; empty if none did."""
    return next((write.credential for write in reversed(log) if write.what.endswith(" leases")), "")


def zombies(log: Sequence[Write]) -> list[Write]:
    """Return the writes that took effect after another one had taken the Lease; empty if all is well."""
    late_writes: list[Write] = []
    holder = ""
    for write in log:
        kind = write.what.split()[1]
        if kind == "leases":
            holder = write.credential
        elif kind not in UNFENCED and write.credential != holder:
            late_writes.append(write)
    return late_writes


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
