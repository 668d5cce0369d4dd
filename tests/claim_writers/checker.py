"""Follows claims and pods by their watches alone, and says whether a device ever had two claims, or one stayed taken.

The events of one resource come in the order of the writes, so nothing that happened in between is missed.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from tests.e2e.api import Json

Device = tuple[str, str, str]
"""Driver, pool and name."""
FINALIZER: Final = "resource.kubernetes.io/delete-protection"


@dataclass(slots=True)
class Double:
    """A device that two claims had at once, and for how long; ``run``: a pod of each was bound meanwhile."""

    device: Device
    claims: tuple[str, str]
    began: float
    ended: float = 0.0
    run: bool = False


@dataclass(slots=True)
class Checker:
    """What the watches have shown so far. Claims and pods are known by their UIDs."""

    held: dict[str, frozenset[Device]] = field(default_factory=dict)
    users: dict[Device, dict[str, None]] = field(default_factory=dict)
    doubles: list[Double] = field(default_factory=list)
    pods: dict[str, Json] = field(default_factory=dict)
    """Pods that exist, by name."""
    claims: dict[str, Json] = field(default_factory=dict)
    """Claims that exist, by name."""
    claims_seen: set[str] = field(default_factory=set)
    allocations: int = 0
    bound: dict[str, tuple[str, str, str, int]] = field(default_factory=dict)
    """By the UID of each pod that was ever bound: its name, node and scheduler, and the revision of the bind."""
    history: dict[str, list[tuple[int, frozenset[str], frozenset[str]]]] = field(default_factory=dict)
    """By the UID of a claim: of each revision the pods that it was reserved for, and the pools of its devices."""
    claims_of_pods: dict[str, dict[str, None]] = field(default_factory=dict)
    """By the UID of a pod: the claims that were ever reserved for it."""
    reserved: dict[str, frozenset[str]] = field(default_factory=dict)
    """By the UID of a claim: the pods that it is reserved for."""
    _open: dict[tuple[Device, frozenset[str]], Double] = field(default_factory=dict)

    def claim(self, kind: str, claim: Json) -> None:
        """Take in an event of a claim: its type, and the claim."""
        name, uid = claim["metadata"]["name"], claim["metadata"]["uid"]
        self.claims_seen.add(uid)
        if kind == "DELETED":
            self.claims.pop(name, None)
            self._hold(uid, frozenset())
            self.reserved.pop(uid, None)
            return
        self.claims[name] = claim
        status = claim.get("status") or {}
        devices = frozenset(_devices(status))
        pods = frozenset(entry["uid"] for entry in status.get("reservedFor") or ())
        for pod in pods:
            self.claims_of_pods.setdefault(pod, {})[uid] = None
        pools = frozenset(pool for _, pool, _ in devices)
        self.history.setdefault(uid, []).append((int(claim["metadata"]["resourceVersion"]), pods, pools))
        self._hold(uid, devices)
        self.reserved[uid] = pods

    def pod(self, kind: str, pod: Json) -> None:
        """Take in an event of a pod."""
        name, uid, node = pod["metadata"]["name"], pod["metadata"]["uid"], pod["spec"].get("nodeName")
        if kind == "DELETED":
            self.pods.pop(name, None)
            return
        self.pods[name] = pod
        if node:
            revision = int(pod["metadata"]["resourceVersion"])
            self.bound.setdefault(uid, (name, node, pod["spec"]["schedulerName"], revision))

    def _hold(self, uid: str, devices: frozenset[Device]) -> None:
        before = self.held.get(uid, frozenset())
        self.allocations += bool(devices) and not before
        for device in before - devices:
            del self.users[device][uid]
            for key in [key for key in self._open if key[0] == device and uid in key[1]]:
                double = self._open.pop(key)
                double.ended = time.monotonic()
                double.run = self._run(key[1])
        for device in devices - before:
            users = self.users.setdefault(device, {})
            for other in users:
                double = Double(device, (other, uid), time.monotonic())
                self.doubles.append(double)
                self._open[device, frozenset((other, uid))] = double
            users[uid] = None
        if devices:
            self.held[uid] = devices
        else:
            self.held.pop(uid, None)

    def _run(self, claims: Iterable[str]) -> bool:
        """Return whether a pod of each claim is bound, as it was before the event that is taken in."""
        return all(any(pod in self.bound for pod in self.reserved.get(uid, ())) for uid in claims)

    def without_devices(self) -> list[str]:
        """Return the pods that had no devices of their node when they were bound, each with what it had.

        Revisions of all objects come from one count, so it is certain what was written before a bind.
        """
        wrong = []
        for uid, (name, node, _, revision) in self.bound.items():
            had = [self._pools_before(claim, uid, revision) for claim in self.claims_of_pods.get(uid, ())]
            if set(had) != {frozenset({node})}:
                wrong.append(f"{name} on {node}: {sorted(map(sorted, had))}")
        return wrong

    def _pools_before(self, claim: str, pod: str, revision: int) -> frozenset[str]:
        """Return the pools of the devices that a claim had for a pod at a revision."""
        before = [(pods, pools) for at, pods, pools in self.history[claim] if at < revision]
        return before[-1][1] if before and pod in before[-1][0] else frozenset()

    def leaked(self) -> list[str]:
        """Return the names of claims that are allocated, or have the finalizer. All pods must be gone."""
        return [
            name
            for name, claim in self.claims.items()
            if any(_devices(claim.get("status") or {})) or FINALIZER in claim["metadata"].get("finalizers", ())
        ]


def _devices(status: Json) -> Iterable[Device]:
    allocation = status.get("allocation") or {}
    for result in allocation.get("devices", {}).get("results", ()):
        yield result["driver"], result["pool"], result["device"]
