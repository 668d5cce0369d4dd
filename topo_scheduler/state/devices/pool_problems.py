"""What is wrong with the devices that drivers publish: the object, the field, what follows and what to do.

The API server checks little of it. A pool that contradicts itself gives no devices; all other pools of a node do.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from topo_scheduler.api.devices import DeviceEntry, ResourceSliceSpec
from topo_scheduler.api.quantity import QuantityError, parse_unbounded
from topo_scheduler.state.devices.pools import DeviceId, Number, PoolId, Slice

MAX_PROBLEMS_PER_POOL: Final = 8
"""Problems of one pool that are reported; the others are of the same kind."""
MAX_NAMED: Final = 3
"""Objects that one problem names."""


class ProblemKind(StrEnum):
    """What is wrong; the label of the metric."""

    UNREADABLE = "unreadable"
    """A field of a slice can't be read."""
    INCOMPLETE = "incomplete"
    """A pool has fewer or more slices than it announces."""
    OUTDATED = "outdated"
    """Slices of an older generation are left."""
    DUPLICATE = "duplicate"
    """A device or a counter set is named twice."""
    CONTRADICTION = "contradiction"
    """Counters that do not exist, or that are too small."""
    UNSUPPORTED = "unsupported"
    """A device has a field of a feature that is off by default in Kubernetes, and that the scheduler does not know."""
    GONE = "gone"
    """Claims have devices that no slice publishes."""
    TAKEN_TWICE = "taken-twice"
    """Two claims have one device."""
    LEFT = "left"
    """Claims of pods that have ended still have devices."""


LASTING: Final = frozenset(
    {ProblemKind.INCOMPLETE, ProblemKind.OUTDATED, ProblemKind.GONE, ProblemKind.TAKEN_TWICE, ProblemKind.LEFT}
)
"""Problems that also arise for a moment: while a driver starts or updates its slices, after a pod has ended, or while
changes of several claims arrive one after the other."""


@dataclass(frozen=True, slots=True, order=True)
class DeviceProblem:
    """One problem.

    Attributes:
        kind: what is wrong.
        about: the object and its field, such as ``ResourceSlice n0-gpu: spec.devices[2].name``.
        text: what it is, what follows, and the remedy.
    """

    kind: ProblemKind
    about: str
    text: str

    def __str__(self) -> str:
        """Return one line."""
        return f"{self.about}: {self.text}"


# ---------------------------------------------------------------- one slice


def unreadable_field(spec: ResourceSliceSpec) -> str:
    """Return the first field of a slice that is no quantity, with the reason; empty if all are."""
    for path, value in _quantities(spec):
        try:
            parse_unbounded(value)
        except QuantityError as error:
            return f"{path}: {error}"
    return ""


def _quantities(spec: ResourceSliceSpec) -> Iterator[tuple[str, str | int | float]]:
    for number, entry in enumerate(spec.shared_counters):
        for name, counter in entry.counters.items():
            yield f"spec.sharedCounters[{number}].counters[{name}]", counter.value
    for number, device in enumerate(spec.devices):
        yield from _device_quantities(f"spec.devices[{number}]", device)


def _device_quantities(path: str, device: DeviceEntry) -> Iterator[tuple[str, str | int | float]]:
    for number, entry in enumerate(device.consumes_counters):
        for name, counter in entry.counters.items():
            yield f"{path}.consumesCounters[{number}].counters[{name}]", counter.value
    for name, capacity in device.capacity.items():
        field, policy = f"{path}.capacity[{name}]", capacity.request_policy
        yield f"{field}.value", capacity.value
        if policy is None:
            continue
        limits = policy.valid_range
        values = [("default", policy.default), *(("validValues", value) for value in policy.valid_values or ())]
        if limits is not None:
            values += [("validRange.min", limits.min), ("validRange.max", limits.max), ("validRange.step", limits.step)]
        for part, value in values:
            if value is not None:
                yield f"{field}.requestPolicy.{part}", value


# ---------------------------------------------------------------- pools


def pool_problems(slices: Sequence[Slice]) -> list[DeviceProblem]:
    """Return what is wrong with one pool, `MAX_PROBLEMS_PER_POOL` at most.

    Args:
        slices: all slices of the pool, of any generation.
    """
    if not slices:
        return []
    generation = max(item.generation for item in slices)
    newest = sorted((item for item in slices if item.generation == generation), key=lambda item: item.name)
    driver, pool = newest[0].pool
    nothing = f"no device of pool {pool} is allocated"
    problems = [
        DeviceProblem(
            ProblemKind.UNREADABLE,
            f"ResourceSlice {item.name}",
            f"{item.unreadable}; {nothing}; report it to the vendor of driver {driver}",
        )
        for item in newest
        if item.unreadable
    ]
    older = sorted(item.name for item in slices if item.generation != generation)
    if older:
        text = (
            f"pool {pool} has generation {generation}, so slices of older ones are ignored; if they stay, restart"
            f" driver {driver}, or delete them"
        )
        problems.append(DeviceProblem(ProblemKind.OUTDATED, f"{_slices(older)}: spec.pool.generation", text))
    if announced := _announced(newest):
        text = f"generation {generation} of pool {pool} {announced}; until all are there, {nothing}; if it lasts, check"
        problems.append(
            DeviceProblem(
                ProblemKind.INCOMPLETE,
                f"{_slices([item.name for item in newest])}: spec.pool.resourceSliceCount",
                f"{text} driver {driver} on that node",
            )
        )
    problems += _contradictions(newest, nothing)
    return problems[:MAX_PROBLEMS_PER_POOL]


def _announced(newest: Sequence[Slice]) -> str:
    counts = sorted({item.slices_in_pool for item in newest})
    if len(counts) > 1:
        return f"announces {' and '.join(map(str, counts))} slices"
    return "" if counts == [len(newest)] else f"has {len(newest)} of {counts[0]} slices"


def _contradictions(newest: Sequence[Slice], nothing: str) -> Iterator[DeviceProblem]:
    driver = newest[0].pool[0]
    remedy = f"{nothing}; report it to the vendor of driver {driver}"
    counters: dict[tuple[str, str], Number] = {}
    sets: dict[str, str] = {}
    for item in newest:
        for number, (name, amounts) in enumerate(item.counters):
            if name in sets:
                about = f"ResourceSlice {item.name}: spec.sharedCounters[{number}].name"
                text = f"counter set {name} exists in ResourceSlice {sets[name]} too; {remedy}"
                yield DeviceProblem(ProblemKind.DUPLICATE, about, text)
            sets[name] = item.name
            counters |= {(name, counter): amount for counter, amount in amounts.items()}
    devices: dict[str, str] = {}
    for item in newest:
        for number, device in enumerate(item.devices):
            about, name = f"ResourceSlice {item.name}: spec.devices[{number}]", device.id[2]
            if name in devices:
                text = f"device {name} exists in ResourceSlice {devices[name]} too; {remedy}"
                yield DeviceProblem(ProblemKind.DUPLICATE, f"{about}.name", text)
            devices[name] = item.name
            if device.kind.unsupported:
                text = (
                    f"device {name} has {device.kind.unsupported}, which is not supported: it is never allocated; turn"
                    f" the gate off, or let driver {driver} publish the device without it"
                )
                yield DeviceProblem(ProblemKind.UNSUPPORTED, about, text)
            for (set_, counter), amount in device.counters.items():
                available = counters.get((set_, counter))
                about_counter = f"{about}.consumesCounters"
                if available is None:
                    text = f"device {name} consumes counter {counter} of set {set_}, which does not exist; {remedy}"
                    yield DeviceProblem(ProblemKind.CONTRADICTION, about_counter, text)
                elif amount > available:
                    text = (
                        f"device {name} consumes {amount} of counter {counter} of set {set_}, which has {available}: it"
                        f" is never allocated; report it to the vendor of driver {driver}"
                    )
                    yield DeviceProblem(ProblemKind.CONTRADICTION, about_counter, text)


def _slices(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return f"ResourceSlice {', '.join(names[:MAX_NAMED])}{more}"


# ---------------------------------------------------------------- use of devices


def gone(pool: PoolId, devices: Iterable[tuple[DeviceId, Sequence[tuple[str, str]]]]) -> DeviceProblem | None:
    """Return the problem that claims have devices which no slice publishes, None if there are none.

    Args:
        pool: driver and name of the pool.
        devices: devices of the pool that no slice publishes, with the namespaces and names of their claims.
    """
    lost = sorted(devices, key=lambda entry: entry[0])
    if not lost:
        return None
    names = ", ".join(id_[2] for id_, _ in lost[:MAX_NAMED])
    claims = sorted({f"{namespace}/{name}" for _, keys in lost for namespace, name in keys})
    more = f" and {len(claims) - MAX_NAMED} more" if len(claims) > MAX_NAMED else ""
    text = (
        f"no ResourceSlice publishes {names}{' and others' if len(lost) > MAX_NAMED else ''} any more; claims"
        f" {', '.join(claims[:MAX_NAMED])}{more} have them, and their pods keep running; check driver"
        f" {pool[0]} on that node"
    )
    return DeviceProblem(ProblemKind.GONE, f"pool {pool[1]} of driver {pool[0]}", text)


def taken_twice(device: DeviceId, claims: Sequence[tuple[str, str]]) -> DeviceProblem:
    """Return the problem that several claims have a device which only one can have."""
    driver, pool, name = device
    names = ", ".join(f"{namespace}/{claim}" for namespace, claim in sorted(claims)[:MAX_NAMED])
    text = (
        f"it is allocated to {len(claims)} claims ({names}), and only one can have it; delete the pods of all but one,"
        " and let one scheduler alone allocate devices of this driver on a node"
    )
    return DeviceProblem(ProblemKind.TAKEN_TWICE, f"device {name} of pool {pool} of driver {driver}", text)


def left(pool: PoolId, claims: Sequence[tuple[str, str]]) -> DeviceProblem:
    """Return the problem that claims of a pool's devices are still allocated for pods that have ended."""
    names = ", ".join(f"{namespace}/{claim}" for namespace, claim in claims[:MAX_NAMED])
    more = f" and {len(claims) - MAX_NAMED} more" if len(claims) > MAX_NAMED else ""
    text = (
        f"claims {names}{more} are allocated for pods that have ended, so no other pod gets their devices; check that"
        " kube-controller-manager runs its controller of resource claims, and finalizers of other clients on the claims"
    )
    return DeviceProblem(ProblemKind.LEFT, f"pool {pool[1]} of driver {pool[0]}", text)
