"""Labels that place a node in the fabric."""

from topo_scheduler.api.labels import PREFIX

Labels = dict[str, str]


def labels_at(path: str) -> Labels:
    """Return the labels of a node at spine/leaf; either may be missing."""
    spine, _, leaf = path.partition("/")
    domains = {"spine": spine, "leaf": leaf}
    return {PREFIX + level: name for level, name in domains.items() if name}
