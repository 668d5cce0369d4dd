"""Profiles of bound pods as they are kept: many labels, volumes and affinity terms take half a megabyte a pod.

Users may create any number of pods with a node, and no quota counts their terms. So the large profiles of a namespace
have a budget. Beyond it, a pod counts with its requests and host ports, and with a small part of the rest.
"""

from itertools import accumulate
from typing import Final

from topo_scheduler.state.pods.pod_index import PodIndex
from topo_scheduler.state.pods.profile_labels import TEMPLATE_LABEL
from topo_scheduler.state.pods.profiles import (
    LABEL_BYTES,
    ORDINARY_PROFILE_BYTES,
    Profile,
    claim_bytes,
    disk_bytes,
    label_bytes,
)
from topo_scheduler.state.tenant_memory import MAX_TENANT_BYTES, TenantMemory

MAX_PROFILE_BYTES_OF_NAMESPACE: Final = 16 * 2**20
"""Bytes of all larger profiles of one namespace."""


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
        if profile.ordinary:
            return profile
        pods = self._pods.get(profile)
        if pods is None:
            if not self._memory.put(profile.namespace, profile, profile.memory):
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
        if label_bytes(labels) > left:
            templates = [name for name in labels if name.startswith(TEMPLATE_LABEL)]
            sizes = accumulate(LABEL_BYTES + len(name) for name in templates)
            labels = dict.fromkeys(templates[: sum(size <= left for size in sizes)], "")
        left -= label_bytes(labels)
        sizes = accumulate(map(claim_bytes, profile.claims))
        claims = profile.claims[: sum(size <= left for size in sizes)]
        left -= sum(map(claim_bytes, claims))
        sizes = accumulate(map(disk_bytes, profile.disks))
        disks = profile.disks[: sum(size <= left for size in sizes)]
        return self._pod_index.profile(
            profile.namespace,
            labels,
            terminating=profile.terminating,
            ports=profile.ports,
            claims=claims,
            disks=disks,
        )
