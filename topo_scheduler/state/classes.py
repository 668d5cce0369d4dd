"""Pod classes: pods that ask for the same share one class, and everything about fitting is computed once per class."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, Final

from topo_scheduler.api.objects import Pod, Toleration
from topo_scheduler.api.reasons import NodeReason
from topo_scheduler.api.selectors import NodeAffinity, PreferredTerm
from topo_scheduler.state.constraints import Constraints, Wishes
from topo_scheduler.state.residents import CountedTerm
from topo_scheduler.state.resources import CPU, GPU, GPU_SHARE, Amounts, amount_in

NO_LIMIT: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Cap:
    """Most members of the workload that is being placed that may go to a domain by the configuration.

    ``domain`` as the configuration names it, empty for the whole cluster. ``now``, and ``ever`` if the cluster were
    empty; `NO_LIMIT` where that is enough for all of them. ``reason`` for nodes that are shut by it.
    """

    domain: str
    now: int
    ever: int
    reason: NodeReason

    @property
    def partial(self) -> bool:
        """Whether some members may go there, but not all."""
        return 0 < self.now < NO_LIMIT or 0 < self.ever < NO_LIMIT


@dataclass(frozen=True, slots=True)
class PodClass:
    """What decides on which nodes a pod may run, and how many fit there.

    ``amounts`` pairs of resource column and amount, the GPU account included. ``models`` GPU models that will do,
    empty for any. ``bandwidth`` Mbit/s that a node must not be known to lack. ``repelled`` anti-affinity of other pods
    that is meant for this one, ``attracted`` what draws it to them or away, with weights. ``wishes`` what it would
    like, ``shunned`` nodes that refused such a pod a moment ago. ``caps`` what quotas and access to domains leave to
    it, only where they leave less than it asks. ``ordinary``: whether nodes that are
    kept as spares are not for it. ``told`` what plugins read of the pod, see `annotation` and `label`.
    """

    amounts: Amounts
    selector: tuple[tuple[str, str], ...] = ()
    affinity: NodeAffinity | None = None
    tolerations: frozenset[Toleration] = frozenset()
    models: tuple[str, ...] = ()
    bandwidth: int = 0
    constraints: Constraints | None = None
    repelled: frozenset[CountedTerm] = frozenset()
    wishes: Wishes | None = None
    attracted: frozenset[tuple[int, CountedTerm]] = frozenset()
    shunned: frozenset[str] = frozenset()
    caps: tuple[Cap, ...] = ()
    ordinary: bool = False
    told: tuple[tuple[str, str], ...] = ()
    gpus: int = field(init=False, compare=False, repr=False)
    """GPUs of one pod."""
    share: int = field(init=False, compare=False, repr=False)
    """Thousandths of one GPU that a pod asks for, 0 where it asks for whole ones or none."""
    scarce: int = field(init=False, compare=False, repr=False)
    """The column that placements of this class are judged by: GPUs or shares where it asks for any, else CPU."""
    _hash: int | None = field(init=False, compare=False, repr=False)
    """Once it was asked for: classes are keys of much, and have up to some hundred terms."""

    def __post_init__(self) -> None:
        asked = dict(self.amounts)
        gpus, share = asked.get(GPU, 0), asked.get(GPU_SHARE, 0)
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
        """What plugins read of the pod, by ``annotation:NAME`` and ``label:NAME``."""
        return dict(self.told)

    def annotation(self, name: str) -> str | None:
        """Return an annotation of the pod or its owners that a plugin declared to read, None where there is none."""
        return self.extra.get(f"annotation:{name}")

    def label(self, name: str) -> str | None:
        """Return a label of the pod that a plugin declared to read, None where there is none."""
        return self.extra.get(f"label:{name}")

    def amount(self, column: int) -> int:
        """Return how much of one resource a pod asks."""
        return amount_in(self.amounts, column)

    @property
    def preferred(self) -> tuple[PreferredTerm, ...]:
        """Preferred node affinity."""
        return self.affinity.preferred if self.affinity else ()


_COMPARED: Final = tuple(one.name for one in fields(PodClass) if one.init)


def pod_class(
    pod: Pod,
    amounts: Amounts,
    models: tuple[str, ...],
    bandwidth: int,
    constraints: Constraints | None = None,
    wishes: Wishes | None = None,
) -> PodClass:
    """Return the class of a pod; equal classes compare equal."""
    spec = pod.spec
    return _one_of(
        amounts,
        tuple(sorted(spec.node_selector.items())),
        spec.affinity.node_affinity if spec.affinity else None,
        frozenset(spec.tolerations),
        models,
        bandwidth,
        constraints,
        wishes,
    )


def drop_classes() -> None:
    """Forget the classes that no pod and no view has any more; equal classes of later pods are other objects."""
    _one_of.cache_clear()


@lru_cache(maxsize=4096)
def _one_of(*values: Any) -> PodClass:
    """Return the class of these values, mostly the very object that other pods have: it need not be compared then."""
    amounts, selector, affinity, tolerations, models, bandwidth, constraints, wishes = values
    return PodClass(
        amounts=amounts,
        selector=selector,
        affinity=affinity,
        tolerations=tolerations,
        models=models,
        bandwidth=bandwidth,
        constraints=constraints,
        wishes=wishes,
    )


def unsupported(pod: Pod) -> str:
    """Return which constraint of a pod this scheduler can't honour yet, or an empty string.

    Such a pod is refused: placing it as if the constraint were absent would put it where it must not be.
    """
    spec = pod.spec
    if spec.resource_claims or any(container.resources.claims for container in spec.containers):
        return "resource claims (dynamic resource allocation)"
    if spec.workload_ref is not None:
        return "workloadRef (the Workloads of Kubernetes 1.35)"
    return ""
