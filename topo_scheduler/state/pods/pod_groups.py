"""PodGroups of all supported APIs, and which of these APIs the API server serves.

All facts here come from the API server. A PodGroup with invalid fields is kept with its problem, so that the events
of its pods can report why they are pending.
"""

from collections.abc import Iterator, Mapping
from dataclasses import InitVar, dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

import msgspec

from topo_scheduler.api.annotations import MAX_GANG_PODS
from topo_scheduler.api.groups import MAX_SPEC_BYTES, PLURAL, TOO_DEEP, TOO_LONG, GroupApi, PodGroupObject
from topo_scheduler.api.selectors import LabelSelector
from topo_scheduler.api.text import clipped, quoted
from topo_scheduler.state.pods.selectors import EVERYTHING, Selector, SelectorError, compile_selector
from topo_scheduler.state.tenant_memory import MAX_TENANT_BYTES, MemoryOfKind, TenantMemory


class Serving(StrEnum):
    """Whether the API server serves an API."""

    UNKNOWN = "unknown"
    """The scheduler has not asked yet, or has not listed its PodGroups yet."""
    ABSENT = "absent"
    LISTED = "listed"


class Disruption(StrEnum):
    """Which pods of a group are evicted together."""

    POD = "pod"
    GANG = "gang"


@dataclass(frozen=True, slots=True)
class GroupKey:
    """Identity of a PodGroup. Two APIs may each have one of the same name."""

    api: GroupApi
    namespace: str
    name: str

    @property
    def id(self) -> str:
        """Identity of the gang, as the scheduler writes it on its pods."""
        return f"{self.namespace}/{PLURAL}.{self.api}/{self.name}"

    @property
    def described(self) -> str:
        """The name in messages."""
        return f"PodGroup {self.namespace}/{self.name} of {self.api}"

    @classmethod
    def parse(cls, id_: str) -> "GroupKey | None":
        """Return the key of an identity; None for the identity of a gang without a PodGroup."""
        namespace, _, qualified_name = id_.partition("/")
        kind, _, name = qualified_name.partition("/")
        plural, _, api = kind.partition(".")
        if plural != PLURAL or not name or api not in set(GroupApi):
            return None
        return cls(GroupApi(api), namespace, name)


@dataclass(frozen=True, slots=True)
class SubgroupPolicy:
    """Rule that divides the selected pods of a group into subgroups, by their values of the labels ``keys``."""

    name: str
    selector: Selector = EVERYTHING
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LabelledSubgroups:
    """Subgroups by pod labels. Each must be below one switch of at most tier ``tiers`` (1: a leaf)."""

    policies: tuple[SubgroupPolicy, ...]
    tiers: int

    def name(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        """Return the name of a pod's subgroup by the first policy that applies to the pod; empty for none."""
        for policy in self.policies:
            if policy.selector.matches(labels) and all(labels.get(key) for key in policy.keys):
                return (policy.name, *(labels[key] for key in policy.keys))
        return ()


@dataclass(frozen=True, slots=True)
class PodGroup:
    """The request of a PodGroup.

    ``version`` is that of its API. ``minimum`` is the number of pods that must be placed at once. ``gang`` is False
    for a group whose pods are placed singly. ``priority`` is None where the priority of its pods counts.

    ``level_key`` is the node label whose value all pods must share. ``tiers`` is the highest tier of switches that
    they must share (1: a leaf), 0 for none. Each of ``subgroups`` must share a tier of its own. ``scheduled`` is its
    condition PodGroupScheduled, None without one. ``problem`` is why its pods can't be placed.
    """

    key: GroupKey
    uid: str
    version: str
    minimum: int = 1
    gang: bool = True
    priority: int | None = None
    disruption_mode: Disruption = Disruption.POD
    level_key: str = ""
    tiers: int = 0
    subgroups: LabelledSubgroups | None = None
    scheduled: bool | None = None
    problem: str = ""

    def has_same_request_as(self, other: "PodGroup") -> bool:
        """Whether another PodGroup has the same request; its condition and the version of its API do not count."""
        return self == replace(other, version=self.version, scheduled=self.scheduled)


MAX_POLICIES: Final = 64
"""Subgroup policies of a PodGroup: each pod is compared with all of them."""
ORDINARY_GROUP_BYTES: Final = 4_096
"""Memory in bytes up to which a PodGroup is always kept whole."""
MAX_GROUP_BYTES_OF_NAMESPACE: Final = 4 * 2**20
"""Memory of all larger PodGroups of one namespace in bytes."""
_POLICY_BYTES: Final = 512
_KEY_BYTES: Final = 64
"""Memory of a subgroup policy, and of one label key of it, in addition to characters: measured, and rounded up."""
_TOO_MANY: Final = (
    f"the PodGroups of its namespace take more than {MAX_GROUP_BYTES_OF_NAMESPACE:,} bytes of memory, or it takes most"
    f" of the {MAX_TENANT_BYTES:,} bytes for all namespaces; delete PodGroups that are not used, then create it again"
)
MAX_PROBLEM_CHARACTERS: Final = 400
"""Characters of the message on an invalid field, which may quote the field."""


class _FieldProblem(Exception):
    """A field that can't be read."""


def read_group(api: GroupApi, version: str, obj: PodGroupObject) -> PodGroup:
    """Read a PodGroup. Never raises: an invalid field becomes its ``problem``."""
    key = GroupKey(api, obj.metadata.namespace, obj.metadata.name)
    identity = {"key": key, "uid": obj.metadata.uid, "version": version}
    try:
        if isinstance(size := obj.spec.get(TOO_LONG), int):
            limit = f"{MAX_SPEC_BYTES:,}"
            raise _FieldProblem(f"spec has {size} bytes, the scheduler reads at most {limit}; make it shorter")
        if isinstance(levels := obj.spec.get(TOO_DEEP), int):
            raise _FieldProblem(
                f"spec is nested more than {levels} levels deep, the scheduler reads no more; flatten it"
            )
        fields = _native(obj) if api is GroupApi.NATIVE else _other(api, obj)
    except _FieldProblem as error:
        problem = f"{key.described}: {clipped(str(error), MAX_PROBLEM_CHARACTERS)}"
        return PodGroup(**identity, problem=problem)  # type: ignore[arg-type]
    return PodGroup(**identity, **fields)  # type: ignore[arg-type]


def _native(obj: PodGroupObject) -> dict[str, Any]:
    """scheduling.k8s.io: exactly one policy, gang or basic; one topology key at most."""
    if obj.spec.get("parentCompositePodGroupName"):
        raise _FieldProblem("spec.parentCompositePodGroupName: this scheduler does not know composite pod groups")
    policy = _mapping(obj.spec, "schedulingPolicy", "spec")
    gang = policy.get("gang")
    keys = [
        _text(constraint, "key", "spec.schedulingConstraints.topology[]")
        for constraint in _list(
            _mapping(obj.spec, "schedulingConstraints", "spec"), "topology", "spec.schedulingConstraints"
        )
    ]
    if len(keys) > 1:
        raise _FieldProblem("spec.schedulingConstraints.topology: this scheduler understands one key only")
    if gang is None and keys:
        raise _FieldProblem("spec.schedulingConstraints: this scheduler understands it for the policy gang only")
    return {
        "minimum": _number(policy["gang"], "minCount", "spec.schedulingPolicy.gang") if gang is not None else 1,
        "gang": gang is not None,
        "priority": _priority(obj.spec),
        "disruption_mode": _disruption(obj.spec.get("disruptionMode")),
        "level_key": keys[0] if keys else "",
        "scheduled": _condition(obj.status),
    }


def _other(api: GroupApi, obj: PodGroupObject) -> dict[str, Any]:
    """The PodGroups of scheduler-plugins and of Volcano: ``minMember``, where 0 counts as 1."""
    minimum = _number(obj.spec, "minMember", "spec", low=0) if "minMember" in obj.spec else 1
    fields: dict[str, Any] = {"minimum": max(1, minimum)}
    if api is GroupApi.VOLCANO:
        fields["tiers"] = _tiers(_mapping(obj.spec, "networkTopology", "spec"), "spec.networkTopology")
        fields["subgroups"] = _subgroups(obj.spec)
    return fields


def _subgroups(spec: Mapping[str, Any]) -> LabelledSubgroups | None:
    """Volcano: pods that a policy selects form subgroups by the values of its keys, each below one switch of a tier.

    Policies without a tier, or of mode soft, group no pods. Sizes are not read: the scheduler places a gang whole,
    and so its subgroups.
    """
    policies: list[tuple[SubgroupPolicy, int]] = []
    entries = _list(spec, "subGroupPolicy", "spec")
    if len(entries) > MAX_POLICIES:
        raise _FieldProblem(
            f"spec.subGroupPolicy has {len(entries)} entries, the scheduler reads at most {MAX_POLICIES}"
        )
    for number, entry in enumerate(entries):
        path = f"spec.subGroupPolicy[{number}]"
        tiers = _tiers(_mapping(entry, "networkTopology", path), f"{path}.networkTopology")
        keys = _list(entry, "matchLabelKeys", path)
        if not all(isinstance(key, str) and key for key in keys):
            raise _FieldProblem(f"{path}.matchLabelKeys: {quoted(keys)} is not a list of label keys")
        selected = _mapping(entry, "labelSelector", path)
        try:
            selector = compile_selector(msgspec.convert(selected, LabelSelector)) if selected else EVERYTHING
        except (msgspec.ValidationError, SelectorError) as error:
            raise _FieldProblem(f"{path}.labelSelector: {error}") from None
        policies.append((SubgroupPolicy(_text(entry, "name", path), selector, tuple(keys)), tiers))
    tiers_requested = {tiers for _, tiers in policies if tiers}
    if len(tiers_requested) > 1:
        raise _FieldProblem("spec.subGroupPolicy: this scheduler understands one highestTierAllowed for all subgroups")
    # The first policy that applies to a pod counts, with or without a tier.
    if tiers_requested and any(not tiers for _, tiers in policies):
        raise _FieldProblem(
            "spec.subGroupPolicy: this scheduler understands subgroups only where all of them have a networkTopology of"
            " mode hard with highestTierAllowed, or none"
        )
    return (
        LabelledSubgroups(tuple(policy for policy, _ in policies), tiers_requested.pop()) if tiers_requested else None
    )


def _tiers(topology: Mapping[str, Any], path: str) -> int:
    """Volcano: in mode hard, the default, all pods must be below one switch of at most this tier."""
    mode = topology.get("mode", "hard")
    if mode not in ("hard", "soft"):
        raise _FieldProblem(f"{path}.mode: {quoted(mode)} is neither hard nor soft")
    if not topology or mode == "soft":
        return 0
    if "highestTierName" in topology:
        raise _FieldProblem(f"{path}.highestTierName: this scheduler does not know it; write highestTierAllowed")
    if "highestTierAllowed" not in topology:
        return 0
    return _number(topology, "highestTierAllowed", path)


def _disruption(mode: object) -> Disruption:
    # v1alpha2 has a string; later versions have a union with one field set.
    mode_name = next(iter(mode), "") if isinstance(mode, Mapping) else mode
    return Disruption.GANG if str(mode_name).lower() in ("podgroup", "all") else Disruption.POD


def _condition(status: Mapping[str, Any]) -> bool | None:
    for condition in status.get("conditions") or ():
        if isinstance(condition, Mapping) and condition.get("type") == "PodGroupScheduled":
            return condition.get("status") == "True"
    return None


def _priority(spec: Mapping[str, Any]) -> int | None:
    value = spec.get("priority")
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise _FieldProblem(f"spec.priority: {quoted(value)} is not a whole number")
    return value


def _number(parent: Mapping[str, Any], name: str, path: str, low: int = 1) -> int:
    value = parent.get(name) if isinstance(parent, Mapping) else None
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= MAX_GANG_PODS:
        raise _FieldProblem(f"{path}.{name}: {quoted(value)} is not a whole number from {low} to {MAX_GANG_PODS}")
    return value


def _text(parent: object, name: str, path: str) -> str:
    value = parent.get(name, "") if isinstance(parent, Mapping) else None
    if not isinstance(value, str):
        raise _FieldProblem(f"{path}.{name}: {quoted(value)} is not a string")
    return value


def _mapping(parent: object, name: str, path: str) -> Mapping[str, Any]:
    if not isinstance(parent, Mapping):
        raise _FieldProblem(f"{path}: {quoted(parent)} is not an object")
    value = parent.get(name) or {}
    if not isinstance(value, Mapping):
        raise _FieldProblem(f"{path}.{name}: {quoted(value)} is not an object")
    return value


def _list(parent: Mapping[str, Any], name: str, path: str) -> list[Any]:
    value = parent.get(name) or []
    if not isinstance(value, list):
        raise _FieldProblem(f"{path}.{name}: {quoted(value)} is not a list")
    return value


@dataclass(slots=True)
class Groups:
    """All PodGroups, and which APIs are served.

    ``levels`` maps a node label to its level of the fabric. By default no API is served.
    """

    levels: Mapping[str, str] = field(default_factory=dict)
    _known: dict[GroupKey, PodGroup] = field(default_factory=dict)
    _serving: dict[GroupApi, tuple[Serving, float]] = field(default_factory=dict)
    _served: set[GroupApi] = field(default_factory=set)
    """APIs whose PodGroups this or an earlier leader has listed: pods that name a PodGroup of one are its members."""
    _refresh_wanted: bool = False
    memory: InitVar[TenantMemory | None] = None
    _memory: MemoryOfKind = field(init=False)

    def __post_init__(self, memory: TenantMemory | None) -> None:
        self._memory = (memory or TenantMemory(MAX_TENANT_BYTES)).kind(MAX_GROUP_BYTES_OF_NAMESPACE)

    def __iter__(self) -> Iterator[PodGroup]:
        return iter(self._known.values())

    def get(self, key: GroupKey) -> PodGroup | None:
        """Return a PodGroup."""
        return self._known.get(key)

    def put(self, group: PodGroup) -> bool:
        """Store a PodGroup that appeared or changed; return whether its request is new or changed.

        Pods of a large PodGroup beyond the budget of its namespace can't be placed.
        """
        previous = self._known.get(group.key)
        if not self._memory.put(group.key.namespace, group.key, _counted_bytes(group)):
            group = _refused(group)
        self._known[group.key] = group
        self._served.add(group.key.api)
        return previous is None or not previous.has_same_request_as(group)

    def drop(self, key: GroupKey, uid: str = "") -> bool:
        """Remove a PodGroup; one that was created again under the same name, with another uid, stays."""
        known = self._known.get(key)
        if known is None or (uid and known.uid != uid):
            return False
        del self._known[key]
        self._memory.drop(key.namespace, key)
        return True

    def refuse_lost(self) -> list[GroupKey]:
        """Refuse the pods of PodGroups that lost their room in memory since the last call; return these PodGroups."""
        refused: list[GroupKey] = []
        for _, key in self._memory.take_lost():
            assert isinstance(key, GroupKey)
            if (group := self._known.get(key)) is not None:
                self._known[key] = _refused(group)
                refused.append(key)
        return refused

    def serve(self, api: GroupApi, serving: Serving, asked_at: float) -> None:
        """Record whether an API is served.

        Args:
            api: the API.
            serving: whether it is served.
            asked_at: when the scheduler sent the request for it, in seconds.
        """
        self._serving[api] = (serving, asked_at)
        if serving is Serving.LISTED:
            self._served.add(api)

    def remember(self, api: GroupApi) -> None:
        """Note that PodGroups of an API were listed once."""
        self._served.add(api)

    def was_served(self, api: GroupApi) -> bool:
        """Return whether PodGroups of an API were listed once, or one was seen."""
        return api in self._served

    def serving(self, api: GroupApi, since: float) -> Serving:
        """Return whether an API is served, for a pod that was first seen at ``since``.

        An answer older than the pod does not cover a definition that was created just before the pod. The API is then
        unknown, and the scheduler should ask again.
        """
        serving, asked_at = self._serving.get(api, (Serving.ABSENT, float("inf")))
        if serving is Serving.ABSENT and asked_at < since:
            self._refresh_wanted = True
            return Serving.UNKNOWN
        return serving

    def take_wondered(self) -> bool:
        """Return whether a pod since the last call needs a fresh list of the served APIs."""
        refresh_wanted, self._refresh_wanted = self._refresh_wanted, False
        return refresh_wanted


def _refused(group: PodGroup) -> PodGroup:
    """Return a PodGroup without room as it is kept."""
    problem = f"{group.key.described}: {_TOO_MANY}"
    return PodGroup(group.key, group.uid, group.version, scheduled=group.scheduled, problem=problem)


def _counted_bytes(group: PodGroup) -> int:
    """Return the approximate memory of a large PodGroup in bytes, 0 for an ordinary one."""
    if group.subgroups is None and len(group.level_key) <= ORDINARY_GROUP_BYTES:
        return 0
    policies = group.subgroups.policies if group.subgroups is not None else ()
    size = len(group.level_key) + sum(
        _POLICY_BYTES
        + len(policy.name)
        + sum(_KEY_BYTES + len(key) for key in policy.keys)
        + policy.selector.memory_bytes
        for policy in policies
    )
    return size if size > ORDINARY_GROUP_BYTES else 0
