"""What decides about the GPUs of a node until the tables of its shape are computed.

Dirac's theorem on Hamiltonian cycles (1952): `k` GPUs have a ring at bandwidth `b` if each has at least `k / 2` others
at `b` or more. So `ApproximateTables.ring` never says more than the tables do. For GPUs below one switch it says the
same. A pod that requires a bandwidth may stay pending until the tables are there. It never gets less than it requires.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from topo_scheduler.scheduling.devices.plugin_choice import members_of, set_of
from topo_scheduler.state.devices.hardware import NodeHardware, linked, pair_bandwidth


class ApproximateTables:
    """Bandwidths that rings surely have, and sets of GPUs near to each other. A set is an int: bit i is GPU i."""

    def __init__(self, hardware: NodeHardware) -> None:
        """Read the bandwidth of each pair."""
        self._pairs = tuple(tuple(int(value) for value in row) for row in pair_bandwidth(hardware))
        self._linked = tuple(int(neighbours) for neighbours in linked(hardware))

    def ring(self, chosen: int) -> int:
        """Return a bandwidth that a ring over a set surely has, in MB/s."""
        members = members_of(chosen)
        if len(members) < 2:
            return 0
        others = (len(members) + 1) // 2 if len(members) > 2 else 1
        return min(
            sorted((self._pairs[gpu][other] for other in members if other != gpu), reverse=True)[others - 1]
            for gpu in members
        )

    def choose(self, free: int, size: int) -> int:
        """Return the best known choice of ``size`` GPUs, the lowest indexes of equal ones; -1 if fewer are free."""
        return self.closest(free, size, 0, lambda chosen: True)

    def choose_beside(
        self, free: int, chosen: int, running: Sequence[int], accepts: Callable[[int], bool] = lambda chosen: True
    ) -> int:
        """Return the chosen set: what the free GPUs offer to later pods is not computed yet."""
        return chosen

    def best_ring(self, free: int, size: int) -> int:
        """Return the highest bandwidth that a ring over ``size`` free GPUs surely has, or -1 if fewer are free."""
        chosen = self.choose(free, size)
        return self.ring(chosen) if chosen >= 0 else -1

    def closest(self, free: int, size: int, bandwidth: int, accepts: Callable[[int], bool]) -> int:
        """Return the best known one of the accepted sets of ``size`` free GPUs; -1 if none is known.

        Args:
            free: the free GPUs.
            size: number of GPUs.
            bandwidth: that a ring over them must have at least, in MB/s.
            accepts: whether a set will do.
        """
        if not 0 < size <= free.bit_count():
            return 0 if size == 0 else -1
        best, best_rank = -1, (-1, 0)
        for chosen in sorted(set(self._near_sets(free, size))):
            ring = self.ring(chosen)
            rank = ring, _lowest_first(chosen, len(self._pairs))
            if ring >= bandwidth and rank > best_rank and accepts(chosen):
                best, best_rank = chosen, rank
        return best

    def _near_sets(self, free: int, size: int) -> Iterator[int]:
        """Yield the lowest GPUs, and for each GPU those nearest to it: by bandwidth, by index, and by links."""
        gpus = members_of(free)
        yield set_of(gpus[:size])
        for first in gpus:
            by_bandwidth = sorted(gpus, key=lambda gpu: (gpu != first, -self._pairs[first][gpu], gpu))
            yield set_of(by_bandwidth[:size])
            by_index = sorted(gpus, key=lambda gpu: (abs(gpu - first), gpu))
            yield set_of(by_index[:size])
            by_links = list(islice(self._by_links(first, free), size))
            if len(by_links) == size:
                yield set_of(by_links)

    def _by_links(self, first: int, free: int) -> Iterator[int]:
        """Yield GPUs, each linked to one before it, those with the highest bandwidth to one before it first."""
        reached, edge = 1 << first, self._linked[first] & free
        yield first
        while edge:
            before = members_of(reached)
            gpu = max(members_of(edge), key=lambda gpu: (max(self._pairs[gpu][other] for other in before), -gpu))
            yield gpu
            reached |= 1 << gpu
            edge = (edge | self._linked[gpu]) & free & ~reached


def _lowest_first(chosen: int, count: int) -> int:
    """Return a rank of sets of one size that prefers lower indexes: the bits in reverse order."""
    return int(f"{chosen:0{count}b}"[::-1], 2)
