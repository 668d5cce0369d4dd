"""What the configuration leaves of the cluster to each namespace: access to domains, and quotas."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from topo_scheduler.api.config import TopologySpec
from topo_scheduler.api.reasons import NodeReason
from topo_scheduler.api.sharing import DomainAccess, matches
from topo_scheduler.scheduling.placing.tied import is_tied
from topo_scheduler.scheduling.queueing.quotas import Group, Quotas
from topo_scheduler.scheduling.rules.domains import NamedDomains
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.classes import Cap, PodClass
from topo_scheduler.state.workloads import Member


class Sharing:
    """Puts caps on classes. Costs nothing while the configuration has neither quotas nor access to domains."""

    def __init__(self, world: World, spec: TopologySpec) -> None:
        self._domains: NamedDomains = world.domains
        self._nodes = world.nodes
        self._quotas = Quotas(world.nodes, world.resources, world.ledger, world.accounts, world.domains)
        self._access: tuple[DomainAccess, ...] = ()
        self._shut: dict[str, tuple[Cap, ...]] = {}
        self._names: list[tuple[str, str]] = []
        self._told: set[str] = set()
        self._looked_at = -1
        self.configure(spec)

    def configure(self, spec: TopologySpec) -> None:
        """Take over a new configuration."""
        self._quotas.configure(spec.quotas)
        self._access = spec.domain_access
        self._shut.clear()
        self._names = [("spec.domainAccess", one.domain) for one in spec.domain_access]
        self._names += [("spec.quotas", one.domain) for one in spec.quotas if one.domain]
        self._told.clear()
        self._looked_at = -1

    @property
    def configured(self) -> bool:
        """Whether there is anything to put on classes."""
        return bool(self._access) or self._quotas.configured

    def bound(
        self, namespace: str, groups: Sequence[tuple[PodClass, list[Member]]], running: int
    ) -> tuple[list[tuple[PodClass, list[Member]]], str, bool]:
        """Put on each class of a workload what its namespace may not have.

        Args:
            namespace: whose workload it is.
            groups: its classes, and the members to be placed.
            running: members that run already.

        Returns:
            The groups with their caps; what quotas lack, in words, empty where they lack nothing; and whether more is
            asked than they ever grant.
        """
        shut = self._shut_to(namespace) if self._access else ()
        asked: list[Group] = [(cls, len(members)) for cls, members in groups]
        # Members that are filled in or seated one by one are not counted by domain meanwhile.
        whole = len(asked) > 1 or is_tied(asked)
        bounds = self._quotas.bounds(namespace, asked, running, whole=whole)
        if not shut and bounds is None:
            return list(groups), "", False
        caps = bounds.caps if bounds is not None else [()] * len(groups)
        capped = [
            (replace(cls, caps=(*shut, *more)), members) for (cls, members), more in zip(groups, caps, strict=True)
        ]
        return (capped, bounds.text, bounds.never) if bounds is not None else (capped, "", False)

    def take_fallen(self) -> Mapping[str, None]:
        """Return the namespaces of which a quota has more left than at the last call."""
        return self._quotas.take_fallen()

    def complaints(self) -> list[str]:
        """Return what is wrong with the domains the configuration names; each is told once."""
        if not self._names or self._looked_at == self._domains.generation or not len(self._nodes):
            return []
        self._looked_at = self._domains.generation
        found = []
        for name, message in self._domains.problems(self._names):
            if name not in self._told:
                self._told.add(name)
                found.append(message)
        return found

    def _shut_to(self, namespace: str) -> tuple[Cap, ...]:
        found = self._shut.get(namespace)
        if found is None:
            found = self._shut[namespace] = tuple(
                Cap(one.domain, 0, 0, NodeReason.ACCESS)
                for one in self._access
                if not matches(namespace, one.namespaces)
            )
        return found
