"""Devices that were chosen for some claims, for nodes with the same hardware in the same use."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from topo_scheduler.scheduling.devices.allocator import Grant
from topo_scheduler.scheduling.devices.claim_query import DeviceQuery
from topo_scheduler.state.devices.pools import Amount, Pool

Granted = list[list[Grant]]
"""Devices by claim."""
_GrantedPosition = tuple[DeviceQuery, int, int, Mapping[str, Amount] | None]
"""A grant without its device: the request, the number of the pool, the position of the device, and its share."""


class KnownChoices:
    """Choices of devices for one set of claims, by hardware and use. The pools of all nodes have layouts."""

    def __init__(self) -> None:
        self._known: dict[object, list[list[_GrantedPosition]] | None] = {}

    def choose(
        self, key: object, pools: Sequence[Pool], search: Callable[[], Granted | None], max_kept: int
    ) -> Granted | None:
        """Return what is known for a key, as devices of these pools; else what a search finds.

        ``max_kept``: results that are kept; with one more, the others are dropped.
        """
        if key in self._known:
            known = self._known[key]
            if known is None:
                return None
            return [[_grant(pools, position) for position in of_claim] for of_claim in known]
        granted = search()
        if len(self._known) >= max_kept:
            self._known.clear()
        self._known[key] = None if granted is None else [_positions(pools, of_claim) for of_claim in granted]
        return granted


def _grant(pools: Sequence[Pool], position: _GrantedPosition) -> Grant:
    query, pool, device, part = position
    return Grant(query, pools[pool].devices[device], part)


def _positions(pools: Sequence[Pool], grants: Iterable[Grant]) -> list[_GrantedPosition]:
    numbers = {pool.id: number for number, pool in enumerate(pools)}
    positions: list[_GrantedPosition] = []
    for grant in grants:
        number = numbers[grant.device.id[:2]]
        layout = pools[number].layout
        assert layout is not None
        positions.append((grant.query, number, layout.positions[grant.device.id[2]], grant.part))
    return positions
