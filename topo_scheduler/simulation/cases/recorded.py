"""A directory that the daemon recorded (``run --record DIR``) as a cluster and as the workload that came to it.

The cluster is what the daemon was told before its first step, and nodes that came later. The workload is what it was to
place: pods arrive when it first heard of them, and run from when the last of a workload was bound until the last had
ended; what had not ended when the record did runs for ever. Pods of other schedulers that came later are part of
neither.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from topo_scheduler.api.config import TopologySpec
from topo_scheduler.api.objects import DisruptionBudget, Job, Node, ObjectMeta, OwnerReference, PartialObject, Pod
from topo_scheduler.observability.segments import LINES, RecordError
from topo_scheduler.recording.calls import decode_arguments
from topo_scheduler.recording.lines import TERM, Header, RecordedOwner, RecordLine, decode_lineage
from topo_scheduler.recording.reading import read_segments
from topo_scheduler.simulation.cases.directory import above_of, together
from topo_scheduler.simulation.cases.making import seconds_of
from topo_scheduler.simulation.cases.model import Arrival, CaseError, ClusterCase, WorkloadCase
from topo_scheduler.simulation.cases.tables import wrong
from topo_scheduler.state.groups import PodGroup

_READ: Final = frozenset(
    (
        "nodes_applied",
        "pods_applied",
        "pod_deleted",
        "groups_applied",
        "namespaces_applied",
        "budgets_applied",
        "storage_applied",
        "step",
    )
)


def is_record(folder: Path) -> bool:
    """Whether a folder holds segments of a record."""
    return any(folder.glob(f"*{LINES}"))


@dataclass(slots=True)
class _Seen:
    """What was heard of a pod; times in seconds since the epoch, None where it has not happened."""

    pod: Pod
    first: float
    initial: bool
    bound: float | None = None
    ended: float | None = None


@dataclass(slots=True)
class _Told:
    """What the daemon was told. ``began`` and ``last`` are the first and the last moment, since the epoch."""

    scheduler: str = ""
    topology: TopologySpec | None = None
    nodes: dict[str, Node] = field(default_factory=dict)
    pods: dict[str, _Seen] = field(default_factory=dict)
    groups: dict[str, PodGroup] = field(default_factory=dict)
    namespaces: dict[str, PartialObject] = field(default_factory=dict)
    budgets: dict[str, DisruptionBudget] = field(default_factory=dict)
    storage: dict[str, dict[str, Any]] = field(default_factory=dict)
    owners: dict[str, Job | PartialObject] = field(default_factory=dict)
    began: float | None = None
    stepped: bool = False


def read_record(folder: Path) -> tuple[ClusterCase, WorkloadCase]:
    """Return what a record holds.

    Raises:
        CaseError: it can't be read, or its beginning is not there any more.
    """
    told = _Told()
    for header, line in _lines(folder):
        if not told.scheduler:
            told.scheduler = header.config.scheduler.scheduler_name
            told.topology = header.config.topology.spec
        try:
            for raw in line.lineages:
                _take_owners(told.owners, decode_lineage(raw).owners)  # type: ignore[arg-type]
            if line.call in _READ:
                _take(told, line.call, decode_arguments(line.call, line.args), header.epoch)
        except (msgspec.MsgspecError, ValueError, TypeError, LookupError) as error:
            problem = f"a call of {line.call} can't be read: {error}"
            raise wrong(folder, 0, problem, "record anew with this version") from error
    if not told.nodes:
        raise wrong(folder, 0, "the record tells of no node", "record for longer, until the scheduler has started")
    return _cluster(folder, told), _workload(folder, told)


def _lines(folder: Path) -> Iterator[tuple[Header, RecordLine]]:
    begun = False
    try:
        for segment in read_segments(folder):
            begun = begun or segment.header.start == TERM
            if begun:
                for line in segment.calls():
                    yield segment.header, line
    except RecordError as error:
        raise CaseError(str(error)) from error
    if not begun:
        remedy = "raise record.maxBytes, restart the scheduler and record anew"
        raise wrong(folder, 0, "the record begins in the middle of a term: what the cluster was is not there", remedy)


# ---------------------------------------------------------------- what was told


def _take(told: _Told, call: str, arguments: list[Any], epoch: float) -> None:
    match call:
        case "nodes_applied":
            for node in arguments[0]:
                told.nodes.setdefault(node.metadata.name, node)
            _at(told, arguments[1] + epoch)
        case "pods_applied":
            moment = _at(told, arguments[1] + epoch)
            for pod in arguments[0]:
                _take_pod(told, pod, moment)
        case "pod_deleted":
            seen, moment = told.pods.get(arguments[0]), _at(told, arguments[1] + epoch)
            if seen is not None and seen.ended is None:
                seen.ended = moment
        case "groups_applied":
            for group in arguments[0]:
                told.groups.setdefault(f"{group.key.namespace}/{group.key.name}", group)
        case "namespaces_applied":
            told.namespaces |= {one.metadata.name: one for one in arguments[0]}
        case "budgets_applied" if not told.stepped:
            told.budgets |= {f"{one.metadata.namespace}/{one.metadata.name}": one for one in arguments[0]}
        case "storage_applied" if not told.stepped:
            of_kind = told.storage.setdefault(arguments[0], {})
            of_kind |= {f"{one.metadata.namespace}/{one.metadata.name}": one for one in arguments[1]}
        case "step":
            told.stepped = True


def _at(told: _Told, moment: float) -> float:
    if told.began is None:
        told.began = moment
    return moment


def _take_pod(told: _Told, pod: Pod, moment: float) -> None:
    seen = told.pods.get(pod.metadata.uid)
    if seen is None:
        seen = told.pods[pod.metadata.uid] = _Seen(pod, moment, not told.stepped)
    if pod.spec.node_name and seen.bound is None:
        seen.bound = moment
    if pod.finished and seen.ended is None:
        seen.ended = moment


def _take_owners(owners: dict[str, Job | PartialObject], chain: tuple[RecordedOwner, ...]) -> None:
    """Take over a chain of owners, the nearest first; each names the next as its controller."""
    for number, owner in enumerate(chain):
        if owner.uid in owners:
            continue
        above = chain[number + 1] if number + 1 < len(chain) else None
        references = [] if above is None else [OwnerReference("", above.kind, above.name, above.uid, True)]
        metadata = ObjectMeta(
            name=owner.name,
            namespace=owner.namespace,
            uid=owner.uid,
            annotations=dict(owner.annotations),
            owner_references=references,
        )
        if owner.job is not None:
            owners[owner.uid] = Job(metadata=metadata, spec=owner.job.spec, status=owner.job.status)
        else:
            owners[owner.uid] = PartialObject(kind=owner.kind, metadata=metadata)


# ---------------------------------------------------------------- what it was


def _cluster(folder: Path, told: _Told) -> ClusterCase:
    running = [one.pod for one in told.pods.values() if one.initial and _holds(one.pod)]
    return ClusterCase(
        folder.name,
        tuple(told.nodes.values()),
        tuple(running),
        above_of(running, told.owners),
        tuple(told.groups.values()),
        tuple(told.budgets.values()),
        tuple(told.namespaces.values()),
        told.topology,
        {plural: tuple(objects.values()) for plural, objects in told.storage.items()},
    )


def _holds(pod: Pod) -> bool:
    return bool(pod.spec.node_name) and not pod.finished


def _workload(folder: Path, told: _Told) -> WorkloadCase:
    waiting = [
        one
        for one in told.pods.values()
        if one.pod.spec.scheduler_name == told.scheduler and not one.pod.spec.node_name and not one.pod.finished
    ]
    batches: dict[str, list[list[_Seen]]] = {}
    for one in sorted(waiting, key=lambda one: one.first):
        owners = above_of([one.pod], told.owners)
        controller = one.pod.metadata.controller
        name = together(one.pod, owners) or (
            f"{one.pod.metadata.namespace}/{controller.name if controller else one.pod.metadata.name}"
        )
        of_name = batches.setdefault(name, [])
        # What comes after others of it were bound takes the place of some that went.
        if not of_name or any(other.bound is not None and other.bound < one.first for other in of_name[-1]):
            of_name.append([])
        of_name[-1].append(one)
    arrivals = [
        _arrival(folder, told, name if not number else f"{name}-{number + 1}", batch)
        for name, of_name in batches.items()
        for number, batch in enumerate(of_name)
    ]
    return WorkloadCase(folder.name, tuple(sorted(arrivals, key=lambda one: one.at)))


def _arrival(folder: Path, told: _Told, name: str, batch: list[_Seen]) -> Arrival:
    bound, ended = [one.bound for one in batch], [one.ended for one in batch]
    seconds = None
    if None not in bound and None not in ended:
        seconds = seconds_of(max(one for one in bound if one is not None), max(one for one in ended if one is not None))
    pods = [one.pod for one in batch]
    at = max(0.0, min(one.first for one in batch) - (told.began or 0.0))
    return Arrival(name, round(at, 3), seconds, tuple(pods), above_of(pods, told.owners), source=str(folder))
