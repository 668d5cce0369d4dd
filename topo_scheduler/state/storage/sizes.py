"""Sizes of volumes in bytes."""

from topo_scheduler.api.quantity import QuantityError, parse_quantity


def size_of(quantity: str | int | float | None) -> int:
    """Return bytes; 0 where there is no quantity or it can't be read."""
    if quantity is None:
        return 0
    try:
        return parse_quantity(quantity, 1)
    except QuantityError:
        return 0
