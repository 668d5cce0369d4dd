"""PersistentVolumeClaims as they are kept: without labels, and with the annotations that have a reader.

A tenant may create many, each with labels, annotations and a selector of 32 KiB. Only the selectors of unbound claims
are read, so these have a budget of memory.
"""

import sys
from typing import Final

import msgspec

from topo_scheduler.api.objects import ResourceRequirements
from topo_scheduler.api.selectors import LabelSelector
from topo_scheduler.api.storage import PersistentVolumeClaim
from topo_scheduler.state.storage.claim_annotations import BETA_CLASS, BIND_COMPLETED, SELECTED_NODE, is_bound
from topo_scheduler.state.tenant_memory import MAX_TENANT_BYTES, TenantMemory

MAX_SELECTOR_BYTES_OF_NAMESPACE: Final = 4 * 2**20
"""Memory of the selectors of one namespace's unbound claims, in bytes."""
MAX_NAME_CHARACTERS: Final = 253
"""Longest name of a node or class in characters. Of a longer annotation this many are kept, and one more."""
MAX_SIZE_CHARACTERS: Final = 64
"""Longest size that can be read, in characters. Of a longer one this many are kept, and one more."""
_READ_ANNOTATIONS: Final = (BETA_CLASS, SELECTED_NODE, BIND_COMPLETED)
_CONDITION_BYTES: Final = 384
_VALUE_BYTES: Final = 96
"""Memory of a condition and of one value in addition to their characters: measured, and rounded up."""
_TOO_MANY: Final = (
    f"selectors of unbound claims of its namespace take more than {MAX_SELECTOR_BYTES_OF_NAMESPACE:,} bytes of memory,"
    f" or it takes most of the {MAX_TENANT_BYTES:,} bytes for all namespaces; delete claims that are not used, then"
    " create it again"
)


class KeptVolumeClaims:
    """Counts the memory of the selectors of all claims that are kept."""

    def __init__(self, memory: TenantMemory | None = None) -> None:
        self._memory = (memory or TenantMemory(MAX_TENANT_BYTES)).kind(MAX_SELECTOR_BYTES_OF_NAMESPACE)

    def keep(self, claim: PersistentVolumeClaim) -> PersistentVolumeClaim:
        """Return a claim as it is kept, until `drop` is called."""
        meta, spec = claim.metadata, claim.spec
        controller = meta.controller
        metadata = msgspec.structs.replace(
            meta,
            namespace=sys.intern(meta.namespace),
            labels={},
            annotations={
                name: meta.annotations[name][: MAX_NAME_CHARACTERS + 1]
                for name in _READ_ANNOTATIONS
                if name in meta.annotations
            },
            owner_references=[controller] if controller is not None else [],
        )
        selector, excess = spec.selector, spec.excess
        if selector is not None and is_bound(claim):
            selector = None  # it has its volume
        if selector is None:
            self._memory.drop(meta.namespace, meta.name)
        elif not self._memory.put(meta.namespace, meta.name, _bytes(selector)):
            selector, excess = None, _TOO_MANY
        size_of_volume = spec.resources.requests.get("storage")
        if isinstance(size_of_volume, str):
            size_of_volume = size_of_volume[: MAX_SIZE_CHARACTERS + 1]
        spec = msgspec.structs.replace(
            spec,
            access_modes=list(dict.fromkeys(map(sys.intern, spec.access_modes))),
            resources=ResourceRequirements({} if size_of_volume is None else {"storage": size_of_volume}),
            selector=selector,
            excess=excess,
        )
        return PersistentVolumeClaim(metadata, spec, claim.status)

    def drop(self, claim: PersistentVolumeClaim) -> None:
        """Forget a claim that was kept."""
        self._memory.drop(claim.metadata.namespace, claim.metadata.name)

    def take_lost(self) -> list[tuple[str, str]]:
        """Return namespace and name of the claims whose selectors lost their room, since the last call."""
        return [(namespace, str(name)) for namespace, name in self._memory.take_lost()]


def without_selector(claim: PersistentVolumeClaim) -> PersistentVolumeClaim:
    """Return a claim whose selector has no room, as it is kept."""
    return PersistentVolumeClaim(
        claim.metadata, msgspec.structs.replace(claim.spec, selector=None, excess=_TOO_MANY), claim.status
    )


def _bytes(selector: LabelSelector) -> int:
    """Return the approximate memory of a selector in bytes."""
    labels = sum(_CONDITION_BYTES + len(name) + len(value) for name, value in selector.match_labels.items())
    return labels + sum(
        _CONDITION_BYTES + len(entry.key) + sum(_VALUE_BYTES + len(value) for value in entry.values)
        for entry in selector.match_expressions
    )
