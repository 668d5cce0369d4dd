"""Read a record of the daemon (``run --record DIR``) as a cluster and the workload that arrived there.

The cluster holds all objects that the daemon received before its first step, and all nodes that were added later. The
workload holds the pods that the daemon had to place. A pod arrives when the daemon first received it. A workload runs
from the bind of its last pod until its last pod ended. If it had not ended by the end of the record, it runs for ever.
Pods of other schedulers that were created later belong to neither.
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
from topo_scheduler.simulation.cases.directory import known_owners, workload_of
from topo_scheduler.simulation.cases.model import Arrival, CaseError, ClusterCase, WorkloadCase
from topo_scheduler.simulation.cases.object_factory import seconds_of
from topo_scheduler.simulation.cases.tables import wrong
from topo_scheduler.state.pods.pod_groups import PodGroup

_REPLAYED_CALLS: Final = frozenset(
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
class _PodHistory:
    """The recorded states of a pod; times in seconds since the epoch, None for what has not happened."""

    pod: Pod
    first: float
    initial: bool
    bound: float | None = None
    ended: float | None = None


@dataclass(slots=True)
class _RecordedInputs:
    """The recorded inputs of the daemon. ``began`` is the time of the first call, in seconds since the epoch."""

    scheduler: str = ""
    topology: TopologySpec | None = None
    nodes: dict[str, Node] = field(default_factory=dict)
    pods: dict[str, _PodHistory] = field(default_factory=dict)
    groups: dict[str, PodGroup] = field(default_factory=dict)
    namespaces: dict[str, PartialObject] = field(default_factory=dict)
    budgets: dict[str, DisruptionBudget] = field(default_factory=dict)
    storage: dict[str, dict[str, Any]] = field(default_factory=dict)
    owners: dict[str, Job | PartialObject] = field(default_factory=dict)
    began: float | None = None
    stepped: bool = False


def read_record(folder: Path) -> tuple[ClusterCase, WorkloadCase]:
    """Return the cluster and the workload of a record.

    Raises:
        CaseError: the record can't be read, or its first segments were deleted.
    """
    history = _RecordedInputs()
    for header, line in _lines(folder):
        if not history.scheduler:
            history.scheduler = header.config.scheduler.scheduler_name
            history.topology = header.config.topology.spec
        try:
            for raw in line.lineages:
                _take_owners(history.owners, decode_lineage(raw).owners)  # type: ignore[arg-type]
            if line.call in _REPLAYED_CALLS:
                _take(history, line.call, decode_arguments(line.call, line.args), header.epoch)
        except (msgspec.MsgspecError, ValueError, TypeError, LookupError) as error:
            problem = f"a call of {line.call} can't be read: {error}"
            raise wrong(folder, 0, problem, "record again with this version") from error
    if not history.nodes:
        raise wrong(folder, 0, "the record contains no node", "record for longer, until the scheduler has started")
    return _cluster(folder, history), _workload(folder, history)


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
        remedy = "raise record.maxBytes, restart the scheduler and record again"
        raise wrong(folder, 0, "the record begins in the middle of a term: what the cluster was is not there", remedy)


# ---------------------------------------------------------------- recorded calls


def _take(history: _RecordedInputs, call: str, arguments: list[Any], epoch: float) -> None:
    match call:
        case "nodes_applied":
            for node in arguments[0]:
                history.nodes.setdefault(node.metadata.name, node)
            _at(history, arguments[1] + epoch)
        case "pods_applied":
            moment = _at(history, arguments[1] + epoch)
            for pod in arguments[0]:
                _take_pod(history, pod, moment)
        case "pod_deleted":
            seen, moment = history.pods.get(arguments[0]), _at(history, arguments[1] + epoch)
            if seen is not None and seen.ended is None:
                seen.ended = moment
        case "groups_applied":
            for group in arguments[0]:
                history.groups.setdefault(f"{group.key.namespace}/{group.key.name}", group)
        case "namespaces_applied":
            history.namespaces |= {obj.metadata.name: obj for obj in arguments[0]}
        case "budgets_applied" if not history.stepped:
            history.budgets |= {f"{obj.metadata.namespace}/{obj.metadata.name}": obj for obj in arguments[0]}
        case "storage_applied" if not history.stepped:
            of_kind = history.storage.setdefault(arguments[0], {})
            of_kind |= {f"{obj.metadata.namespace}/{obj.metadata.name}": obj for obj in arguments[1]}
        case "step":
            history.stepped = True


def _at(history: _RecordedInputs, moment: float) -> float:
    if history.began is None:
        history.began = moment
    return moment


def _take_pod(history: _RecordedInputs, pod: Pod, moment: float) -> None:
    seen = history.pods.get(pod.metadata.uid)
    if seen is None:
        seen = history.pods[pod.metadata.uid] = _PodHistory(pod, moment, not history.stepped)
    if pod.spec.node_name and seen.bound is None:
        seen.bound = moment
    if pod.finished and seen.ended is None:
        seen.ended = moment


def _take_owners(owners: dict[str, Job | PartialObject], chain: tuple[RecordedOwner, ...]) -> None:
    """Add a chain of owners, the nearest first, to ``owners``; each owner names the next one as its controller."""
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


# ---------------------------------------------------------------- cluster and workload


def _cluster(folder: Path, history: _RecordedInputs) -> ClusterCase:
    running = [
        seen.pod for seen in history.pods.values() if seen.initial and seen.pod.spec.node_name and not seen.pod.finished
    ]
    return ClusterCase(
        folder.name,
        tuple(history.nodes.values()),
        tuple(running),
        known_owners(running, history.owners),
        tuple(history.groups.values()),
        tuple(history.budgets.values()),
        tuple(history.namespaces.values()),
        history.topology,
        {plural: tuple(objects.values()) for plural, objects in history.storage.items()},
    )


def _workload(folder: Path, history: _RecordedInputs) -> WorkloadCase:
    pending = [
        seen
        for seen in history.pods.values()
        if seen.pod.spec.scheduler_name == history.scheduler and not seen.pod.spec.node_name and not seen.pod.finished
    ]
    batches: dict[str, list[list[_PodHistory]]] = {}
    for seen in sorted(pending, key=lambda seen: seen.first):
        owners = known_owners([seen.pod], history.owners)
        name_batches = batches.setdefault(workload_of(seen.pod, owners), [])
        # Pods that arrive after members were bound replace members that ended: they form a new batch.
        if not name_batches or any(
            member.bound is not None and member.bound < seen.first for member in name_batches[-1]
        ):
            name_batches.append([])
        name_batches[-1].append(seen)
    arrivals = [
        _arrival(folder, history, name if not number else f"{name}-{number + 1}", batch)
        for name, name_batches in batches.items()
        for number, batch in enumerate(name_batches)
    ]
    return WorkloadCase(folder.name, tuple(sorted(arrivals, key=lambda arrival: arrival.at)))


def _arrival(folder: Path, history: _RecordedInputs, name: str, batch: list[_PodHistory]) -> Arrival:
    bound, ended = [seen.bound for seen in batch], [seen.ended for seen in batch]
    seconds = None
    if None not in bound and None not in ended:
        seconds = seconds_of(
            max(time for time in bound if time is not None), max(time for time in ended if time is not None)
        )
    pods = [seen.pod for seen in batch]
    at = max(0.0, min(seen.first for seen in batch) - (history.began or 0.0))
    return Arrival(name, round(at, 3), seconds, tuple(pods), known_owners(pods, history.owners), source=str(folder))
