"""What inter-pod rules see of a pod: labels, host ports, claims, disks and affinity; and the memory that it takes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from topo_scheduler.state.pods.selectors import NOTHING, Selector, places_of

ANY_ADDRESS: Final = "0.0.0.0"
ORDINARY_PROFILE_BYTES: Final = 16_384
"""Bytes up to which a profile is always kept whole: those of ten labels, four terms and some volumes."""
LABEL_BYTES: Final = 256
_CLAIM_BYTES: Final = 384
_DISK_BYTES: Final = 512
_DISK_NAME_BYTES: Final = 96
_PORT_BYTES: Final = 32
_TERM_BYTES: Final = 1_024
_VALUE_BYTES: Final = 128
_PLACE_BYTES: Final = 512
"""Memory of each part in addition to its characters, with its share of the indexes: measured, and rounded up."""


@dataclass(frozen=True, slots=True)
class Port:
    """A port of the host that a pod takes."""

    address: str
    protocol: str
    number: int

    def conflicts(self, other: "Port") -> bool:
        """Return whether pods with these ports can't share a node."""
        same = self.number == other.number and self.protocol == other.protocol
        return same and (self.address == other.address or ANY_ADDRESS in (self.address, other.address))


@dataclass(frozen=True, slots=True)
class Disk:
    """A volume that Kubernetes lets one pod of a node use, or several if all of them only read."""

    kind: str
    names: frozenset[str]
    place: tuple[str, ...] = ()
    shared_read: bool = True
    read_only: bool = False

    def conflicts(self, other: "Disk") -> bool:
        """Return whether pods with these disks can't share a node."""
        same = self.kind == other.kind and self.place == other.place and bool(self.names & other.names)
        return same and not (self.shared_read and self.read_only and other.read_only)


@dataclass(frozen=True, slots=True)
class PodVolumeClaim:
    """A PersistentVolumeClaim of a pod; ``owner`` is the uid of the pod that must own a generic ephemeral claim."""

    name: str
    owner: str = ""


@dataclass(frozen=True, slots=True)
class CountedTerm:
    """Pods of some namespaces that a selector matches, counted by the domains of one node label."""

    selector: Selector
    namespaces: frozenset[str]
    topology_key: str
    namespace_selector: Selector = NOTHING
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash(self._key()))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return CountedTerm, self._key()

    def _key(self) -> tuple[Selector, frozenset[str], str, Selector]:
        return self.selector, self.namespaces, self.topology_key, self.namespace_selector

    def matches(self, profile: "Profile", namespace_labels: Mapping[str, str]) -> bool:
        """Return whether the term counts a pod whose namespace has these labels."""
        in_namespaces = profile.namespace in self.namespaces or self.namespace_selector.matches(namespace_labels)
        return in_namespaces and self.selector.matches(profile.labels)


@dataclass(eq=False, slots=True, weakref_slot=True)
class Profile:
    """What inter-pod rules see of a pod; equal profiles are one object, made by `PodIndex.profile`.

    ``repels`` is its required anti-affinity. ``attracts`` has its preferred terms with weights, negative for
    anti-affinity, which also attract other pods to its domain.
    """

    namespace: str
    labels: Mapping[str, str]
    terminating: bool
    ports: tuple[Port, ...]
    repels: tuple[CountedTerm, ...]
    claims: tuple[PodVolumeClaim, ...]
    disks: tuple[Disk, ...]
    attracts: tuple[tuple[int, CountedTerm], ...] = ()
    compared: int = 0
    """The bits of the tallies whose results it has."""
    counted: int = 0
    """The bits of those tallies that count it."""
    memory: int = field(init=False)
    """Approximate memory of the profile and its entries in indexes, in bytes: measured, and rounded up."""
    ordinary: bool = field(init=False)
    """Whether it is small enough to be kept whole for any number of bound pods."""

    def __post_init__(self) -> None:
        terms = (*self.repels, *(term for _, term in self.attracts))
        self.memory = (
            label_bytes(self.labels)
            + sum(map(claim_bytes, self.claims))
            + sum(map(disk_bytes, self.disks))
            + _PORT_BYTES * len(self.ports)
            + sum(map(_term_bytes, terms))
        )
        self.ordinary = self.memory <= ORDINARY_PROFILE_BYTES

    @property
    def special(self) -> bool:
        """Whether it uses host ports, disks or claims, which no resource counts."""
        return bool(self.ports or self.disks or self.claims)


def label_bytes(labels: Mapping[str, str]) -> int:
    """Return the approximate memory of labels, in bytes."""
    return sum(LABEL_BYTES + len(name) + len(value) for name, value in labels.items())


def claim_bytes(claim: PodVolumeClaim) -> int:
    """Return the approximate memory of a claim, in bytes."""
    return _CLAIM_BYTES + len(claim.name) + len(claim.owner)


def disk_bytes(disk: Disk) -> int:
    """Return the approximate memory of a disk, in bytes."""
    names = (*disk.names, *disk.place)
    return _DISK_BYTES + sum(_DISK_NAME_BYTES + len(name) for name in names)


def _term_bytes(term: CountedTerm) -> int:
    selectors = term.selector, term.namespace_selector
    values = [text for selector in selectors for clause in selector.clauses for text in (clause.key, *clause.values)]
    names = (term.topology_key, *term.namespaces, *values)
    return _TERM_BYTES + sum(_VALUE_BYTES + len(name) for name in names) + _PLACE_BYTES * len(places_of(term.selector))
