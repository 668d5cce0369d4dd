"""How many devices a request can have at most under its constraints on attributes."""

from collections.abc import Iterable, Sequence

from topo_scheduler.scheduling.devices.claim_query import AttributeConstraint
from topo_scheduler.state.devices.pools import PublishedDevice


def most_in_agreement(devices: Iterable[PublishedDevice], constraints: Sequence[AttributeConstraint]) -> int:
    """Return how many devices have one value of each attribute that must match, and other values of distinct ones.

    It is exact for one distinct attribute, an upper bound for several. A device without one of the attributes never
    counts.
    """
    match = [constraint.attribute for constraint in constraints if not constraint.distinct]
    distinct = [constraint.attribute for constraint in constraints if constraint.distinct]
    groups: dict[object, list[PublishedDevice]] = {}
    for device in devices:
        if all(constraint.attribute in device.attributes for constraint in constraints):
            groups.setdefault(tuple(device.attributes[name] for name in match), []).append(device)
    return max((_most_distinct(group, distinct) for group in groups.values()), default=0)


def _most_distinct(devices: Sequence[PublishedDevice], attributes: Sequence[str]) -> int:
    return min((len({device.attributes[name] for device in devices}) for name in attributes), default=len(devices))


def agreement_text(match: Sequence[str], distinct: Sequence[str]) -> str:
    """Return what devices must do with the values of attributes, such as ``agree in numa and differ in uuid``."""
    pairs = (("agree", match), ("differ", distinct))
    return " and ".join(f"{verb} in {' and '.join(attributes)}" for verb, attributes in pairs if attributes)
