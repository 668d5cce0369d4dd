"""Who wrote what, and when, by the API server's own audit log."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

import yaml

CREDENTIAL: Final = "authentication.kubernetes.io/pod-name"
WRITES: Final = ("create", "update", "patch", "delete")
UNFENCED: Final = ("leases", "events")
"""What no lease protects: see `topo_scheduler.kube.fence`."""


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
    document = {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [rule, {"level": "None"}],
    }
    policy.write_text(yaml.safe_dump(document))
    return [f"--audit-policy-file={policy}", f"--audit-log-path={folder / 'audit.log'}", "--audit-log-mode=blocking"]


def writes(folder: Path) -> list[Write]:
    """Return the writes that took effect, in their order."""
    found = []
    for line in (folder / "audit.log").read_text().splitlines():
        event = json.loads(line)
        about = event.get("objectRef") or {}
        if event.get("stage") != "ResponseComplete" or event["responseStatus"].get("code", 500) >= 300:
            continue
        what = about["resource"] + (f"/{about['subresource']}" if about.get("subresource") else "")
        name = f"{about.get('namespace', '')}/{about.get('name', '')}"
        found.append(
            Write(
                event["user"]["extra"][CREDENTIAL][0],
                _seconds(event["stageTimestamp"]),
                _seconds(event["requestReceivedTimestamp"]),
                f"{event['verb']} {what}",
                name,
            )
        )
    return sorted(found, key=lambda write: write.done)


def terms(log: Sequence[Write]) -> list[tuple[float, str]]:
    """Return when each leader took the Lease, and its credential."""
    taken: list[tuple[float, str]] = []
    for write in log:
        if write.what.endswith(" leases") and (not taken or taken[-1][1] != write.credential):
            taken.append((write.done, write.credential))
    return taken


def zombies(log: Sequence[Write]) -> list[Write]:
    """Return the writes that took effect after another one had taken the Lease; empty if all is well."""
    found: list[Write] = []
    holder = ""
    for write in log:
        kind = write.what.split()[1]
        if kind == "leases":
            holder = write.credential
        elif kind not in UNFENCED and write.credential != holder:
            found.append(write)
    return found


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
