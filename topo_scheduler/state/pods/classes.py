"""Pod classes: pods with equal requests share one class, and the planner computes where they fit once per class."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, Final

from topo_scheduler.api.gpu_needs import GpuNeeds
from topo_scheduler.api.objects import Pod, Toleration
from topo_scheduler.api.reasons import NodeReason
from topo_scheduler.api.selectors import NodeAffinity, PreferredTerm
from topo_scheduler.state.devices.pod_claims import PodClaim
from topo_scheduler.state.nodes.resources import CPU, GPU, GPU_SHARE, Amounts, amount_in
from topo_scheduler.state.pods.applied_terms import AppliedTerms
from topo_scheduler.state.pods.constraints import Constraints, PodPreferences
from topo_scheduler.state.pods.numa_request import NumaRequest, forget_requests
from topo_scheduler.state.pods.profiles import CountedTerm

NO_LIMIT: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Cap:
    """Maximum number of members of a workload that the configuration allows in a domain.

    ``domain`` is named as in the configuration, empty for the whole cluster. ``now`` is the current maximum, ``ever``
    that of an empty cluster; `NO_LIMIT` if it is enough for all members. ``reason`` is reported for excluded nodes.
    """

    domain: str
    now: int
    ever: int
    reason: NodeReason

    @property
    def partial(self) -> bool:
        """Whether the domain may take some members, but not all."""
        return 0 < self.now < NO_LIMIT or 0 < self.ever < NO_LIMIT


@dataclass(frozen=True, slots=True)
class PodClass:
    """What decides on which nodes a pod may run, and how many fit there.

    ``amounts`` has pairs of resource column and amount, including the GPU column. ``models`` are the acceptable GPU
    models, empty for any. ``bandwidth`` is the required Mbit/s; a node of unknown bandwidth passes. ``repelled`` is
    anti-affinity of other pods that applies to this one, ``attracted`` their preferred affinity with weights.

    ``preferences`` are preferences of the pod. ``shunned`` are nodes that refused such a pod recently. ``caps`` has the
    limits of quotas and of access to domains below the request. ``ordinary``: nodes kept as spares are excluded.
    ``plugin_inputs`` is what plugins read of the pod, see `annotation` and `label`. ``claims`` are its claims of
    devices. ``numa`` is what the kubelet aligns to NUMA nodes. ``gpu_needs`` is what it asks of the GPUs of
    a node; None if nothing.
    """

    amounts: Amounts
    selector: tuple[tuple[str, str], ...] = ()
    affinity: NodeAffinity | None = None
    tolerations: frozenset[Toleration] = frozenset()
    models: tuple[str, ...] = ()
    bandwidth: int = 0
    constraints: Constraints | None = None
    repelled: AppliedTerms[CountedTerm] | None = None
    preferences: PodPreferences | None = None
    attracted: AppliedTerms[tuple[int, CountedTerm]] | None = None
    shunned: frozenset[str] = frozenset()
    caps: tuple[Cap, ...] = ()
    ordinary: bool = False
    plugin_inputs: tuple[tuple[str, str], ...] = ()
    claims: tuple[PodClaim, ...] = ()
    numa: NumaRequest | None = None
    gpu_needs: GpuNeeds | None = None
    gpus: int = field(init=False, compare=False, repr=False)
    """GPUs of one pod."""
    share: int = field(init=False, compare=False, repr=False)
    """Thousandths of one GPU that a pod requests, 0 if it requests whole GPUs or none."""
    scarce: int = field(init=False, compare=False, repr=False)
    """The column that decides on placements of this class: GPUs or shares if requested, else CPU."""
    _hash: int | None = field(init=False, compare=False, repr=False)
    """Computed on first use: classes are keys of many dictionaries, and have up to several hundred terms."""

    def __post_init__(self) -> None:
        requested = dict(self.amounts)
        gpus, share = requested.get(GPU, 0), requested.get(GPU_SHARE, 0)
        object.__setattr__(self, "gpus", gpus)
        object.__setattr__(self, "share", share)
        object.__setattr__(self, "scarce", GPU_SHARE if share else GPU if gpus else CPU)
        object.__setattr__(self, "_hash", None)

    def __hash__(self) -> int:
        if self._hash is None:
            object.__setattr__(self, "_hash", hash(tuple(getattr(self, name) for name in _COMPARED)))
        return self._hash  # type: ignore[return-value]

    def __reduce__(self) -> tuple[Any, ...]:
        return PodClass, tuple(getattr(self, name) for name in _COMPARED)  # hashes of text differ between processes

    @property
    def extra(self) -> Mapping[str, str]:
        """Annotations and labels of the pod that plugins read, by ``annotation:NAME`` and ``label:NAME``."""
        return dict(self.plugin_inputs)

    def annotation(self, name: str) -> str | None:
        """Return an annotation of the pod or its owners that a plugin declared to read, None without one."""
        return self.extra.get(f"annotation:{name}")

    def label(self, name: str) -> str | None:
        """Return a label of the pod that a plugin declared to read, None without one."""
        return self.extra.get(f"label:{name}")

    def amount(self, column: int) -> int:
        """Return the request of a pod for one resource."""
        return amount_in(self.amounts, column)

    @property
    def by_claims_alone(self) -> bool:
        """Whether a pod can have GPUs only by claims that it names itself."""
        return bool(self.claims) and not self.gpus and not any(claim.resources for claim in self.claims)

    @property
    def preferred(self) -> tuple[PreferredTerm, ...]:
        """Preferred node affinity."""
        return self.affinity.preferred if self.affinity else ()


_COMPARED: Final = tuple(field_.name for field_ in fields(PodClass) if field_.init)
_one_of: Final = lru_cache(maxsize=4096)(PodClass)
"""Returns the class of some values, mostly the same object as for other pods, which makes comparisons fast."""


def pod_class(
    pod: Pod,
    amounts: Amounts,
    models: tuple[str, ...],
    bandwidth: int,
    constraints: Constraints | None = None,
    preferences: PodPreferences | None = None,
    numa: NumaRequest | None = None,
) -> PodClass:
    """Return the class of a pod; equal classes compare equal."""
    spec = pod.spec
    return _one_of(
        amounts=amounts,
        selector=tuple(sorted(spec.node_selector.items())),
        affinity=spec.affinity.node_affinity if spec.affinity else None,
        tolerations=frozenset(spec.tolerations),
        models=models,
        bandwidth=bandwidth,
        constraints=constraints,
        preferences=preferences,
        numa=numa,
    )


def drop_classes() -> None:
    """Forget classes that no pod and no view uses; equal classes of later pods are new objects."""
    _one_of.cache_clear()
    forget_requests()


def unsupported(pod: Pod) -> str:
    """Return the constraint of a pod that this scheduler can't honour yet, or an empty string.

    The scheduler refuses such a pod: without the constraint it could be placed on a node where it must not run.
    """
    spec = pod.spec
    if spec.workload_ref is not None:
        return "workloadRef (the Workloads of Kubernetes 1.35)"
    return ""
