"""From a pod and its owners to its scheduling request: its class, its gang, and all problems with it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final, Protocol

from topo_scheduler.api.annotations import (
    GPU_COUNT,
    GPU_FRACTION,
    WRITTEN,
    PlacementRequest,
    Source,
    read_annotations,
    unknown_annotations,
)
from topo_scheduler.api.objects import Job, Pod
from topo_scheduler.api.quantity import QuantityError
from topo_scheduler.api.reasons import Reason
from topo_scheduler.api.sharing import matches
from topo_scheduler.api.text import clipped, counted
from topo_scheduler.api.timestamps import seconds_of
from topo_scheduler.scheduling.extensions.registry import Extensions
from topo_scheduler.scheduling.intake.creation_limits import creation_limit
from topo_scheduler.scheduling.intake.device_claims import device_claims
from topo_scheduler.scheduling.intake.gpu_annotations import (
    bandwidth_alone,
    devices_of,
    holds_devices,
    mig_problem,
    needs_without_gpus,
    not_permitted,
    reserved_only,
)
from topo_scheduler.scheduling.intake.groups import controller_id, find_group
from topo_scheduler.scheduling.intake.ranks import place_in_series, series_of_controller
from topo_scheduler.scheduling.placing.model.segments import segment_of
from topo_scheduler.state.devices.claim_writes import ClaimWrite
from topo_scheduler.state.devices.inventory import DeviceInventory
from topo_scheduler.state.devices.pod_claims import devices_asked
from topo_scheduler.state.nodes.resources import GPU, GPU_SHARE, ResourceTable, as_amounts
from topo_scheduler.state.pods.caps import excess
from topo_scheduler.state.pods.classes import PodClass, pod_class, unsupported
from topo_scheduler.state.pods.compute_domains import in_one_domain
from topo_scheduler.state.pods.constraints import constraints_of, preferences_of
from topo_scheduler.state.pods.node_pods import has_pod_maker, is_daemon_pod
from topo_scheduler.state.pods.numa_request import numa_request
from topo_scheduler.state.pods.pod_groups import Groups
from topo_scheduler.state.pods.requests import pod_amounts
from topo_scheduler.state.pods.selectors import SelectorError
from topo_scheduler.state.pods.victim_info import deadline_of, expected_run, limit, slow_stop
from topo_scheduler.state.pods.workloads import Member, Workload
from topo_scheduler.state.statistics.run_times import run_of

_BUILT_IN: Final = Extensions()
CLAIMS_MADE_SECONDS: Final = 5.0
"""Within which Kubernetes usually makes the claims of a new pod; the scheduler reports only later that it waits."""
MAX_PROBLEM_CHARACTERS: Final = 2_000
"""Maximum characters of all problems of a pod together; events show a thousand."""
EVERY: Final = ("*",)
"""Pattern that matches every namespace."""
_PER_WHOLE: Final = ("Job", "CronJob")
"""Kinds whose gpu-count is the total of all pods of the Job."""


class Owner(Protocol):
    """One object of the chain of controllers above a pod. ``job`` is the whole object if it is a Job."""

    @property
    def kind(self) -> str:
        """Kind, e.g. ``Job``."""
        ...

    @property
    def namespace(self) -> str:
        """Namespace; empty for an object without one."""
        ...

    @property
    def name(self) -> str:
        """Name."""
        ...

    @property
    def uid(self) -> str:
        """Uid."""
        ...

    @property
    def annotations(self) -> Mapping[str, str]:
        """Annotations of its own metadata."""
        ...

    @property
    def job(self) -> Job | None:
        """The whole object if it is a Job."""
        ...


def waits_since(pod: Pod, epoch: float, now: float) -> float:
    """Return since when a newly seen pod has been pending: now, or the time that an earlier process wrote on it.

    A time before the pod's creation counts as its creation, because others may write that condition as well.

    Args:
        pod: the pod.
        epoch: the offset that turns the times passed here into seconds since the epoch.
        now: seconds.
    """
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and (condition.status, condition.reason) == ("False", "Unschedulable"):
            changed_at = seconds_of(condition.last_transition_time)
            return (
                now
                if changed_at is None
                else min(now, max(changed_at, seconds(pod.metadata.creation_timestamp)) - epoch)
            )
    return now


@dataclass(frozen=True, slots=True)
class Lineage:
    """The chain of controllers above a pod, nearest first.

    Attributes:
        owners: the controllers.
        complaint: why the chain could not be read to its end; empty if it could.
        gone: which of them was deleted, is being deleted, suspended, or done: the pod is about to be deleted too.
        doubt: why it is unknown what the pod is part of: the scheduler then evicts nothing for it.
    """

    owners: Sequence[Owner] = ()
    complaint: str = ""
    gone: str = ""
    doubt: str = ""


@dataclass(slots=True)
class Understood:
    """A pending pod that was read. ``warnings`` are worth an event but do not keep it from being placed."""

    member: Member
    workload: Workload
    warnings: list[tuple[Reason, str]] = field(default_factory=list)
    stale: list[ClaimWrite] = field(default_factory=list)
    """Allocations of its claims to take back first."""


def seconds(timestamp: str | None) -> float:
    """Return a Kubernetes timestamp in seconds since the epoch; 0 if there is none."""
    return seconds_of(timestamp) or 0.0


def understand(
    pod: Pod,
    lineage: Lineage,
    resources: ResourceTable,
    enqueued: float,
    groups: Groups | None = None,
    extensions: Extensions | None = None,
    permitted: Sequence[str] = EVERY,
    bound: Callable[[str], bool] = lambda id_: False,
    inventory: DeviceInventory | None = None,
) -> Understood:
    """Read a pending pod.

    Problems with the pod raise no exception: they become the ``problem`` of its member, and it is refused with that
    reason.

    Args:
        pod: the pod.
        lineage: its owners.
        resources: the columns of the resources that pods request.
        enqueued: when the pod was first seen, in seconds.
        groups: the PodGroups that exist; none if not given.
        extensions: the labels and annotations that plugins read, and the available strategies.
        permitted: names or patterns of namespaces that may have GPUs that no limit names, and bandwidth without GPUs.
        bound: returns whether pods of a gang are bound, by its id.
        inventory: the claims that exist; none if not given.
    """
    chain = _sources(pod, lineage)
    extensions = extensions or _BUILT_IN
    groups = groups or Groups()
    request = read_annotations(chain, extensions.strategies, groups.levels or None)
    warnings = [(Reason.ANNOTATION, warning) for warning in unknown_annotations(chain, pod.metadata.labels)]
    if lineage.complaint:
        warnings.append((Reason.OWNER, lineage.complaint))
    problems = [str(problem) for problem in request.problems]
    problems += [
        f"annotation {name} is written by the scheduler itself; remove it"
        for name in sorted(WRITTEN & pod.metadata.annotations.keys())
    ]
    if beyond := pod.excess or excess(pod):
        problems.append(beyond)
        cls, charged = PodClass(()), 0
    else:
        cls, charged = _class(pod, lineage, request, resources, problems, warnings)
    if (charged or request.gpu_share) and not matches(pod.metadata.namespace, permitted):
        problems.append(not_permitted(pod.metadata.namespace, charged, devices_of(cls.amounts, resources)))
    if (needs := request.gpu_needs) is not None:
        cls = replace(cls, gpu_needs=needs)
    if inputs := _plugin_inputs(pod, chain, extensions):
        cls = replace(cls, plugin_inputs=inputs)
    devices = device_claims(pod, inventory or DeviceInventory())
    if devices.problem:
        problems.append(devices.problem)
    if devices.claims:
        cls = replace(cls, claims=devices.claims)
    if needs is not None and (unmet := mig_problem(needs.mig_profile, cls, resources)):
        problems.append(unmet)
    if unused := needs_without_gpus(request, cls):
        warnings.append((Reason.ANNOTATION, unused))
    # Nothing would limit on how many nodes pods without devices reserve bandwidth.
    alone = cls.bandwidth and not (devices_asked(cls.claims) or holds_devices(cls.amounts, resources))
    if alone and not devices.problem and (ineffective := bandwidth_alone(pod.metadata.namespace, permitted)):
        cls = replace(cls, bandwidth=0)
        warnings.append((Reason.ANNOTATION, ineffective))
    if len(devices.compute_domains) > 1:
        named = " and ".join(sorted(devices.compute_domains)[:2])
        problems.append(f"its claims of the templates {named} are channels of two ComputeDomains; remove one of them")
    for template in devices.compute_domains if len(devices.compute_domains) == 1 else ():
        constraints, conflict = in_one_domain(cls.constraints, pod, template)
        problems += filter(None, [conflict])
        cls = replace(cls, constraints=constraints)
    if constraint := unsupported(pod):
        problems.append(f"it uses {constraint}, which this scheduler does not support yet")
    job_limit, job_start = _deadline_of_job(pod, lineage)
    workload, doubt = _workload(pod, lineage, request, groups, enqueued, problems, warnings, bound)
    series, index = place_in_series(pod)
    if index is None and workload.gang:
        series = series_of_controller(pod)
    member = Member(
        uid=pod.metadata.uid,
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        cls=cls,
        priority=pod.spec.priority,
        created=seconds(pod.metadata.creation_timestamp),
        enqueued=enqueued,
        index=index,
        series=series,
        controlled=pod.metadata.controller is not None,
        recreated=_is_recreated(pod, lineage),
        daemon=is_daemon_pod(pod.metadata),
        # The search for victims does not know which GPUs have room for a share once a victim is gone.
        preempts=pod.spec.preemption_policy != "Never" and not cls.share,
        doubt=lineage.doubt or doubt,
        charged_gpus=charged,
        claims=devices.keys,
        claim_room=devices.room if workload.gang else {},  # a single pod has a problem if there is none
        mappings=devices.mappings,
        expected_seconds=min(own_seconds := expected_run(pod), job_limit, request.expected_duration or inf),
        own_seconds=own_seconds,
        deadline=deadline_of(pod),
        ends_by=job_start + job_limit,
        run=run_of(pod),
        labels=pod.metadata.labels if workload.group is not None and workload.group.subgroups else None,
        problem=clipped("; ".join(problems), MAX_PROBLEM_CHARACTERS),
        patient_until=enqueued + CLAIMS_MADE_SECONDS if devices.unmade and len(problems) == 1 else -inf,
    )
    if charged and not problems:  # nothing is reserved for a refused pod
        warnings.append((Reason.UNENFORCED, reserved_only(charged, devices_of(cls.amounts, resources))))
    return Understood(member, workload, warnings, devices.stale)


def _is_recreated(pod: Pod, lineage: Lineage) -> bool:
    """Return whether the scheduler has read the controller of a pod, and its kind makes pods.

    Objects without a namespace do not count: any pod may name a Node, for example.
    """
    controller, nearest = pod.metadata.controller, lineage.owners[0] if lineage.owners else None
    if controller is None or nearest is None or nearest.uid != controller.uid or not nearest.namespace:
        return False
    return has_pod_maker(pod.metadata)


def _deadline_of_job(pod: Pod, lineage: Lineage) -> tuple[float, float]:
    """Return the seconds that a pod may run by the deadline of its Job, and the Job's start since the epoch.

    Both are infinite if unknown. Users may raise the deadline later, or name a controller that does not enforce it.
    """
    job = lineage.owners[0].job if lineage.owners else None
    if job is None:
        return inf, inf
    began = seconds_of(job.status.start_time)
    return limit(job.spec.active_deadline_seconds) + slow_stop(pod), inf if began is None else began


def _plugin_inputs(pod: Pod, chain: Sequence[Source], extensions: Extensions) -> tuple[tuple[str, str], ...]:
    """Return the labels and annotations of a pod that plugins read: they are part of its class."""
    inputs = [
        (f"annotation:{name}", source.annotations[name])
        for name in extensions.annotations
        if (source := next((link for link in chain if name in link.annotations), None)) is not None
    ]
    labels = pod.metadata.labels
    inputs += [(f"label:{name}", labels[name]) for name in extensions.labels if name in labels]
    return tuple(inputs)


def _sources(pod: Pod, lineage: Lineage) -> Sequence[Source]:
    name = f"{pod.metadata.namespace}/{pod.metadata.name}"
    return [
        Source("Pod", name, pod.metadata.annotations),
        *(Source(owner.kind, f"{owner.namespace}/{owner.name}", owner.annotations) for owner in lineage.owners),
    ]


# ---------------------------------------------------------------- resources


def _class(
    pod: Pod,
    lineage: Lineage,
    request: PlacementRequest,
    resources: ResourceTable,
    problems: list[str],
    warnings: list[tuple[Reason, str]],
) -> tuple[PodClass, int]:
    """Return the class, and the number of GPUs charged by annotation alone."""
    try:
        amounts = pod_amounts(resources, pod)
    except QuantityError as error:
        problems.append(str(error))
        amounts = {}
    wanted = _gpus_asked(lineage, request, problems)
    charged = 0
    if request.gpu_share:
        problems += _share_problems(amounts, wanted)
        amounts[GPU_SHARE] = request.gpu_share
    elif wanted is not None:
        limits = amounts.get(GPU, 0)
        if limits and limits != wanted:
            warnings.append(
                (
                    Reason.MISMATCH,
                    f"{GPU_COUNT} asks for {wanted} GPUs per pod, its limits for {limits}; the limits hold",
                )
            )
        elif wanted and not limits:
            charged = amounts[GPU] = wanted
    constraints, preferences = None, None
    try:
        constraints, preferences = constraints_of(pod), preferences_of(pod)
    except SelectorError as error:
        problems.append(str(error))
    models = tuple(sorted(request.gpu_models))
    cls = pod_class(pod, as_amounts(amounts), models, request.bandwidth, constraints, preferences, numa_request(pod))
    return cls, charged


def _share_problems(amounts: Mapping[int, int], wanted: int | None) -> list[str]:
    """Return the problems of a pod that requests a share of a GPU and also ``amounts`` and ``wanted`` whole GPUs."""
    if amounts.get(GPU, 0):
        return [
            f"annotation {GPU_FRACTION} asks for a share of a GPU, and its limits for"
            f" {counted(amounts[GPU], 'whole GPU')}: the kubelet would give it those; remove the limits, or"
            f" {GPU_FRACTION}"
        ]
    if wanted not in (None, 1):
        return [
            f"annotation {GPU_FRACTION} asks for a share of one GPU, and {GPU_COUNT} for {wanted} GPUs per pod; remove"
            " one of them"
        ]
    return []


def _gpus_asked(lineage: Lineage, request: PlacementRequest, problems: list[str]) -> int | None:
    """Return the GPUs that one pod requests by annotation, None if there is no annotation or it makes no sense."""
    if request.gpu_count is None:
        return None
    if request.gpu_count_kind not in _PER_WHOLE:
        return request.gpu_count
    job = next((owner.job for owner in lineage.owners if owner.job is not None), None)
    parallelism = job.spec.parallelism if job else 1
    if parallelism < 1:
        return None
    each, remainder = divmod(request.gpu_count, parallelism)
    if remainder:
        kind = request.gpu_count_kind
        name = next((f"{owner.namespace}/{owner.name}" for owner in lineage.owners if owner.kind == kind), "")
        problems.append(
            f"annotation {GPU_COUNT} on {kind} {name}: {request.gpu_count} GPUs do not divide by its"
            f" parallelism of {parallelism}; write a multiple of {parallelism}"
        )
        return None
    return each


# ---------------------------------------------------------------- gangs


def _workload(
    pod: Pod,
    lineage: Lineage,
    request: PlacementRequest,
    groups: Groups,
    enqueued: float,
    problems: list[str],
    warnings: list[tuple[Reason, str]],
    bound: Callable[[str], bool],
) -> tuple[Workload, str]:
    """Return the workload of the pod, by the first rule that applies, and the reason to doubt it."""
    controller = pod.metadata.controller
    workload = Workload(
        id=pod.metadata.uid,
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        controller=f"{controller.kind} {controller.name}" if controller else f"Pod {pod.metadata.name}",
        size=1,
        request=request,
        gang=False,
    )
    job = lineage.owners[0].job if lineage.owners else None
    grouping = find_group(pod, job, request, groups, enqueued, bound)
    warnings += grouping.warnings
    claim = grouping.claim
    if claim is None:
        return workload, grouping.doubt
    if claim.problem:
        problems.append(claim.problem)
    workload.awaits = claim.awaits
    if claim.group is not None:
        workload.group = claim.group
        workload.disruption_mode = claim.group.disruption_mode
    # A gang of one is a single pod, unless pods that come later must be near it.
    if claim.id and (claim.size is None or (claim.gang and (claim.size > 1 or claim.group is not None))):
        workload.id, workload.name, workload.gang = claim.id, claim.name, True
        workload.size = claim.size or 1
        workload.level, workload.tiers = claim.level, claim.group.tiers if claim.group else 0
        workload.subgroups, wrong = segment_of(pod, request, claim.size)
        of_one = controller is not None and claim.id == controller_id(pod, controller)
        kinds = [owner.kind for owner in lineage.owners]
        workload.creation_limit = creation_limit(
            workload.size, kinds, job, all_known=not lineage.doubt, of_one_controller=of_one
        )
        problems += filter(None, [wrong])
    return workload, grouping.doubt
