"""Equal shares of limits: one namespace can use up a limit for all, but not the share of another."""

from collections.abc import Mapping


def is_within_share(namespace: str, counts: Mapping[str, int], wanted: int, limit: int) -> bool:
    """Return whether a namespace stays within an equal share of a limit of all namespaces together.

    Users may create any number of Migrations or pods, and let what counts never end, or begin again without end.

    Args:
        namespace: the namespace.
        counts: what counts already, by namespace.
        wanted: what the namespace wants in addition.
        limit: the limit.
    """
    return counts.get(namespace, 0) + wanted <= max(1, limit // len(counts.keys() | {namespace}))
