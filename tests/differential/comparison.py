"""Two answers about one snapshot, ours and kube-scheduler's, and where they differ."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from .choices import Json

CASES = Path(__file__).with_name("cases")


class FilterAnswer(Protocol):
    """Which pod may run where, and the reasons elsewhere: ``namespace/name`` → nodes, and → node → reason."""

    @property
    def feasible(self) -> Mapping[str, list[str]]: ...

    @property
    def reasons(self) -> Mapping[str, Mapping[str, str]]: ...


@dataclass(frozen=True, slots=True)
class Difference:
    """A pair the two do not agree on; ``None`` is what the one says that lets the pod run there."""

    pod: str
    node: str
    oracle: str | None
    ours: str | None

    @property
    def kind(self) -> str:
        """The same for differences that may well have the same cause."""
        return re.sub(r'"[^"]*"|[\w.-]*\d[\w./-]*', "…", f"{self.oracle or 'feasible'} | {self.ours or 'feasible'}")


def differences(snapshot: Mapping[str, Any], oracle: FilterAnswer, ours: FilterAnswer) -> list[Difference]:
    """The pairs on which the two do not agree."""
    disagreements: list[Difference] = []
    for name in pending_names(snapshot):
        theirs, mine = set(oracle.feasible.get(name, ())), set(ours.feasible.get(name, ()))
        disagreements += [
            Difference(
                name,
                node,
                None if node in theirs else oracle.reasons.get(name, {}).get(node, "?"),
                None if node in mine else ours.reasons.get(name, {}).get(node, "?"),
            )
            for node in sorted(theirs ^ mine)
        ]
    return disagreements


def pending_names(snapshot: Mapping[str, Any]) -> list[str]:
    metadata = [pod.get("metadata", {}) for pod in snapshot["pending"]]
    return [f"{meta.get('namespace', '')}/{meta.get('name', '')}" for meta in metadata]


def pairs(snapshot: Mapping[str, Any]) -> int:
    return len(snapshot["nodes"]) * len(snapshot["pending"])


def read_case(path: Path) -> Json:
    """A case: its description, its snapshot, and kube-scheduler's answer to that."""
    case: Json = json.loads(path.read_text())
    return case


def write_case(path: Path, description: str, snapshot: Mapping[str, Any], oracle: FilterAnswer) -> None:
    """Write a case, an object a line."""
    lists = [
        f"  {json.dumps(name)}: [" + ",".join(f"\n   {json.dumps(each)}" for each in objects) + "]"
        for name, objects in snapshot.items()
    ]
    answers = [
        f" {json.dumps(name)}: {{" + ",".join(f"\n  {json.dumps(pod)}: {json.dumps(of[pod])}" for pod in of) + "}"
        for name, of in (("feasible", oracle.feasible), ("reasons", oracle.reasons))
    ]
    parts = [f' "description": {json.dumps(description)}', ' "snapshot": {\n' + ",\n".join(lists) + "}", *answers]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n")
