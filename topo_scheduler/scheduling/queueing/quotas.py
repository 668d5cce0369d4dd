"""Quotas: how much each namespace may hold, in the cluster or in one domain, and what is left of it.

Counted are all pods of the namespace that are bound or assumed, whoever scheduled them. A quota of a domain keeps its
own sums: told of each change by the accounts, and corrected row by row where labels moved nodes in or out.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from topo_scheduler.api.quantity import parse_exact
from topo_scheduler.api.reasons import NodeReason
from topo_scheduler.api.sharing import GPUS, Quota, matches
from topo_scheduler.scheduling.rules.domains import NamedDomains
from topo_scheduler.scheduling.rules.filters import Bool
from topo_scheduler.state.accounts import Accounts
from topo_scheduler.state.classes import NO_LIMIT, Cap, PodClass
from topo_scheduler.state.devices import WHOLE
from topo_scheduler.state.ledger import Ledger
from topo_scheduler.state.nodes import NodeTable
from topo_scheduler.state.resources import CPU, GPU, GPU_SHARE, MEMORY, Amounts, ResourceTable

Group = tuple[PodClass, int]
"""A class and how many pods of it."""


@dataclass(frozen=True, slots=True)
class QuotaHeadroom:
    """What quotas leave to a workload: caps for each of its groups, and in words what they lack.

    ``never``: more is asked than a quota grants to who holds nothing.
    """

    caps: Sequence[tuple[Cap, ...]]
    text: str = ""
    never: bool = False


@dataclass(eq=False, slots=True)
class _Meter:
    """A quota of the configuration, with what its namespaces hold where it is one of a domain."""

    namespaces: tuple[str, ...]
    domain: str
    limits: dict[int, int]
    inside: Bool = field(default_factory=lambda: np.zeros(0, np.bool_))
    held: dict[str, dict[int, int]] = field(default_factory=dict)

    def contains(self, row: int) -> bool:
        """Return whether a row lies in the domain, as it was understood last."""
        return not self.domain or (row < len(self.inside) and bool(self.inside[row]))

    def add(self, namespace: str, amounts: Amounts, sign: int) -> None:
        """Count what a pod holds there."""
        held = self.held.setdefault(namespace, {})
        for column, amount in amounts:
            held[column] = held.get(column, 0) + sign * amount


class Quotas:
    """All quotas."""

    def __init__(
        self, nodes: NodeTable, resources: ResourceTable, ledger: Ledger, accounts: Accounts, domains: NamedDomains
    ) -> None:
        self._nodes = nodes
        self._resources = resources
        self._ledger = ledger
        self._accounts = accounts
        self._domains = domains
        self._meters: list[_Meter] = []
        self._of: dict[str, tuple[_Meter, ...]] = {}
        self._at = (-1, -1)
        self._fallen: dict[str, None] = {}

    def configure(self, quotas: Sequence[Quota]) -> None:
        """Take over the quotas of a configuration."""
        self._meters = [_Meter(quota.namespaces, quota.domain or "", self._limits(quota)) for quota in quotas]
        self._nodes.widen()
        self._of.clear()
        self._at = (-1, -1)
        if self._on_change in self._accounts.listeners:
            self._accounts.listeners.remove(self._on_change)
        if self._meters:
            self._accounts.listeners.append(self._on_change)

    @property
    def configured(self) -> bool:
        """Whether there are any."""
        return bool(self._meters)

    def bounds(self, namespace: str, groups: Sequence[Group], running: int, *, whole: bool) -> QuotaHeadroom | None:
        """Return what the quotas of a namespace leave to a workload, None where they leave all it asks.

        Exact for pods of one class where the quota's domain is the whole cluster, a leaf, or holds the domain that the
        members must share.

        Args:
            namespace: whose workload it is.
            groups: what is to be placed, by class.
            running: members that run already.
            whole: whether what does not fit into a domain as a whole is to stay out of it.
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
                continue  # no node lies there, so it keeps nobody from anywhere
            held = meter.held.get(namespace, {}) if meter.domain else self._accounts.held(namespace)
            short, impossible = _short(meter, held, groups)
            if not short:
                continue
            never |= impossible
            texts += [self._text(namespace, meter, column, _held(held, column), groups) for column in short]
            for number, group in enumerate(groups):
                cap = _cap(meter, held, short, group, running, whole=whole or not meter.domain)
                caps[number] += [cap] if cap is not None else []
        if not texts:
            return None
        return QuotaHeadroom([tuple(found) for found in caps], " ".join(texts), never)

    def take_fallen(self) -> Mapping[str, None]:
        """Return the namespaces of which a quota has more left than at the last call."""
        if self._meters:
            self._follow_labels()
        fallen, self._fallen = self._fallen, {}
        return fallen

    # ------------------------------------------------------------ inside

    def _limits(self, quota: Quota) -> dict[int, int]:
        return {
            GPU if name == GPUS else self._resources.column(name): math.floor(
                parse_exact(text, 1000 if name == "cpu" else 1)
            )
            * (WHOLE if name == GPUS else 1)
            for name, text in quota.hard.items()
        }

    def _meters_of(self, namespace: str) -> tuple[_Meter, ...]:
        found = self._of.get(namespace)
        if found is None:
            found = self._of[namespace] = tuple(one for one in self._meters if matches(namespace, one.namespaces))
        return found

    def _on_change(self, row: int, namespace: str, amounts: Amounts, sign: int) -> None:
        for meter in self._meters_of(namespace):
            if meter.contains(row):
                if meter.domain:
                    meter.add(namespace, amounts, sign)
                if sign < 0:
                    self._fallen[namespace] = None

    def _follow_labels(self) -> None:
        """Count again on the rows that came into a domain, or left it."""
        at = (self._domains.generation, self._nodes.rows)
        if at == self._at:
            return
        self._at = at
        for meter in self._meters:
            if not meter.domain:
                continue
            now = self._domains.rows(meter.domain)
            before = np.zeros(len(now), np.bool_)
            before[: len(meter.inside)] = meter.inside
            meter.inside = now
            for row in np.flatnonzero(before != now).tolist():
                for entry in map(self._ledger.get, sorted(self._ledger.on_node(self._nodes.names[row]))):
                    if entry is None or entry.row != row or entry.profile is None:
                        continue
                    namespace = entry.profile.namespace
                    if matches(namespace, meter.namespaces):
                        meter.add(namespace, entry.amounts, 1 if now[row] else -1)
                        self._fallen[namespace] = None

    def _text(self, namespace: str, meter: _Meter, column: int, held: int, groups: Sequence[Group]) -> str:
        limit = meter.limits[column]
        asked = sum(_asked(cls, column) * count for cls, count in groups)
        name = GPUS if column == GPU else self._resources.names[column]
        where = f" in {meter.domain}" if meter.domain else ""
        amounts = f"{_readable(column, held)} of {_readable(column, limit)} {name} in use"
        more = f"{_readable(column, asked)} more asked"
        never = ", which it can never grant" if asked > limit else ""
        return f"Quota of namespace {namespace}{where}: {amounts}, {more}{never}."


def _short(meter: _Meter, held: Mapping[int, int], groups: Sequence[Group]) -> tuple[list[int], bool]:
    """Return the columns of which too little is left, and whether there will never be enough."""
    short: list[int] = []
    never = False
    for column, limit in meter.limits.items():
        asked = sum(_asked(cls, column) * count for cls, count in groups)
        if asked and asked > limit - _held(held, column):
            short.append(column)
            never |= asked > limit and not meter.domain
    return short, never


def _cap(
    meter: _Meter, held: Mapping[int, int], short: Sequence[int], group: Group, running: int, *, whole: bool
) -> Cap | None:
    """Return how many pods of a group may go to the quota's domain; ``whole``: all of them or none."""
    cls, count = group
    amounts = [(column, amount) for column in short if (amount := _asked(cls, column))]
    if not amounts:
        return None
    now = min(max(0, meter.limits[column] - _held(held, column)) // amount for column, amount in amounts)
    ever = min(meter.limits[column] // amount for column, amount in amounts)
    total = count + running
    if whole:
        return Cap(meter.domain, 0, NO_LIMIT if ever >= total else 0, NodeReason.QUOTA)
    return Cap(meter.domain, NO_LIMIT if now >= count else now, NO_LIMIT if ever >= total else ever, NodeReason.QUOTA)


def _asked(cls: PodClass, column: int) -> int:
    """Return what a pod asks of a resource as limits are kept: GPUs in thousandths, shares of them included."""
    return WHOLE * cls.gpus + cls.share if column == GPU else cls.amount(column)


def _held(held: Mapping[int, int], column: int) -> int:
    """Return the same of what pods hold."""
    if column == GPU:
        return WHOLE * held.get(GPU, 0) + held.get(GPU_SHARE, 0)
    return held.get(column, 0)


def _readable(column: int, amount: int) -> str:
    if column == GPU:
        return f"{amount / WHOLE:.10g}"
    if column == CPU:
        return f"{amount / 1000:g}"
    return f"{amount / 2**30:.6g}Gi" if column == MEMORY else str(amount)
