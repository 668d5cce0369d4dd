"""Objects of every kind that tenants write, as JSON with extreme values: more than an API server would take."""

import random
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import inspect

from topo_scheduler.api import annotations as known
from topo_scheduler.api.groups import PLUGINS_LABEL, SIGS_LABEL, VOLCANO_ANNOTATIONS
from topo_scheduler.api.labels import PREFIX

Json = Any
RAW: Final = "\x01raw:"
"""Begins strings that are written into the JSON as they stand, without quotes."""

_OURS: Final = tuple(
    value
    for value in vars(known).values()
    if isinstance(value, str) and value.startswith(PREFIX) and value not in (PREFIX, known.GANG_COMPLETE)
)
TEXTS: Final = (
    "",
    " ",
    "x" * 9_000,
    "\u0000",
    "a\nlevel=error msg=forged",
    "\x1b[31mred",
    "\ufeffbom",
    "\u202e\u200f",
    RAW + r'"\ud800"',
    RAW + r'"\udc00\ud800"',
    "/",
    "..",
    "a/b/c/d",
    "%s%d{}{0}",
    "é" * 40,
    "\U0001f600",
    "None",
    "1e400",
    "-1",
    "0",
    "null",
    "9" * 5_000,
    "İı\u0130ß",
    "\u0661\u0662",
    "²",
)
NUMBERS: Final = (0, -1, 1, 2**31 - 1, -(2**31), 2**53, 2**63 - 1, -(2**63), 10**6)
ODD_NUMBERS: Final = tuple(RAW + text for text in ("-0", "1E5", "1e400", "1e-400", "9" * 300, "0.1", "1e308", "2e20"))
QUANTITIES: Final = (
    "0",
    "1",
    "2",
    "100m",
    "0.1n",
    "1e-400",
    "1E999",
    "99999999999999999999Ei",
    "-1",
    "-0",
    "+5",
    "1e3",
    "0.5",
    ".5",
    "5.",
    "9" * 60,
    "9" * 5_000,
    "1Gi\n",
    "\u0661",
    "1 Gi",
    "",
    "Ei",
    "1e",
    "NaN",
    "inf",
)
TIMES: Final = (
    "0000-00-00T00:00:00Z",
    "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:59Z",
    "9999-12-31T23:59:59-23:59",
    "0001-01-01T00:00:00+23:59",
    "2026-01-01T00:00:00.123456789Z",
    "2026-01-01T00:00:00.123456789+05:30",
    "2026-01-01T00:00:60Z",
    "1900-01-01T00:00:00Z",
    "2262-04-12T00:00:00Z",
    "2024-02-29T24:00:00Z",
    "2023-11-14T22:13:20Z",
    "2023-11-14",
    "now",
    "",
)
POOLS: Final[Mapping[str, tuple[str, ...]]] = {
    "name": ("a", "b", "c", "n0", "n1", "gpus", "devices"),
    "namespace": ("hostile",),
    "uid": ("u0", "u1", "u2", "", "a\nb"),
    "operator": ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Equal", "", "in"),
    "effect": ("NoSchedule", "PreferNoSchedule", "NoExecute", "", "Any"),
    "key": ("kubernetes.io/hostname", PREFIX + "leaf", "app", "a b", "", "metadata.name"),
    "topologyKey": ("kubernetes.io/hostname", PREFIX + "leaf", PREFIX + "spine", "", "zone"),
    "whenUnsatisfiable": ("DoNotSchedule", "ScheduleAnyway", ""),
    "nodeAffinityPolicy": ("Honor", "Ignore", "x"),
    "nodeTaintsPolicy": ("Honor", "Ignore", "x"),
    "phase": (
        "Pending",
        "Running",
        "Succeeded",
        "Failed",
        "Unknown",
        "Planned",
        "Reserving",
        "Evicting",
        "Placing",
        "",
    ),
    "type": ("PodScheduled", known.GANG_COMPLETE, "Ready", "Complete", "Failed", "PodGroupScheduled", "Scheduled"),
    "status": ("True", "False", "Unknown", ""),
    "reason": ("Unschedulable", "SchedulingGated", "Requested", "NodeNotReady", "PendingGang", ""),
    "restartPolicy": ("Always", "Never", "OnFailure", ""),
    "preemptionPolicy": ("Never", "PreemptLowerPriority", ""),
    "schedulerName": ("topology-aware-scheduler",),
    "deviceClassName": ("gpu", "none", ""),
    "allocationMode": ("ExactCount", "All", "", "x"),
    "driver": ("gpu.example.com", "d.example.com", ""),
    "pool": ("s1-l1-1", "s1-l1-2", ""),
    "device": ("gpu-0", "gpu-1", ""),
    "request": ("gpus", "gpus/a", "", "/"),
    "requests": ("gpus", "gpus/a", "", "/"),
    "matchAttribute": ("gpu.example.com/numa", "numa", "", "/"),
    "distinctAttribute": ("gpu.example.com/numa", "numa", "", "/"),
    "expression": (
        "device.driver == 'gpu.example.com'",
        "device.attributes['gpu.example.com'].numa == 9223372036854775807 + 1",
        "-9223372036854775808 / -1 == 1",
        "device.capacity['gpu.example.com'].memory.compareTo(quantity('1e-400')) > 0",
        "device.attributes['gpu.example.com'].numa % 0 == 0",
        "'\\ud800' == ''",
        "(" * 400,
        "!" * 3_000 + "true",
        "[1].all(x, " * 30 + "true" + ")" * 30,
        "device.driver.matches('(a*)*b')",
        "1e999 > 1.0",
        "semver('99999999999999999999.0.0').major() == 1",
        "true",
        "b'\\xff' == b''",
        "int(double('1e300')) == 1",
        "duration('9999999999h') == duration('1s')",
        "timestamp('9999-12-31T23:59:59-23:59') > timestamp('0001-01-01T00:00:00Z')",
        "",
    ),
    "nodeName": ("s1-l1-1", "s1-l1-2", "missing", ""),
    "nominatedNodeName": ("s1-l1-1", "missing", ""),
    "claimName": ("a", "b", "missing"),
    "resourceClaimName": ("a", "b", "c", "missing", ""),
    "resourceClaimTemplateName": ("t", ""),
    "storageClassName": ("fast", ""),
    "volumeName": ("v", ""),
    "completionMode": ("Indexed", "NonIndexed", ""),
    "failedIndexes": ("1,3-5", "5-1", "-", "0-999999999", "²-³", "1-2-3", ","),
    "kind": ("Job", "Pod", "ReplicaSet", "PodGroup", "Widget", ""),
    "apiVersion": ("batch/v1", "v1", "apps/v1", "a/b/c", "/", ""),
    "resourceVersion": ("1", "x-9", "", "²", "-1", "9" * 400),
    "from": ("s1-l1-1", "missing"),
    "to": ("s1-l1-2", "missing"),
    "protocol": ("TCP", "UDP", ""),
    "hostIP": ("", "0.0.0.0", "::", "x"),
}
OBJECT_BYTES: Final = 1_000_000
"""About as many as etcd takes."""
LONG_LIST: Final = 20_000
LONG_TEXT: Final = "ab/" * 85_000
BOUNDED: Final[Mapping[str, tuple[int, ...]]] = {
    "weight": (1, 100),
    "maxSkew": (1, 2**31 - 1),
    "minDomains": (1, 2**31 - 1),
}
"""Numbers of which API servers accept no others."""
_USUAL: Final[Mapping[str, tuple[str, ...]]] = {
    known.GPU_COUNT: ("1", "2"),
    known.GPU_FRACTION: ("0.5", "0.25"),
    known.GPU_MODEL: ("H100", "A100,H100"),
    known.GPU_LOCALITY: ("any", "same-socket"),
    known.GANG: ("true", "false"),
    known.GANG_NAME: ("a", "b"),
    known.GANG_SIZE: ("1", "2", "100000"),
    known.REQUIRED_LEVEL: ("leaf", "spine", "node"),
    known.PREFERRED_LEVEL: ("leaf", "spine", "node"),
    known.RELAX_AFTER: ("1s", "87600h"),
    known.SEGMENT_SIZE: ("1", "2"),
    known.SEGMENT_LEVEL: ("leaf", "node"),
    known.EXPECTED_DURATION: ("1s", "87600h"),
    known.PLACEMENT_STRATEGY: ("consolidated", "distributed", "balanced"),
    known.PLACEMENT: ("required", "preferred"),
    known.ON_FAILURE: ("replace", "restart-gang", "shrink"),
    known.CHECKPOINT_INTERVAL: ("1s", "87600h"),
    known.NETWORK_BANDWIDTH: ("1Gb", "100Gb"),
    known.PREFERRED_DOMAIN: ("l1", "s1/l1"),
    known.LATENCY_SENSITIVE: ("true", "false"),
    known.MOVABLE: ("true", "false"),
    known.GPU_MIN_BANDWIDTH: ("100GB",),
    known.GPU_MEMORY: ("10Gi",),
    known.MIG_PROFILE: ("1g.5gb",),
}
_RESOURCES: Final = (
    "cpu",
    "memory",
    "nvidia.com/gpu",
    "pods",
    "ephemeral-storage",
    "nvidia.com/mig-1g.5gb",
    "x/y",
    "a b",
)
_ANNOTATION_VALUES: Final = (
    *(
        "1",
        "0",
        "2",
        "-1",
        "true",
        "false",
        "leaf",
        "node",
        "5m",
        "1e3h",
        "9" * 400,
        "0.5",
        "0.0001",
        "1h" * 40,
        "H100",
    ),
    *("s1/l1", "consolidated", "required", "replace", "100Gb", "0.1n", "\u0661", "1,2,3", "0,0", "hostile/a", "²"),
)


class Generator:
    """Makes values of the types that decoders know. ``oddness`` is the share of values that no field expects."""

    def __init__(self, seed: int, oddness: float = 0.05, width: float = 0.35, bulk: float = 0.0) -> None:
        self.random = random.Random(seed)
        self._oddness = oddness
        self._width = width
        self._bulk = bulk
        self._left = 0

    def object(self, type_: type[Any], **fixed: Json) -> dict[str, Json]:
        """Return an object of a type; ``fixed`` fields are as given."""
        self._left = OBJECT_BYTES
        value = self._struct(_info(type_), 0)
        return {**value, **fixed}

    def pick(self, *values: Any) -> Any:
        """Return one of the values."""
        return self.random.choice(values)

    def annotations(self) -> dict[str, Json]:
        """Return a few annotations of ours, with values of any kind."""
        if self.random.random() < 0.5:
            names = self.random.sample(list(_USUAL), self.random.choice((0, 1, 2, 3)))
            return {name: self.pick(*_USUAL[name]) for name in names}
        names = self.random.sample(_OURS, self.random.choice((0, 0, 0, 1, 2, 8)))
        annotations = {name: self._text_of(_ANNOTATION_VALUES) for name in names}
        if self.random.random() < 0.1:
            annotations[self.pick(*VOLCANO_ANNOTATIONS)] = self._text_of(POOLS["name"])
        return annotations

    def labels(self) -> dict[str, Json]:
        """Return a few labels."""
        names = ("app", PREFIX + "leaf", PLUGINS_LABEL, SIGS_LABEL, "batch.kubernetes.io/job-completion-index")
        return {name: self._text_of(POOLS["name"]) for name in names if self.random.random() < 0.15}

    def anything(self, depth: int = 0) -> Json:
        """Return JSON of any form."""
        roll = self.random.random()
        if depth < 4 and roll < 0.3:
            return {self._key(): self.anything(depth + 1) for _ in range(self.random.randrange(4))}
        if depth < 4 and roll < 0.5:
            return [self.anything(depth + 1) for _ in range(self.random.randrange(4))]
        return self.pick(None, True, False, self.pick(*NUMBERS), self.pick(*ODD_NUMBERS), self.pick(*TEXTS), "a")

    # ------------------------------------------------------------ by type

    def _value(self, info: inspect.Type, name: str, depth: int) -> Json:
        if self.random.random() < self._oddness:
            return self.pick(None, [], {}, [None], self.anything(3))
        match info:
            case inspect.StructType():
                return self._struct(info, depth)
            case inspect.UnionType():
                if {type(part) for part in info.types} >= {inspect.StrType, inspect.IntType, inspect.FloatType}:
                    return self.pick(*QUANTITIES, *QUANTITIES[:4] * 6, 1, 2, 0.5)
                return self._value(self.pick(*info.types), name, depth)
            case inspect.ListType() | inspect.VarTupleType():
                return self._list(info.item_type, name, depth)
            case inspect.DictType():
                return self._mapping(info, name, depth)
            case inspect.IntType() if name in BOUNDED:
                return self.pick(*BOUNDED[name])
            case inspect.IntType():
                return self.pick(*NUMBERS, 1, 1, 2, 2, 3)
            case inspect.BoolType():
                return self.pick(True, False)
            case inspect.StrType():
                return self._string(name)
            case inspect.NoneType():
                return None
        return self.anything(depth)

    def _list(self, item: inspect.Type, name: str, depth: int) -> list[Json]:
        if self.random.random() >= self._bulk:
            return [self._value(item, name, depth + 1) for _ in range(self.pick(0, 1, 1, 2, 3))]
        entries: list[Json] = []
        while self._left > 0 and len(entries) < LONG_LIST:
            fresh = len(entries) < 20 or self.random.random() < 0.02
            entries.append(self._value(item, name, depth + 4) if fresh else entries[-20])
            self._left -= len(written(entries[-1])) + 1
        return entries

    def _struct(self, info: inspect.StructType, depth: int) -> dict[str, Json]:
        share = self._width if depth < 3 else self._width * 1.5
        return {
            field.encode_name: self._value(field.type, field.encode_name, depth + 1)
            for field in info.fields
            if self.random.random() < share and depth < 12
        }

    def _mapping(self, info: inspect.DictType, name: str, depth: int) -> dict[str, Json]:
        if name == "annotations":
            return self.annotations()
        if name in ("labels", "matchLabels"):
            return self.labels()
        keys = _RESOURCES if name in ("requests", "limits", "overhead", "allocatedResources", "capacity") else ()
        count = self.random.randrange(4)
        if self.random.random() < self._bulk:
            self._left -= 40_000
            return {f"k{number}": self._value(info.value_type, "", depth + 4) for number in range(2_000)}
        names = [self.pick(*keys) if keys and self.random.random() < 0.9 else self._key() for _ in range(count)]
        return {key: self._value(info.value_type, "", depth + 1) for key in names}

    def _string(self, name: str) -> Json:
        if name.endswith(("Timestamp", "Time", "At", "since")):
            return self.pick(*TIMES, *TIMES)
        return self._text_of(POOLS.get(name, ("a", "b", "")))

    def _text_of(self, usual: tuple[str, ...]) -> str:
        if self.random.random() < self._bulk / 2 and self._left > 0:
            self._left -= len(LONG_TEXT)
            return LONG_TEXT
        return str(self.pick(*TEXTS)) if self.random.random() < 0.12 else str(self.random.choice(usual))

    def _key(self) -> str:
        key = str(self.pick("a", "b", "gangs", "minCount", *TEXTS))
        return "k" if key.startswith(RAW) else key


def _info(type_: type[Any]) -> inspect.StructType:
    if type_ not in _infos:
        info = inspect.type_info(type_)
        assert isinstance(info, inspect.StructType)
        _infos[type_] = info
    return _infos[type_]


_infos: Final[dict[type[Any], inspect.StructType]] = {}


def written(value: Json) -> bytes:
    """Return an object as JSON, with the raw texts in it as they are."""
    if isinstance(value, str) and value.startswith(RAW):
        return value[len(RAW) :].encode()
    if isinstance(value, dict):
        return b"{" + b",".join(msgspec.json.encode(key) + b":" + written(part) for key, part in value.items()) + b"}"
    if isinstance(value, list):
        return b"[" + b",".join(map(written, value)) + b"]"
    return msgspec.json.encode(value)
