"""What reservations take of the room that victims leave.

During an attempt, a reservation is charged on each of its nodes. The charge is what it takes there beyond what the pods
that it waits for still hold (`reserving.holds`). When such a pod ends, the charge may rise. The workload for which the
pod was evicted then gets only the rest of its room. With one reservation on a node, these pods leave ``min(what they
hold, what all of them hold - what the reservation takes)``.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from topo_scheduler.scheduling.preemption.victims import Candidate
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.nodes.resources import Amounts

MAX_SINGLE_RESERVATIONS: Final = 4
"""Maximum number of reservations of one node that are checked one by one. Any others are only checked together."""


@dataclass(frozen=True, slots=True)
class ReservationShare:
    """What a reservation takes of a node, and what the pods that it waits for hold there, by uid."""

    row: int
    takes: Mapping[int, int]
    pods: Mapping[str, Amounts]


class ReservationShares:
    """Shares of all reservations that apply to a workload, while pods leave and return in a trial."""

    def __init__(self, shares: Iterable[ReservationShare]) -> None:
        self._shares = [share for share in shares if share.pods]
        self._held: list[Counter[int]] = []
        """For each share, what those of its pods that are still there hold."""
        self._of: dict[str, list[int]] = {}
        for number, share in enumerate(self._shares):
            held: Counter[int] = Counter()
            for uid, amounts in share.pods.items():
                self._of.setdefault(uid, []).append(number)
                for column, amount in amounts:
                    held[column] += amount
            self._held.append(held)

    def __len__(self) -> int:
        return len(self._shares)

    def change(self, pods: Iterable[Candidate], change: int) -> Iterator[tuple[int, Amounts]]:
        """Remove pods (-1) or return them (1). Yield rows, and how much more of each row the reservations then take."""
        for pod in pods:
            for number in self._of.get(pod.occupant.uid, ()):
                share, held = self._shares[number], self._held[number]
                more = []
                for column, amount in share.pods[pod.occupant.uid]:
                    before = max(0, share.takes.get(column, 0) - held[column])
                    held[column] += change * amount
                    after = max(0, share.takes.get(column, 0) - held[column])
                    more.append((column, after - before))
                yield share.row, tuple(item for item in more if item[1])

    def takes_all(self, pod: Candidate) -> bool:
        """Return whether a reservation takes all of some resource that this pod and the others it waits for free."""
        return any(
            self._held[number][column] <= self._shares[number].takes.get(column, 0)
            for number in self._of.get(pod.occupant.uid, ())
            for column, _ in pod.amounts
        )

    def bounds(self, free: Int64, amounts: Int64, columns: Int64, pods: Sequence[Candidate]) -> tuple[Int64, Int64]:
        """Return free amounts and the candidates' amounts with columns added: what fits in all columns really fits.

        If a reservation waits for some pods, the room that they leave is the lesser of two sums. One is what they hold.
        The other is what all of them hold less what the reservation takes. There is room only if there is room by both
        sums. The columns are repeated for the second sum. In the copy, what the reservation leaves is free and those
        pods hold nothing. Several reservations on one node get one sum each, and one for all. For three or more these
        sums are not all the conditions, and the trial decides.

        Args:
            free: int64[rows, columns], what is free now.
            amounts: int64[pods, columns], what each candidate holds.
            columns: the resources.
            pods: the candidates.
        """
        number_of = {pod.occupant.uid: number for number, pod in enumerate(pods) if pod.occupant.uid in self._of}
        on_row: dict[int, list[int]] = {}
        for at in dict.fromkeys(at for uid in number_of for at in self._of[uid]):
            on_row.setdefault(self._shares[at].row, []).append(at)
        deepest = max((len(on_node) for on_node in on_row.values()), default=0)
        alone = min(deepest, MAX_SINGLE_RESERVATIONS)
        sums = [[on_node[turn] for on_node in on_row.values() if turn < len(on_node)] for turn in range(alone)]
        if deepest > 1:
            sums.append([at for on_node in on_row.values() for at in on_node])
        frees, holds = [free], [amounts]
        for together in sums:
            frees.append(free.copy())
            holds.append(amounts.copy())
            for at in together:
                share, held = self._shares[at], self._held[at]
                remaining = [max(0, held[column] - share.takes.get(column, 0)) for column in columns.tolist()]
                frees[-1][share.row] += np.array(remaining, np.int64)
                holds[-1][[number_of[uid] for uid in share.pods if uid in number_of]] = 0
        return np.hstack(frees), np.hstack(holds)
