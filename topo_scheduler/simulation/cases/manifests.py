"""A workload of YAML manifests: pods, and what has a template of pods, each at its moment and for its time.

Annotations of the workload that only a simulation reads say when it arrives and how long it runs; without them it
arrives at the start, and runs for what the scheduler would expect: `expected-duration`, `activeDeadlineSeconds`, or for
ever.
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
from topo_scheduler.simulation.cases.directory import groups_of, once, owner_of, owners_of, together, unpacked
from topo_scheduler.simulation.cases.documents import Document, convert
from topo_scheduler.simulation.cases.expanding import JOBSET, TABLES, Expander
from topo_scheduler.simulation.cases.model import Arrival, WorkloadCase
from topo_scheduler.state.groups import PodGroup

ARRIVES: Final = "simulate.topology.scheduler/arrives"
"""How long after the start a workload arrives: ``90s``, ``1h30m``, or ``0``."""
RUNS: Final = "simulate.topology.scheduler/runs"
"""How long it runs, whatever it says to the scheduler."""
_NOTHING: Final = re.compile(r"0|(0+(ns|us|µs|ms|s|m|h))+")
_FINISHED: Final = ("Complete", "Failed")
_DEFAULT: Final = ("", "default-scheduler")


def read_manifests(
    name: str, documents: Sequence[Document], priority_classes: Iterable[Mapping[str, Any]] = ()
) -> WorkloadCase:
    """Return what arrives.

    A pod that is bound or has ended is not part of it, nor is a workload of which pods are among the objects.

    Args:
        name: of the workload.
        documents: its objects; those without pods are passed over.
        priority_classes: of the cluster, beside those among the objects.

    Raises:
        CaseError: an object can't be used.
    """
    documents = once(unpacked(documents))
    # Generated names and uids are those of these objects: others that are read beside them have others.
    expander = Expander(crc32("\n".join(f"{one.path.name} {one.named}" for one in documents).encode()))
    for obj in (*(one.obj for one in documents if one.kind == "PriorityClass"), *priority_classes):
        expander.add_priority_class(obj)
    owned = {uid for one in documents for uid in _controllers(one)}
    groups = _groups(documents)
    found: dict[str, Arrival] = {}
    for document in documents:
        one = _arrival(document, documents, expander, owned)
        if one is not None:
            _add(found, one, groups)
    arrivals = _named(found)
    left = tuple(groups.values())
    if left and arrivals:  # nobody here names them; they are there all the same
        arrivals[0] = replace(arrivals[0], groups=(*arrivals[0].groups, *left))
    return WorkloadCase(name, tuple(sorted(arrivals, key=lambda one: one.at)))


def _groups(documents: Iterable[Document]) -> dict[str, PodGroup]:
    """Return the PodGroups among objects by ``namespace/name``; no policy could place the pods of one with a problem.

    Raises:
        CaseError: it is of an API that is not understood, or a field of it is not.
    """
    found = {}
    for document in _of_kind(documents, "PodGroup"):
        (group,) = groups_of((document,))
        if group.problem:
            raise document.error(group.problem, "correct it, or leave the PodGroup and its pods out")
        found[f"{group.key.namespace}/{group.key.name}"] = group
    return found


def _of_kind(documents: Iterable[Document], kind: str) -> list[Document]:
    return [one for one in documents if one.kind == kind]


def _controllers(document: Document) -> Iterable[str]:
    references = document.metadata.get("ownerReferences")
    for one in references if isinstance(references, list) else ():
        if isinstance(one, dict) and one.get("controller") is True and isinstance(one.get("uid"), str):
            yield one["uid"]


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
        made, above = expander.expand(document)
        pods = [convert(_at(document, one), Pod) for one in made]
        owners = {uid: owner_of(_at(document, one)) for uid, one in above.items()}
    if not pods:
        return None
    for pod in pods:
        if pod.spec.scheduler_name in _DEFAULT:
            pod.spec.scheduler_name = SCHEDULER_NAME
    named = f"{pods[0].metadata.namespace}/{document.metadata.get('name') or pods[0].metadata.name}"
    seconds = _seconds(document, pods, owners)
    return Arrival(named, _moment(document), seconds, tuple(pods), owners, source=document.where)


def _at(document: Document, obj: Json) -> Document:
    return Document(obj, document.path, document.line)


def _has_template(spec: Mapping[str, Any]) -> bool:
    templates = [spec.get("template"), _part(_part(spec.get("jobTemplate"), "spec"), "template")]
    return any(isinstance(_part(_part(one, "spec"), "containers"), list) for one in templates) or any(
        isinstance(value, Mapping) and any(isinstance(one, Mapping) and "template" in one for one in value.values())
        for name, value in spec.items()
        if str(name).endswith("ReplicaSpecs")
    )


def _part(value: object, name: str) -> object:
    return value.get(name) if isinstance(value, Mapping) else None


def _is_over(document: Document) -> bool:
    conditions = _part(document.obj.get("status"), "conditions")
    return document.kind in ("Job", JOBSET) and any(
        isinstance(one, Mapping) and one.get("type") in (*_FINISHED, "Completed") and one.get("status") == "True"
        for one in (conditions if isinstance(conditions, list) else ())
    )


# ---------------------------------------------------------------- times


def _told(document: Document, name: str) -> str | None:
    value = _part(document.metadata.get("annotations"), name)
    return None if value is None else str(value)


def _moment(document: Document) -> float:
    text = _told(document, ARRIVES)
    if text is None or _NOTHING.fullmatch(text.strip()):
        return 0.0
    return _duration(document, ARRIVES, text)


def _duration(document: Document, name: str, text: str) -> float:
    try:
        return parse_duration(text)
    except DurationError as error:
        raise document.error(f"annotation {name}: {error}", "correct it, or leave it out") from error


def _seconds(document: Document, pods: Sequence[Pod], owners: Mapping[str, Job | PartialObject]) -> float | None:
    """Return how long a workload runs: what is said for the simulation, else the longest of what its pods expect."""
    if (text := _told(document, RUNS)) is not None:
        return _duration(document, RUNS, text)
    longest = max(_expected(document, pod, owners) for pod in pods)
    return None if longest == inf else longest


def _expected(document: Document, pod: Pod, owners: Mapping[str, Job | PartialObject]) -> float:
    chain: list[Pod | Job | PartialObject] = [pod]
    left = dict(owners)  # who is above itself is there once
    while (reference := chain[-1].metadata.controller) is not None and reference.uid in left:
        chain.append(left.pop(reference.uid))
    texts = (one.metadata.annotations.get(EXPECTED_DURATION) for one in chain)
    text = next((one for one in texts if one is not None), None)
    expected = inf if text is None else _duration(document, EXPECTED_DURATION, text)
    job = next((one for one in chain if isinstance(one, Job)), None)
    deadlines = [pod.spec.active_deadline_seconds, job.spec.active_deadline_seconds if job else None]
    # A Job with more completions than pods at a time has them one after the other, within its one deadline.
    rounds = -(-(job.spec.completions or 1) // max(1, job.spec.parallelism)) if job else 1
    return min([expected * max(1, rounds), *(float(one) for one in deadlines if one)])


# ---------------------------------------------------------------- what arrives together


def _add(found: dict[str, Arrival], one: Arrival, groups: dict[str, PodGroup]) -> None:
    gang = together(one.pods[0], one.owners)
    group = groups.pop(gang, None)
    if group is not None:
        one = replace(one, groups=(group,))
    before = found.get(f"gang {gang}") if gang else None
    if before is None:
        found[f"gang {gang}" if gang else f"{one.source} {one.name}"] = one
        return
    endless = before.seconds is None or one.seconds is None
    found[f"gang {gang}"] = replace(
        before,
        at=max(before.at, one.at),
        seconds=None if endless else max(before.seconds or 0.0, one.seconds or 0.0),
        pods=(*before.pods, *one.pods),
        owners={**before.owners, **one.owners},
        groups=(*before.groups, *one.groups),
    )


def _named(found: Mapping[str, Arrival]) -> list[Arrival]:
    """Return the arrivals under names of which there is one each."""
    names = {key: key.removeprefix("gang ") if key.startswith("gang ") else one.name for key, one in found.items()}
    times = Counter(names.values())
    return [
        replace(one, name=name if times[name] == 1 else f"{name} ({one.source})")
        for one, name in zip(found.values(), names.values(), strict=True)
    ]
