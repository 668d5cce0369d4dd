"""Limits that the configuration sets for each namespace: access to domains, and quotas."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from topo_scheduler.api.config import TopologySpec
from topo_scheduler.api.fractions import WHOLE_GPU
from topo_scheduler.api.reasons import NodeReason
from topo_scheduler.api.sharing import DomainAccess, matches
from topo_scheduler.scheduling.placing.constrained.constrained_gang import is_constrained
from topo_scheduler.scheduling.preemption.nominations import Nominations
from topo_scheduler.scheduling.queueing.quotas import MAX_NAMESPACES, Group, QuotaLack, Quotas
from topo_scheduler.scheduling.rules.domains import NamedDomains, configured_domains
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.devices.claim_writes import ClaimChoice
from topo_scheduler.state.pods.classes import Cap, PodClass
from topo_scheduler.state.pods.workloads import MembersByClass


class Sharing:
    """Puts caps on classes. It does no work while the configuration has neither quotas nor access to domains."""

    def __init__(self, world: World, spec: TopologySpec, nominations: Nominations) -> None:
        self._domains: NamedDomains = world.domains
        self._nodes = world.nodes
        self._quotas = Quotas(
            world.nodes, world.resources, world.ledger, world.accounts, world.domains, world.claimed_gpus, nominations
        )
        self._claimed = world.claimed_gpus
        self._access: tuple[DomainAccess, ...] = ()
        self._shut: dict[str, tuple[Cap, ...]] = {}
        self._names: list[tuple[str, str]] = []
        self._warned: set[str] = set()
        self._checked_generation = -1
        self.configure(spec)

    def configure(self, spec: TopologySpec) -> None:
        """Apply a new configuration."""
        self._quotas.configure(spec.quotas)
        self._access = spec.domain_access
        self._shut.clear()
        self._names = configured_domains(spec)
        self._warned.clear()
        self._checked_generation = -1

    @property
    def configured(self) -> bool:
        """Whether the configuration has quotas or access to domains."""
        return bool(self._access) or self._quotas.configured

    def bound(self, namespace: str, groups: MembersByClass, running: int) -> tuple[MembersByClass, str, bool]:
        """Put caps on each class of a workload, for the limits of its namespace.

        Args:
            namespace: namespace of the workload.
            groups: its classes, and the members to be placed.
            running: members that run already.

        Returns:
            The groups with their caps; what quotas lack, as text, empty where they lack nothing; and whether the
            workload requests more than they can ever grant.
        """
        access_caps = self._access_caps(namespace) if self._access else ()
        requested: list[Group] = [(cls, len(members)) for cls, members in groups]
        # Placement of members one by one does not count per domain in between.
        whole = len(requested) > 1 or is_constrained(requested)
        bounds = self._quotas.bounds(namespace, requested, running, whole=whole)
        if not access_caps and bounds is None:
            return groups, "", False
        caps = bounds.caps if bounds is not None else [()] * len(groups)
        capped = [
            (replace(cls, caps=(*access_caps, *quota_caps)), members)
            for (cls, members), quota_caps in zip(groups, caps, strict=True)
        ]
        return (capped, bounds.text, bounds.never) if bounds is not None else (capped, "", False)

    def lack_of_devices(
        self, namespace: str, pods: Sequence[tuple[PodClass, int, Sequence[ClaimChoice]]]
    ) -> QuotaLack | None:
        """Return what quotas lack for pods whose claims got devices; None if they lack nothing.

        How many GPUs a claim gets is known only once its devices are chosen.

        Args:
            namespace: the namespace of the pods.
            pods: class, row and claims of each.
        """
        if not self._quotas.configured:
            return None
        requested = [(row, WHOLE_GPU * cls.gpus + cls.share) for cls, row, _ in pods]
        claimed = [(row, self._claimed.beyond_requests(cls.amounts, choices)) for cls, row, choices in pods]
        if not any(gpus for _, gpus in claimed):
            return None
        return self._quotas.lack_of_gpus(namespace, [*requested, *claimed])

    def take_fallen(self) -> Mapping[str, None]:
        """Return the namespaces with a quota that has more left than at the last call."""
        return self._quotas.take_fallen()

    def complaints(self) -> list[str]:
        """Return warnings about invalid domains in the configuration. Each is returned once."""
        if not self._names or self._checked_generation == self._domains.generation or not len(self._nodes):
            return []
        self._checked_generation = self._domains.generation
        messages = []
        for name, message in self._domains.problems(self._names):
            if name not in self._warned:
                self._warned.add(name)
                messages.append(message)
        return messages

    def _access_caps(self, namespace: str) -> tuple[Cap, ...]:
        caps = self._shut.get(namespace)
        if caps is None:
            if len(self._shut) >= MAX_NAMESPACES:
                self._shut.clear()
            caps = self._shut[namespace] = tuple(
                Cap(access.domain, 0, 0, NodeReason.ACCESS)
                for access in self._access
                if not matches(namespace, access.namespaces)
            )
        return caps
