"""PodGroups: what is known of them, whichever API they come from, and which of the APIs there are.

All facts here come from the API server. A PodGroup whose fields make no sense is kept with its problem, so that the
pods that name it can say why they wait.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import msgspec

from topo_scheduler.api.annotations import MAX_GANG
from topo_scheduler.api.groups import MOST_SPEC_BYTES, PLURAL, TOO_LONG, GroupApi, PodGroupObject
from topo_scheduler.api.selectors import LabelSelector
from topo_scheduler.api.words import clipped, quoted
from topo_scheduler.state.selectors import EVERYTHING, Selector, SelectorError, compile_selector


class Serving(StrEnum):
    """What is known of an API."""

    UNKNOWN = "unknown"
    """Not asked for yet, or its PodGroups are not listed yet."""
    ABSENT = "absent"
    LISTED = "listed"


class Disruption(StrEnum):
    """What may be evicted of a group at a time."""

    POD = "pod"
    GANG = "gang"


@dataclass(frozen=True, slots=True)
class GroupKey:
    """Which PodGroup. Two APIs may each have one of the same name."""

    api: GroupApi
    namespace: str
    name: str

    @property
    def id(self) -> str:
        """The identity of the gang, as it is written on its pods."""
        return f"{self.namespace}/{PLURAL}.{self.api}/{self.name}"

    @property
    def said(self) -> str:
        """The name in messages."""
        return f"PodGroup {self.namespace}/{self.name} of {self.api}"

    @classmethod
    def parse(cls, id_: str) -> "GroupKey | None":
        """Return the key of an identity; None where it is that of a gang without a PodGroup."""
        namespace, _, rest = id_.partition("/")
        kind, _, name = rest.partition("/")
        plural, _, api = kind.partition(".")
        if plural != PLURAL or not name or api not in set(GroupApi):
            return None
        return cls(GroupApi(api), namespace, name)


@dataclass(frozen=True, slots=True)
class SubgroupPolicy:
    """Pods of a group that are put into subgroups: those selected, by the values that they have of some labels."""

    name: str
    selector: Selector = EVERYTHING
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LabelledSubgroups:
    """Subgroups that labels of pods tell, each of which must be below one switch of a tier at most (1: a leaf)."""

    policies: tuple[SubgroupPolicy, ...]
    tiers: int

    def name(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        """Return the name of the subgroup of a pod, by the first policy that it is for; empty for none."""
        for policy in self.policies:
            if policy.selector.matches(labels) and all(labels.get(key) for key in policy.keys):
                return (policy.name, *(labels[key] for key in policy.keys))
        return ()


@dataclass(frozen=True, slots=True)
class PodGroup:
    """What a PodGroup asks for.

    ``version`` of its API; ``minimum`` pods that must be placed at once; ``gang`` False for a group of which each pod
    is placed for itself; ``priority`` None where it is that of its pods; ``level_key`` node label of which all pods
    must share the value; ``tiers`` highest tier of switches they must share (1: a leaf), 0 for none; ``subgroups`` of
    which each must share a tier of its own; ``scheduled`` its condition PodGroupScheduled, None where it has none;
    ``problem`` why its pods can't be placed.
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

    def asks_as(self, other: "PodGroup") -> bool:
        """Whether another asks for the same; its condition does not count."""
        return self._asked() == other._asked()

    def _asked(self) -> tuple[object, ...]:
        return (
            self.key,
            self.uid,
            self.minimum,
            self.gang,
            self.priority,
            self.disruption_mode,
            self.level_key,
            self.tiers,
            self.subgroups,
            self.problem,
        )


MOST_POLICIES: Final = 64
"""Subgroup policies of a PodGroup: each pod is compared with them."""
MOST_PROBLEM_CHARACTERS: Final = 400
"""Of what is said of a field, which may quote it."""


class _FieldProblem(Exception):
    """A field that can't be read."""


def read_group(api: GroupApi, version: str, obj: PodGroupObject) -> PodGroup:
    """Make sense of a PodGroup. Never raises: what is wrong becomes its ``problem``."""
    key = GroupKey(api, obj.metadata.namespace, obj.metadata.name)
    about = {"key": key, "uid": obj.metadata.uid, "version": version}
    try:
        if isinstance(size := obj.spec.get(TOO_LONG), int):
            most = f"{MOST_SPEC_BYTES:,}"
            raise _FieldProblem(f"spec has {size} bytes, the scheduler reads at most {most}; make it shorter")
        asked = _native(obj) if api is GroupApi.NATIVE else _other(api, obj)
    except _FieldProblem as error:
        problem = f"{key.said}: {clipped(str(error), MOST_PROBLEM_CHARACTERS)}"
        return PodGroup(**about, problem=problem)  # type: ignore[arg-type]
    return PodGroup(**about, **asked)  # type: ignore[arg-type]


def _native(obj: PodGroupObject) -> dict[str, Any]:
    """scheduling.k8s.io: exactly one policy, gang or basic; one topology key at most."""
    if obj.spec.get("parentCompositePodGroupName"):
        raise _FieldProblem("spec.parentCompositePodGroupName: this scheduler does not know composite pod groups")
    policy = _mapping(obj.spec, "schedulingPolicy", "spec")
    gang = policy.get("gang")
    keys = [
        _text(one, "key", "spec.schedulingConstraints.topology[]")
        for one in _list(_mapping(obj.spec, "schedulingConstraints", "spec"), "topology", "spec.schedulingConstraints")
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
    """The PodGroups of scheduler-plugins and of Volcano: ``minMember``, of which none is as good as one."""
    minimum = _number(obj.spec, "minMember", "spec", low=0) if "minMember" in obj.spec else 1
    asked: dict[str, Any] = {"minimum": max(1, minimum)}
    if api is GroupApi.VOLCANO:
        asked["tiers"] = _tiers(_mapping(obj.spec, "networkTopology", "spec"), "spec.networkTopology")
        asked["subgroups"] = _subgroups(obj.spec)
    return asked


def _subgroups(spec: Mapping[str, Any]) -> LabelledSubgroups | None:
    """Volcano: of each policy the pods it selects, by the values of its keys, below one switch of at most a tier.

    Policies that ask for no tier, or only would like it, put nobody together. Sizes are not read: a gang is placed
    whole, and so are its subgroups.
    """
    found: list[tuple[SubgroupPolicy, int]] = []
    policies = _list(spec, "subGroupPolicy", "spec")
    if len(policies) > MOST_POLICIES:
        raise _FieldProblem(
            f"spec.subGroupPolicy has {len(policies)} entries, the scheduler reads at most {MOST_POLICIES}"
        )
    for number, one in enumerate(policies):
        path = f"spec.subGroupPolicy[{number}]"
        tiers = _tiers(_mapping(one, "networkTopology", path), f"{path}.networkTopology")
        keys = _list(one, "matchLabelKeys", path)
        if not all(isinstance(key, str) and key for key in keys):
            raise _FieldProblem(f"{path}.matchLabelKeys: {quoted(keys)} is not a list of label keys")
        selected = _mapping(one, "labelSelector", path)
        try:
            selector = compile_selector(msgspec.convert(selected, LabelSelector)) if selected else EVERYTHING
        except (msgspec.ValidationError, SelectorError) as error:
            raise _FieldProblem(f"{path}.labelSelector: {error}") from None
        found.append((SubgroupPolicy(_text(one, "name", path), selector, tuple(keys)), tiers))
    asked = {tiers for _, tiers in found if tiers}
    if len(asked) > 1:
        raise _FieldProblem("spec.subGroupPolicy: this scheduler understands one highestTierAllowed for all subgroups")
    # The first policy that is for a pod holds, whether it asks for anything or not.
    if asked and any(not tiers for _, tiers in found):
        raise _FieldProblem(
            "spec.subGroupPolicy: this scheduler understands subgroups only where all of them have a networkTopology of"
            " mode hard with highestTierAllowed, or none"
        )
    return LabelledSubgroups(tuple(policy for policy, _ in found), asked.pop()) if asked else None


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
    # v1alpha2 writes a word; a union with one field set says the same.
    said = next(iter(mode), "") if isinstance(mode, Mapping) else mode
    return Disruption.GANG if str(said).lower() in ("podgroup", "all") else Disruption.POD


def _condition(status: Mapping[str, Any]) -> bool | None:
    for one in status.get("conditions") or ():
        if isinstance(one, Mapping) and one.get("type") == "PodGroupScheduled":
            return one.get("status") == "True"
    return None


def _priority(spec: Mapping[str, Any]) -> int | None:
    value = spec.get("priority")
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise _FieldProblem(f"spec.priority: {quoted(value)} is not a whole number")
    return value


def _number(where: Mapping[str, Any], name: str, path: str, low: int = 1) -> int:
    value = where.get(name) if isinstance(where, Mapping) else None
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= MAX_GANG:
        raise _FieldProblem(f"{path}.{name}: {quoted(value)} is not a whole number from {low} to {MAX_GANG}")
    return value


def _text(where: object, name: str, path: str) -> str:
    value = where.get(name, "") if isinstance(where, Mapping) else None
    if not isinstance(value, str):
        raise _FieldProblem(f"{path}.{name}: {quoted(value)} is not a string")
    return value


def _mapping(where: object, name: str, path: str) -> Mapping[str, Any]:
    if not isinstance(where, Mapping):
        raise _FieldProblem(f"{path}: {quoted(where)} is not an object")
    value = where.get(name) or {}
    if not isinstance(value, Mapping):
        raise _FieldProblem(f"{path}.{name}: {quoted(value)} is not an object")
    return value


def _list(where: Mapping[str, Any], name: str, path: str) -> list[Any]:
    value = where.get(name) or []
    if not isinstance(value, list):
        raise _FieldProblem(f"{path}.{name}: {quoted(value)} is not a list")
    return value


@dataclass(slots=True)
class Groups:
    """All PodGroups, and which APIs are served.

    ``levels`` maps a node label to the level of the fabric it tells. Without further facts no API is served.
    """

    levels: Mapping[str, str] = field(default_factory=dict)
    _known: dict[GroupKey, PodGroup] = field(default_factory=dict)
    _serving: dict[GroupApi, tuple[Serving, float]] = field(default_factory=dict)
    _served: set[GroupApi] = field(default_factory=set)
    """APIs of which PodGroups were listed once, by an earlier leader too: pods that name one are members of it."""
    _wondered: bool = False

    def __iter__(self) -> Iterator[PodGroup]:
        return iter(self._known.values())

    def get(self, key: GroupKey) -> PodGroup | None:
        """Return a PodGroup."""
        return self._known.get(key)

    def put(self, group: PodGroup) -> bool:
        """Take over a PodGroup that appeared or changed; return whether it asks for something new."""
        before = self._known.get(group.key)
        self._known[group.key] = group
        self._served.add(group.key.api)
        return before is None or not before.asks_as(group)

    def drop(self, key: GroupKey, uid: str = "") -> bool:
        """Forget a PodGroup; one that was made anew under the name since stays."""
        known = self._known.get(key)
        if known is None or (uid and known.uid != uid):
            return False
        del self._known[key]
        return True

    def serve(self, api: GroupApi, serving: Serving, asked: float) -> None:
        """Take over what is known of an API.

        Args:
            api: which.
            serving: what is known.
            asked: when it was asked for, in seconds.
        """
        self._serving[api] = (serving, asked)
        if serving is Serving.LISTED:
            self._served.add(api)

    def remember(self, api: GroupApi) -> None:
        """Note that PodGroups of an API were listed once."""
        self._served.add(api)

    def was_served(self, api: GroupApi) -> bool:
        """Return whether PodGroups of an API were listed once, or one was seen."""
        return api in self._served

    def serving(self, api: GroupApi, since: float) -> Serving:
        """Return what is known of an API to a pod that was first seen at ``since``.

        An answer that is older than the pod says nothing of a definition that was made just before the pod: then it is
        unknown, and worth asking again.
        """
        serving, asked = self._serving.get(api, (Serving.ABSENT, float("inf")))
        if serving is Serving.ABSENT and asked < since:
            self._wondered = True
            return Serving.UNKNOWN
        return serving

    def take_wondered(self) -> bool:
        """Return whether it should be asked again which APIs there are, since the last call."""
        wondered, self._wondered = self._wondered, False
        return wondered
