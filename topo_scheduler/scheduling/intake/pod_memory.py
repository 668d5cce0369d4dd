"""The memory that a pending pod takes, estimated from its JSON and from what its selectors compile to.

Each figure is measured, and rounded up: `tests/scheduling/test_pod_memory.py` compares the estimate with the memory
that Python allocates.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from topo_scheduler.api.objects import Pod
from topo_scheduler.api.selectors import LabelSelector, PodAffinityTerm

CHARACTER_BYTES: Final = 2
"""Bytes for each byte of JSON: a text may be in the pod and, as for images, once more in its class."""
WIDE_CHARACTER_BYTES: Final = 9
"""The same if any character is not ASCII: Python then takes up to 4 bytes for each character of that text."""
TEXT_BYTES: Final = 64
"""Bytes for each text, even for an empty one, with the reference to it."""
OBJECT_BYTES: Final = 128
"""Bytes for each object of the JSON in addition to its texts."""
TERM_BYTES: Final = 768
"""Additional bytes for each pod affinity term, which the class and the profile of the pod have once each."""
SELECTED_VALUE_BYTES: Final = 256
"""Additional bytes for each value of a selector, each namespace of a term and each monitor of a disk.

The class and the profile of the pod have a set of them each.
"""
SELECTED_LABEL_BYTES: Final = 640
"""Additional bytes for each entry of ``matchLabels``: two conditions with a set of one value."""


def pod_bytes(pod: Pod) -> int:
    """Return the approximate memory of a pending pod in bytes, with its class and its profile."""
    encoded = msgspec.json.encode(pod)
    character_bytes = CHARACTER_BYTES if encoded.isascii() else WIDE_CHARACTER_BYTES
    size = character_bytes * len(encoded)
    size += TEXT_BYTES * (encoded.count(b'"') // 2) + OBJECT_BYTES * encoded.count(b"{")
    spec = pod.spec
    if spec.affinity is not None or spec.topology_spread_constraints:
        size += sum(map(_term_bytes, _terms(pod)))
        size += sum(_selector_bytes(spread.label_selector) for spread in spec.topology_spread_constraints)
    disks = (volume.rbd for volume in spec.volumes if volume.rbd is not None)
    return size + SELECTED_VALUE_BYTES * sum(len(disk.monitors) for disk in disks)


def _terms(pod: Pod) -> Iterator[PodAffinityTerm]:
    affinity = pod.spec.affinity
    if affinity is None:
        return
    for pod_affinity in (affinity.pod_affinity, affinity.pod_anti_affinity):
        if pod_affinity is not None:
            yield from pod_affinity.required
            yield from (weighted.pod_affinity_term for weighted in pod_affinity.preferred)


def _term_bytes(term: PodAffinityTerm) -> int:
    selectors = _selector_bytes(term.label_selector) + _selector_bytes(term.namespace_selector)
    return TERM_BYTES + SELECTED_VALUE_BYTES * len(term.namespaces) + selectors


def _selector_bytes(selector: LabelSelector | None) -> int:
    if selector is None:
        return 0
    values = sum(len(requirement.values) for requirement in selector.match_expressions)
    return SELECTED_LABEL_BYTES * len(selector.match_labels) + SELECTED_VALUE_BYTES * values
