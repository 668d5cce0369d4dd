"""Read a workload from YAML manifests: pods, and objects with a pod template.

Two annotations, read by the simulator only, set when a workload arrives and how long it runs. By default it arrives at
the start, and runs for `expected-duration`, else for `activeDeadlineSeconds`, else for ever.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any, Final
from zlib import crc32

from topo_scheduler.api.annotations import EXPECTED_DURATION
from topo_scheduler.api.durations import DurationError, parse_duration
from topo_scheduler.api.objects import Job, PartialObject, Pod
from topo_scheduler.api.process import SCHEDULER_NAME
from topo_scheduler.simulation.apiserver.objects import Json
from topo_scheduler.simulation.cases.claims import with_claims
from topo_scheduler.simulation.cases.directory import (
    STORAGE_KINDS,
    deduplicated,
    gang_of,
    groups_of,
    owner_of,
    owners_of,
    split_snapshots,
    workload_of,
)
from topo_scheduler.simulation.cases.documents import Document, convert
from topo_scheduler.simulation.cases.expanding import JOBSET, TABLES, Expander
from topo_scheduler.simulation.cases.model import Arrival, WorkloadCase
from topo_scheduler.state.pods.pod_groups import PodGroup

ARRIVES: Final = "simulate.topology.scheduler/arrives"
"""How long after the start a workload arrives: ``90s``, ``1h30m``, or ``0``."""
RUNS: Final = "simulate.topology.scheduler/runs"
"""How long a workload runs; takes precedence over the duration that the scheduler expects."""
_ZERO_DURATION: Final = re.compile(r"0|(0+(ns|us|µs|ms|s|m|h))+")
_FINAL_CONDITIONS: Final = ("Complete", "Failed")
_DEFAULT_SCHEDULERS: Final = ("", "default-scheduler")


def read_manifests(
    name: str, documents: Sequence[Document], priority_classes: Iterable[Mapping[str, Any]] = ()
) -> WorkloadCase:
    """Return the workload that objects describe.

    Bound and finished pods are not part of it. Neither is a controller whose pods are among the objects.

    Args:
        name: name of the workload.
        documents: its objects; objects without pods are ignored.
        priority_classes: PriorityClasses of the cluster, in addition to those among the objects.

    Raises:
        CaseError: an object can't be used.
    """
    documents = deduplicated(split_snapshots(documents))
    # The seed of generated names and uids comes from these objects, so that other inputs get other names.
    expander = Expander(
        crc32(
            "\n".join(f"{document.path.name} {document.description}" for document in documents).encode(errors="replace")
        )
    )
    for obj in (*(document.obj for document in documents if document.kind == "PriorityClass"), *priority_classes):
        expander.add_priority_class(obj)
    # Pods may own claims and volumes; what is owned by others here has pods of its own.
    owned = {uid for document in documents if document.kind not in STORAGE_KINDS for uid in _controllers(document)}
    groups = _groups(documents)
    arrivals_by_key: dict[str, Arrival] = {}
    for document in documents:
        arrival = _arrival(document, documents, expander, owned)
        if arrival is not None:
            _add(arrivals_by_key, arrival, groups)
    arrivals = with_claims(_with_unique_names(arrivals_by_key), documents)
    unnamed_groups = tuple(groups.values())
    if unnamed_groups and arrivals:  # no pod among the objects names these groups; the simulation still needs them
        arrivals[0] = replace(arrivals[0], groups=(*arrivals[0].groups, *unnamed_groups))
    return WorkloadCase(name, tuple(sorted(arrivals, key=lambda arrival: arrival.at)))


def _groups(documents: Iterable[Document]) -> dict[str, PodGroup]:
    """Return the PodGroups among objects by ``namespace/name``.

    Raises:
        CaseError: the API of a PodGroup is unknown, or a field is invalid, so that no policy could place its pods.
    """
    groups = {}
    for document in (document for document in documents if document.kind == "PodGroup"):
        (group,) = groups_of((document,))
        if group.problem:
            raise document.error(group.problem, "correct it, or leave the PodGroup and its pods out")
        groups[f"{group.key.namespace}/{group.key.name}"] = group
    return groups


def _controllers(document: Document) -> Iterable[str]:
    references = document.metadata.get("ownerReferences")
    for reference in references if isinstance(references, list) else ():
        if (
            isinstance(reference, dict)
            and reference.get("controller") is True
            and isinstance(reference.get("uid"), str)
        ):
            yield reference["uid"]


# ---------------------------------------------------------------- one workload


def _arrival(document: Document, documents: Sequence[Document], expander: Expander, owned: set[str]) -> Arrival | None:
    if str(document.metadata.get("uid") or "") in owned:
        return None
    if document.kind not in (*TABLES, JOBSET):
        if _has_template(document.spec):
            raise document.error(
                f"how many pods {document.kind} makes is not known here",
                f"write them as pods or as {', '.join(TABLES)} or {JOBSET}, or add the pods that it has in the cluster",
            )
        return None
    if _is_over(document):
        return None
    if document.kind == "Pod" and document.metadata.get("uid"):
        pods = [convert(document, Pod)]
        if pods[0].spec.node_name or pods[0].finished:
            return None
        owners = owners_of(pods, documents)
    else:
        if document.kind == "Pod" and document.spec.get("nodeName"):
            return None
        pod_objects, owner_objects = expander.expand(document)
        pods = [convert(_at(document, obj), Pod) for obj in pod_objects]
        owners = {uid: owner_of(_at(document, obj)) for uid, obj in owner_objects.items()}
    if not pods:
        return None
    for pod in pods:
        if pod.spec.scheduler_name in _DEFAULT_SCHEDULERS:
            pod.spec.scheduler_name = SCHEDULER_NAME
    name = f"{pods[0].metadata.namespace}/{document.metadata.get('name') or pods[0].metadata.name}"
    if document.kind == "Pod":
        name = workload_of(pods[0], owners)
    seconds = _seconds(document, pods, owners)
    return Arrival(name, _moment(document), seconds, tuple(pods), owners, source=document.location)


def _at(document: Document, obj: Json) -> Document:
    return Document(obj, document.path, document.line)


def _has_template(spec: Mapping[str, Any]) -> bool:
    templates = [spec.get("template"), _part(_part(spec.get("jobTemplate"), "spec"), "template")]
    return any(isinstance(_part(_part(template, "spec"), "containers"), list) for template in templates) or any(
        isinstance(value, Mapping)
        and any(isinstance(replica_spec, Mapping) and "template" in replica_spec for replica_spec in value.values())
        for name, value in spec.items()
        if str(name).endswith("ReplicaSpecs")
    )


def _part(value: object, name: str) -> object:
    return value.get(name) if isinstance(value, Mapping) else None


def _is_over(document: Document) -> bool:
    conditions = _part(document.obj.get("status"), "conditions")
    return document.kind in ("Job", JOBSET) and any(
        isinstance(condition, Mapping)
        and condition.get("type") in (*_FINAL_CONDITIONS, "Completed")
        and condition.get("status") == "True"
        for condition in (conditions if isinstance(conditions, list) else ())
    )


# ---------------------------------------------------------------- times


def _annotation(document: Document, name: str) -> str | None:
    value = _part(document.metadata.get("annotations"), name)
    return None if value is None else str(value)


def _moment(document: Document) -> float:
    text = _annotation(document, ARRIVES)
    if text is None or _ZERO_DURATION.fullmatch(text.strip()):
        return 0.0
    return _duration(document, ARRIVES, text)


def _duration(document: Document, name: str, text: str) -> float:
    try:
        return parse_duration(text)
    except DurationError as error:
        raise document.error(f"annotation {name}: {error}", "correct it, or leave it out") from error


def _seconds(document: Document, pods: Sequence[Pod], owners: Mapping[str, Job | PartialObject]) -> float | None:
    """Return how long a workload runs, in seconds: as annotated for the simulator, else as its longest pod expects."""
    if (text := _annotation(document, RUNS)) is not None:
        return _duration(document, RUNS, text)
    longest = max(_expected(document, pod, owners) for pod in pods)
    return None if longest == inf else longest


def _expected(document: Document, pod: Pod, owners: Mapping[str, Job | PartialObject]) -> float:
    chain: list[Pod | Job | PartialObject] = [pod]
    remaining = dict(owners)  # visits each owner once, even in a cycle of owner references
    while (reference := chain[-1].metadata.controller) is not None and reference.uid in remaining:
        chain.append(remaining.pop(reference.uid))
    texts = (obj.metadata.annotations.get(EXPECTED_DURATION) for obj in chain)
    text = next((text for text in texts if text is not None), None)
    expected = inf if text is None else _duration(document, EXPECTED_DURATION, text)
    job = next((obj for obj in chain if isinstance(obj, Job)), None)
    deadlines = [pod.spec.active_deadline_seconds, job.spec.active_deadline_seconds if job else None]
    # A Job with more completions than parallelism runs its pods in rounds, all within one deadline.
    rounds = -(-(job.spec.completions or 1) // max(1, job.spec.parallelism)) if job else 1
    return min([expected * max(1, rounds), *(float(deadline) for deadline in deadlines if deadline)])


# ---------------------------------------------------------------- gangs


def _key(arrival: Arrival) -> str:
    """Return a key that arrivals share if their pods are of one gang, or of one controller in a cluster."""
    pod = arrival.pods[0]
    gang, controller = gang_of(pod, arrival.owners), pod.metadata.controller
    if gang:
        return f"gang {gang}"
    return f"{arrival.source} {arrival.name}" if controller is None else f"controller {controller.uid}"


def _add(arrivals_by_key: dict[str, Arrival], arrival: Arrival, groups: dict[str, PodGroup]) -> None:
    group = groups.pop(gang_of(arrival.pods[0], arrival.owners), None)
    if group is not None:
        arrival = replace(arrival, groups=(group,))
    key = _key(arrival)
    existing = arrivals_by_key.get(key)
    if existing is None:
        arrivals_by_key[key] = arrival
        return
    endless = existing.seconds is None or arrival.seconds is None
    arrivals_by_key[key] = replace(
        existing,
        at=max(existing.at, arrival.at),
        seconds=None if endless else max(existing.seconds or 0.0, arrival.seconds or 0.0),
        pods=(*existing.pods, *arrival.pods),
        owners={**existing.owners, **arrival.owners},
        groups=(*existing.groups, *arrival.groups),
    )


def _with_unique_names(arrivals_by_key: Mapping[str, Arrival]) -> list[Arrival]:
    """Return the arrivals under unique names."""
    names = {
        key: key.removeprefix("gang ") if key.startswith("gang ") else arrival.name
        for key, arrival in arrivals_by_key.items()
    }
    occurrences = Counter(names.values())
    return [
        replace(arrival, name=name if occurrences[name] == 1 else f"{name} ({arrival.source})")
        for arrival, name in zip(arrivals_by_key.values(), names.values(), strict=True)
    ]
