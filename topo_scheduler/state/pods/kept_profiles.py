"""Profiles of bound pods as they are kept: many labels, volumes and affinity terms take half a megabyte a pod.

Users may create any number of pods with a node, and no quota counts their terms. So the large profiles of a namespace
have a budget. Beyond it, a pod counts with its requests and host ports, and with a small part of the rest.
"""

from collections.abc import Mapping
from itertools import accumulate
from typing import Final

from topo_scheduler.state.pods.pod_index import CountedTerm, Disk, PodIndex, PodVolumeClaim, Profile
from topo_scheduler.state.pods.profile_labels import TEMPLATE_LABEL
from topo_scheduler.state.pods.selectors import places_of
from topo_scheduler.state.tenant_memory import MAX_TENANT_BYTES, TenantMemory

ORDINARY_PROFILE_BYTES: Final = 16_384
"""Bytes up to which a profile is always kept whole: those of ten labels, four terms and some volumes."""
MAX_PROFILE_BYTES_OF_NAMESPACE: Final = 16 * 2**20
"""Bytes of all larger profiles of one namespace."""
_LABEL_BYTES: Final = 256
_FEW_LABELS: Final = 16
"""Labels that never take more than an ordinary profile: Kubernetes allows 380 characters each."""
_CLAIM_BYTES: Final = 384
_DISK_BYTES: Final = 512
_DISK_NAME_BYTES: Final = 96
_PORT_BYTES: Final = 32
_TERM_BYTES: Final = 1_024
_VALUE_BYTES: Final = 128
_PLACE_BYTES: Final = 512
"""Memory of each part in addition to its characters, with its share of the indexes: measured, and rounded up."""


class KeptProfiles:
    """Counts the profiles of all pods with a node."""

    def __init__(self, pod_index: PodIndex, memory: TenantMemory) -> None:
        self._pod_index = pod_index
        self._memory = memory.kind(MAX_PROFILE_BYTES_OF_NAMESPACE)
        self._pods: dict[Profile, dict[str, None]] = {}
        """The pods that have each large profile, by uid."""
        self.warnings: list[str] = []
        """Warnings about namespaces without room, each once."""

    def add(self, uid: str, profile: Profile) -> Profile:
        """Count a bound pod; return the profile that it gets in place of its own, until `remove` is called with it."""
        if _is_ordinary(profile):
            return profile
        pods = self._pods.get(profile)
        if pods is None:
            if not self._memory.put(profile.namespace, profile, profile_bytes(profile)):
                self._warn(profile.namespace)
                return self._reduced(profile)
            pods = self._pods[profile] = {}
        pods[uid] = None
        return profile

    def remove(self, uid: str, profile: Profile) -> None:
        """Count a pod no more."""
        pods = self._pods.get(profile)
        if pods is None:
            return
        pods.pop(uid, None)
        if not pods:
            del self._pods[profile]
            self._memory.drop(profile.namespace, profile)

    def take_lost(self) -> list[tuple[str, Profile]]:
        """Return the pods whose profiles lost their room, and what each gets in place of it."""
        lost: list[tuple[str, Profile]] = []
        for namespace, profile in self._memory.take_lost():
            assert isinstance(profile, Profile)
            self._warn(namespace)
            reduced = self._reduced(profile)
            lost += [(uid, reduced) for uid in self._pods.pop(profile, ())]
        return lost

    def take_warnings(self) -> list[str]:
        """Return the warnings, and forget them."""
        warnings, self.warnings = self.warnings, []
        return warnings

    def _warn(self, namespace: str) -> None:
        if self._memory.deserves_warning(namespace):
            self.warnings.append(
                f"namespace {namespace}: the labels, volumes and affinity of its running pods take more than"
                f" {MAX_PROFILE_BYTES_OF_NAMESPACE:,} bytes, or most of the {MAX_TENANT_BYTES:,} bytes for all"
                " namespaces. The scheduler ignores the affinity of its newest large pods: it keeps no pod away and"
                " attracts none. Delete pods, or give them fewer terms"
            )

    def _reduced(self, profile: Profile) -> Profile:
        """Return a profile without terms, and with as much of labels and volumes as an ordinary one has."""
        self._pod_index.forget_terms(profile)
        left = ORDINARY_PROFILE_BYTES
        labels = profile.labels
        if _label_bytes(labels) > left:
            templates = [name for name in labels if name.startswith(TEMPLATE_LABEL)]
            sizes = accumulate(_LABEL_BYTES + len(name) for name in templates)
            labels = dict.fromkeys(templates[: sum(size <= left for size in sizes)], "")
        left -= _label_bytes(labels)
        sizes = accumulate(map(_claim_bytes, profile.claims))
        claims = profile.claims[: sum(size <= left for size in sizes)]
        left -= sum(map(_claim_bytes, claims))
        sizes = accumulate(map(_disk_bytes, profile.disks))
        disks = profile.disks[: sum(size <= left for size in sizes)]
        return self._pod_index.profile(
            profile.namespace,
            labels,
            terminating=profile.terminating,
            ports=profile.ports,
            claims=claims,
            disks=disks,
        )


def profile_bytes(profile: Profile) -> int:
    """Return the approximate memory of a profile and its entries in indexes, in bytes."""
    terms = (*profile.repels, *(term for _, term in profile.attracts))
    return (
        _label_bytes(profile.labels)
        + sum(map(_claim_bytes, profile.claims))
        + sum(map(_disk_bytes, profile.disks))
        + _PORT_BYTES * len(profile.ports)
        + sum(map(_term_bytes, terms))
    )


def _is_ordinary(profile: Profile) -> bool:
    if not profile.ordinary:
        few = len(profile.labels) <= _FEW_LABELS and not (profile.repels or profile.attracts or profile.special)
        profile.ordinary = few or profile_bytes(profile) <= ORDINARY_PROFILE_BYTES
    return profile.ordinary


def _label_bytes(labels: Mapping[str, str]) -> int:
    return sum(_LABEL_BYTES + len(name) + len(value) for name, value in labels.items())


def _claim_bytes(claim: PodVolumeClaim) -> int:
    return _CLAIM_BYTES + len(claim.name) + len(claim.owner)


def _disk_bytes(disk: Disk) -> int:
    names = (*disk.names, *disk.place)
    return _DISK_BYTES + sum(_DISK_NAME_BYTES + len(name) for name in names)


def _term_bytes(term: CountedTerm) -> int:
    selectors = term.selector, term.namespace_selector
    values = [text for selector in selectors for clause in selector.clauses for text in (clause.key, *clause.values)]
    names = (term.topology_key, *term.namespaces, *values)
    return _TERM_BYTES + sum(_VALUE_BYTES + len(name) for name in names) + _PLACE_BYTES * len(places_of(term.selector))
