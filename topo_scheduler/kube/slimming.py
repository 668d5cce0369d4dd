"""What is kept of the metadata of objects that tenants write: an annotation may have 256 KiB, and labels a megabyte.

Pods are another matter: `state.trimming` says why one is refused.
"""

from typing import Final

from topo_scheduler.api.labels import PREFIX
from topo_scheduler.api.objects import ObjectMeta

MOST_CHARACTERS: Final = 16_384
"""Characters of all annotations of an object together, names included."""
MOST_VALUE_CHARACTERS: Final = 4_096
"""Characters of one annotation; of a longer one these are kept, and one more."""
MOST_LABELS: Final = 256


def slim(metadata: ObjectMeta) -> None:
    """Cut annotations, labels and owners of an object to what may be read of them.

    Where there are too many annotations, ours are kept before others, and short ones before long ones. Labels of nodes
    and namespaces stay: administrators write them.
    """
    annotations = metadata.annotations
    if annotations and sum(map(len, annotations)) + sum(map(len, annotations.values())) > MOST_CHARACTERS:
        left = MOST_CHARACTERS
        kept: dict[str, str] = {}
        for name in sorted(annotations, key=lambda name: (not name.startswith(PREFIX), len(annotations[name]))):
            value = annotations[name][: MOST_VALUE_CHARACTERS + 1]
            if len(name) + len(value) > left:
                break
            left -= len(name) + len(value)
            kept[name] = value
        metadata.annotations = kept
    if metadata.namespace and len(metadata.labels) > MOST_LABELS:
        metadata.labels = dict(list(metadata.labels.items())[:MOST_LABELS])
    if len(metadata.owner_references) > 1:
        metadata.owner_references = [metadata.controller] if metadata.controller is not None else []
