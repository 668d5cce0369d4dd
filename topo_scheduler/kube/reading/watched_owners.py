"""Owners that watches report, by uid; large ones of a namespace have a budget of memory.

Users may create many Jobs and other owners that never have a pod, each with kilobytes of annotations that are read.
"""

import logging
from collections.abc import Iterator
from typing import Final

from topo_scheduler.kube.reading.owner_chains import ChainLink
from topo_scheduler.state.tenant_memory import TenantMemory

logger = logging.getLogger(__name__)

ORDINARY_OWNER_CHARACTERS: Final = 1_024
"""Characters of annotations that are read, up to which an owner is always kept."""
MAX_OWNER_BYTES_OF_NAMESPACE: Final = 8 * 2**20
"""Memory of the annotations of all larger owners of one namespace, in bytes."""
MAX_OWNER_BYTES: Final = 24 * 2**20
"""The same of all namespaces together: beyond it, the namespace with the most loses its newest ones."""
_ANNOTATION_BYTES: Final = 192
"""Memory of an annotation in addition to its characters."""


class WatchedOwners:
    """The owners that are kept. Others are read on demand, as those of kinds without a watch."""

    def __init__(self) -> None:
        self._links: dict[str, ChainLink] = {}
        self._lost: list[ChainLink] = []
        self._memory = TenantMemory(MAX_OWNER_BYTES).kind(MAX_OWNER_BYTES_OF_NAMESPACE)

    def __len__(self) -> int:
        return len(self._links)

    def __iter__(self) -> Iterator[ChainLink]:
        return iter(self._links.values())

    def __contains__(self, uid: str) -> bool:
        return uid in self._links

    def get(self, uid: str) -> ChainLink | None:
        """Return an owner."""
        return self._links.get(uid)

    def put(self, owner: ChainLink) -> bool:
        """Keep an owner in place of its last state; return whether it is kept."""
        has_room = self._memory.put(owner.namespace, owner.uid, counted_bytes(owner))
        if has_room:
            self._links[owner.uid] = owner
        else:
            self._links.pop(owner.uid, None)
            self._warn(owner.namespace)
        for namespace, uid in self._memory.take_lost():
            if (lost := self._links.pop(str(uid), None)) is not None:
                self._lost.append(lost)
            self._warn(namespace)
        return has_room

    def take_lost(self) -> list[ChainLink]:
        """Return the owners that are not kept any more because others came, since the last call."""
        lost, self._lost = self._lost, []
        return lost

    def _warn(self, namespace: str) -> None:
        if self._memory.deserves_warning(namespace):
            logger.warning(
                "namespace %s: annotations of its Jobs, Deployments and other owners of pods take too much memory"
                " (over %s bytes, or most of %s for all namespaces). The newest large ones are read when their"
                " pods are scheduled, which takes longer. Delete owners without pods, or shorten the annotations",
                namespace,
                f"{MAX_OWNER_BYTES_OF_NAMESPACE:,}",
                f"{MAX_OWNER_BYTES:,}",
            )

    def pop(self, uid: str) -> ChainLink | None:
        """Forget an owner, and return it."""
        owner = self._links.pop(uid, None)
        if owner is not None:
            self._memory.drop(owner.namespace, uid)
        return owner


def counted_bytes(owner: ChainLink) -> int:
    """Return the approximate memory of the annotations of a large owner in bytes, 0 for an ordinary one."""
    if not owner.annotations:
        return 0
    characters = sum(map(len, owner.annotations)) + sum(map(len, owner.annotations.values()))
    return 0 if characters <= ORDINARY_OWNER_CHARACTERS else characters + _ANNOTATION_BYTES * len(owner.annotations)
