"""Quotas: how much each namespace may hold, in the cluster or in one domain, and how much is left.

All pods of the namespace that are bound or assumed count, no matter which scheduler bound them. So do nominated pods
and seats of replacements, for the workloads for which their room counts as taken. A quota of a domain
keeps its own sums. The accounts report each change to it, and it corrects rows whose labels moved the node in or out.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from topo_scheduler.api.fractions import WHOLE_GPU
from topo_scheduler.api.quantity import parse_exact
from topo_scheduler.api.reasons import NodeReason
from topo_scheduler.api.sharing import GPUS, Quota, matches
from topo_scheduler.scheduling.preemption.nominations import Nominations
from topo_scheduler.scheduling.rules.domains import NamedDomains
from topo_scheduler.scheduling.rules.filters import Bool
from topo_scheduler.state.ledger.claimed_gpus import ClaimedGpus
from topo_scheduler.state.ledger.ledger import Ledger
from topo_scheduler.state.ledger.namespace_usage import Accounts
from topo_scheduler.state.nodes.node_table import NodeTable
from topo_scheduler.state.nodes.resources import CPU, GPU, GPU_SHARE, MEMORY, Amounts, ResourceTable
from topo_scheduler.state.pods.classes import NO_LIMIT, Cap, PodClass

MAX_NAMESPACES: Final = 4096
"""Namespaces at most for which it is kept what the configuration says of them. Many come and go, as those of tests."""
Group = tuple[PodClass, int]
"""A class and its number of pods."""


@dataclass(frozen=True, slots=True)
class QuotaHeadroom:
    """What quotas leave to a workload.

    Attributes:
        caps: caps for each group of the workload.
        text: what the quotas lack, as text.
        never: whether the workload requests more than a quota grants to an empty namespace.
    """

    caps: Sequence[tuple[Cap, ...]]
    text: str = ""
    never: bool = False


@dataclass(frozen=True, slots=True)
class QuotaLack:
    """What a quota lacks for devices that were chosen, as text; its domain, empty for the cluster."""

    text: str
    domain: str


@dataclass(eq=False, slots=True)
class _Meter:
    """A quota of the configuration. For a quota of a domain, also the amounts that its namespaces hold there.

    Attributes:
        namespaces: patterns of the namespaces.
        domain: name of the domain; empty for the cluster.
        limits: limit by column of the resource.
        inside: whether each row lies in the domain (bool[rows]).
        held: amount by namespace and column.
    """

    namespaces: tuple[str, ...]
    domain: str
    limits: dict[int, int]
    inside: Bool = field(default_factory=lambda: np.zeros(0, np.bool_))
    held: dict[str, dict[int, int]] = field(default_factory=dict)

    def contains(self, row: int) -> bool:
        """Return whether a row lies in the domain, by the labels that were read last."""
        return not self.domain or (0 <= row < len(self.inside) and bool(self.inside[row]))

    def add(self, namespace: str, amounts: Amounts, sign: int) -> None:
        """Add the amounts of a pod, or subtract them with sign -1."""
        held = self.held.setdefault(namespace, {})
        for column, amount in amounts:
            total = held[column] = held.get(column, 0) + sign * amount
            if not total:
                del held[column]
        if not held:
            del self.held[namespace]


class Quotas:
    """All quotas of the configuration."""

    def __init__(
        self,
        nodes: NodeTable,
        resources: ResourceTable,
        ledger: Ledger,
        accounts: Accounts,
        domains: NamedDomains,
        claimed: ClaimedGpus,
        nominations: Nominations,
    ) -> None:
        self._nodes = nodes
        self._resources = resources
        self._ledger = ledger
        self._accounts = accounts
        self._domains = domains
        self._claimed = claimed
        self._nominations = nominations
        self._meters: list[_Meter] = []
        self._of: dict[str, tuple[_Meter, ...]] = {}
        self._labels_seen = (-1, -1)
        self._fallen: dict[str, None] = {}

    def configure(self, quotas: Sequence[Quota]) -> None:
        """Apply the quotas of a new configuration."""
        self._meters = [_Meter(quota.namespaces, quota.domain or "", self._limits(quota)) for quota in quotas]
        self._nodes.widen()
        self._of.clear()
        self._labels_seen = (-1, -1)
        if self._on_change in self._accounts.listeners:
            self._accounts.listeners.remove(self._on_change)
        if self._meters:
            self._accounts.listeners.append(self._on_change)

    @property
    def configured(self) -> bool:
        """Whether the configuration has quotas."""
        return bool(self._meters)

    def bounds(self, namespace: str, groups: Sequence[Group], running: int, *, whole: bool) -> QuotaHeadroom | None:
        """Return what the quotas of a namespace leave to a workload, or None where they leave all that it requests.

        The result is exact for pods of one class if the domain of the quota is the whole cluster or a leaf. It is also
        exact if that domain contains the domain that the members must share.

        Args:
            namespace: namespace of the workload.
            groups: pods to be placed, by class.
            running: members that run already.
            whole: whether a group must stay out of a domain unless all of it fits there.
        """
        meters = self._meters_of(namespace) if self._meters else ()
        if not meters:
            return None
        self._follow_labels()
        caps: list[list[Cap]] = [[] for _ in groups]
        texts: list[str] = []
        never = False
        for meter in meters:
            if meter.domain and not meter.inside.any():
                continue  # no node lies in the domain, so the quota excludes no node
            held = self._held(namespace, meter)
            short, impossible = _short_columns(meter, held, groups)
            if not short:
                continue
            never |= impossible
            texts += [self._text(namespace, meter, column, _held_amount(held, column), groups) for column in short]
            for number, group in enumerate(groups):
                cap = _cap(meter, held, short, group, running, whole=whole or not meter.domain)
                caps[number] += [cap] if cap is not None else []
        if not texts:
            return None
        return QuotaHeadroom([tuple(group_caps) for group_caps in caps], " ".join(texts), never)

    def lack_of_gpus(self, namespace: str, gpus: Sequence[tuple[int, int]]) -> QuotaLack | None:
        """Return what the quotas of a namespace lack for GPUs that were chosen on some rows; None if nothing.

        Args:
            namespace: the namespace.
            gpus: rows and thousandths of GPUs, those of claims included.
        """
        meters = self._meters_of(namespace) if self._meters else ()
        self._follow_labels()
        for meter in meters:
            limit = meter.limits.get(GPU)
            requested = sum(amount for row, amount in gpus if meter.contains(row))
            if limit is None or not requested:
                continue
            held = self._held(namespace, meter)
            if requested > limit - _held_amount(held, GPU):
                text = self._described(namespace, meter, GPU, _held_amount(held, GPU), requested)
                return QuotaLack(text, meter.domain)
        return None

    def take_fallen(self) -> Mapping[str, None]:
        """Return the namespaces with a quota that has more left than at the last call."""
        if self._meters:
            self._follow_labels()
        fallen, self._fallen = self._fallen, {}
        for namespace in self._nominations.take_dropped():
            if self._meters_of(namespace):
                fallen[namespace] = None
        return fallen

    # ------------------------------------------------------------ inside

    def _held(self, namespace: str, meter: _Meter) -> Mapping[int, int]:
        """Return what counts for a quota now: what pods hold, and what is promised."""
        held = meter.held.get(namespace, {}) if meter.domain else self._accounts.held(namespace)
        promised = self._promised(namespace, meter)
        return promised + Counter(held) if promised else held

    def _promised(self, namespace: str, meter: _Meter) -> Counter[int]:
        """Return what a quota has promised to nominated pods and replacements."""
        promised: Counter[int] = Counter()
        for row, amounts in self._nominations.promised(namespace):
            if meter.contains(row):
                promised.update(dict(amounts))
        return promised

    def _limits(self, quota: Quota) -> dict[int, int]:
        return {
            GPU if name == GPUS else self._resources.column(name): math.floor(
                parse_exact(text, 1000 if name == "cpu" else 1) * (WHOLE_GPU if name == GPUS else 1)
            )
            for name, text in quota.hard.items()
        }

    def _meters_of(self, namespace: str) -> tuple[_Meter, ...]:
        meters = self._of.get(namespace)
        if meters is None:
            if len(self._of) >= MAX_NAMESPACES:
                self._of.clear()
            meters = self._of[namespace] = tuple(
                meter for meter in self._meters if matches(namespace, meter.namespaces)
            )
        return meters

    def _on_change(self, row: int, namespace: str, amounts: Amounts, sign: int) -> None:
        for meter in self._meters_of(namespace):
            if meter.contains(row):
                if meter.domain:
                    meter.add(namespace, amounts, sign)
                if sign < 0:
                    self._fallen[namespace] = None

    def _follow_labels(self) -> None:
        """Update the sums for rows that came into a domain or left it."""
        generation = (self._domains.generation, self._nodes.rows)
        if generation == self._labels_seen:
            return
        self._labels_seen = generation
        for meter in self._meters:
            if not meter.domain:
                continue
            current = self._domains.rows(meter.domain)
            previous = np.zeros(len(current), np.bool_)
            previous[: len(meter.inside)] = meter.inside
            meter.inside = current
            for row in np.flatnonzero(previous != current).tolist():
                for entry in map(self._ledger.get, sorted(self._ledger.on_node(self._nodes.names[row]))):
                    if entry is None or entry.row != row or entry.profile is None:
                        continue
                    namespace = entry.profile.namespace
                    if matches(namespace, meter.namespaces):
                        meter.add(namespace, entry.amounts, 1 if current[row] else -1)
                        self._fallen[namespace] = None
                for namespace, amounts in self._claimed.on_node(self._nodes.names[row]):
                    if matches(namespace, meter.namespaces):
                        meter.add(namespace, amounts, 1 if current[row] else -1)
                        self._fallen[namespace] = None

    def _text(self, namespace: str, meter: _Meter, column: int, held: int, groups: Sequence[Group]) -> str:
        requested = sum(_requested_amount(cls, column) * count for cls, count in groups)
        return self._described(namespace, meter, column, held, requested)

    def _described(self, namespace: str, meter: _Meter, column: int, held: int, requested: int) -> str:
        limit = meter.limits[column]
        name = GPUS if column == GPU else self._resources.names[column]
        where = f" in {meter.domain}" if meter.domain else ""
        promised = _held_amount(self._promised(namespace, meter), column)
        use = "in use or promised to nominated pods" if promised else "in use"
        amounts = f"{_readable(column, held)} of {_readable(column, limit)} {name} {use}"
        requested_text = f"{_readable(column, requested)} more asked"
        never = ", which it can never grant" if requested > limit else ""
        return f"Quota of namespace {namespace}{where}: {amounts}, {requested_text}{never}."


def _short_columns(meter: _Meter, held: Mapping[int, int], groups: Sequence[Group]) -> tuple[list[int], bool]:
    """Return the columns with too little left, and whether the limit can never be enough."""
    short: list[int] = []
    never = False
    for column, limit in meter.limits.items():
        requested = sum(_requested_amount(cls, column) * count for cls, count in groups)
        if requested and requested > limit - _held_amount(held, column):
            short.append(column)
            never |= requested > limit and not meter.domain
    return short, never


def _cap(
    meter: _Meter, held: Mapping[int, int], short: Sequence[int], group: Group, running: int, *, whole: bool
) -> Cap | None:
    """Return how many pods of a group may go to the quota's domain. ``whole``: all of them or none."""
    cls, count = group
    amounts = [(column, amount) for column in short if (amount := _requested_amount(cls, column))]
    if not amounts:
        return None
    available_pods = min(
        max(0, meter.limits[column] - _held_amount(held, column)) // amount for column, amount in amounts
    )
    grantable_pods = min(meter.limits[column] // amount for column, amount in amounts)
    total = count + running
    if whole:
        return Cap(meter.domain, 0, NO_LIMIT if grantable_pods >= total else 0, NodeReason.QUOTA)
    return Cap(
        meter.domain,
        NO_LIMIT if available_pods >= count else available_pods,
        NO_LIMIT if grantable_pods >= total else grantable_pods,
        NodeReason.QUOTA,
    )


def _requested_amount(cls: PodClass, column: int) -> int:
    """Return the amount that a pod requests, in the unit of limits: GPUs in thousandths, GPU shares included."""
    return WHOLE_GPU * cls.gpus + cls.share if column == GPU else cls.amount(column)


def _held_amount(held: Mapping[int, int], column: int) -> int:
    """Return the amount that pods hold, in the same unit."""
    if column == GPU:
        return WHOLE_GPU * held.get(GPU, 0) + held.get(GPU_SHARE, 0)
    return held.get(column, 0)


def _readable(column: int, amount: int) -> str:
    if column == GPU:
        return f"{amount / WHOLE_GPU:.10g}"
    if column == CPU:
        return f"{amount / 1000:g}"
    return f"{amount / 2**30:.6g}Gi" if column == MEMORY else str(amount)
