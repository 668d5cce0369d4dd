"""Typical pods: what this cluster is usually asked for, as the fragmentation of its GPUs is measured by.

Counted are the pods that the API server tells of: those that run, except those of DaemonSets, and those of ours that
wait. A count depends on these pods alone, so a process that was restarted counts as one that followed every event.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from topo_scheduler.state.resources import CPU, GPU, GPU_SHARE

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

COVERED: Final = 950
"""Thousandths of all pods that the typical ones stand for; the rarest kinds are left out."""
MOST_KINDS: Final = 128
"""Kinds of typical pods at most: each costs time with every score."""
MILLIONTHS: Final = 1_000_000


class PodKind(NamedTuple):
    """What tells typical pods apart: milli-CPU, whole GPUs, thousandths of one GPU, GPU models (empty for any)."""

    cpu: int
    gpus: int = 0
    share: int = 0
    models: tuple[str, ...] = ()


def kind_of(amounts: Mapping[int, int], models: Iterable[str] = ()) -> PodKind:
    """Return the kind of a pod that asks for these amounts, by resource column."""
    gpus, share = amounts.get(GPU, 0), amounts.get(GPU_SHARE, 0)
    return PodKind(amounts.get(CPU, 0), gpus, share, tuple(sorted(models)) if gpus or share else ())


class PodKinds:
    """How many pods of each kind there are."""

    def __init__(self) -> None:
        self.counts: Counter[PodKind] = Counter()
        self.changes = 0
        """Pods that came or went, so far."""
        self._of: dict[str, PodKind] = {}

    def __len__(self) -> int:
        return len(self._of)

    def put(self, uid: str, kind: PodKind) -> None:
        """Count a pod that appeared or changed."""
        if self._of.get(uid) == kind:
            return
        self.drop(uid)
        self._of[uid] = kind
        self.counts[kind] += 1
        self.changes += 1

    def drop(self, uid: str) -> None:
        """Count a pod no longer."""
        kind = self._of.pop(uid, None)
        if kind is None:
            return
        self.counts[kind] -= 1
        self.changes += 1
        if not self.counts[kind]:
            del self.counts[kind]


Popular = tuple[tuple[PodKind, int], ...]
"""Kinds and their popularity in millionths of the pods that they stand for, the most popular first."""


def popular(counts: Mapping[PodKind, int]) -> Popular:
    """Return the most popular kinds that together cover 95 % of the pods; of equal ones the smaller first."""
    total = sum(counts.values())
    found: list[tuple[PodKind, int]] = []
    covered = 0
    for kind, count in sorted(counts.items(), key=lambda one: (-one[1], one[0]))[:MOST_KINDS]:
        if covered * 1000 >= COVERED * total:
            break
        covered += count
        found.append((kind, count))
    return in_millionths(found)


def in_millionths(kinds: Sequence[tuple[PodKind, int]]) -> Popular:
    """Return kinds with their share of the sum of all weights."""
    total = sum(weight for _, weight in kinds)
    return tuple((kind, weight * MILLIONTHS // total) for kind, weight in kinds)


def moved(before: Popular, after: Popular) -> int:
    """Return how much popularity went from some kinds to others, in millionths."""
    weights, now = dict(before), dict(after)
    changes = [now.get(kind, 0) - weights.get(kind, 0) for kind in weights | now]
    return max(sum(change for change in changes if change > 0), -sum(change for change in changes if change < 0))


@dataclass(frozen=True, slots=True)
class ShareWorth:
    """What shares of GPUs are worth, by thousandths of one GPU, in millionths of a GPU.

    ``left`` int64[1001]: what so much that is left of one GPU is worth. ``price`` int64[1001]: what a share costs.
    """

    left: Int64
    price: Int64

    @classmethod
    def nothing(cls) -> "ShareWorth":
        """Return that of a cluster without shares: all is worth nothing, so every share fits anywhere."""
        return cls(np.zeros(1001, np.int64), np.zeros(1001, np.int64))


@dataclass(frozen=True, slots=True)
class Typical:
    """Typical pods as arrays.

    ``pods`` int64[t, 4]: milli-CPU, whole GPUs, thousandths of one GPU, popularity in millionths. ``access`` bool[t,
    models + 1]: on which models each can run; the first column stands for nodes whose model is not known.
    """

    pods: Int64
    access: Bool
    shares: ShareWorth


def typical_of(kinds: Popular, models: Sequence[str], shares: ShareWorth) -> Typical:
    """Return the arrays of popular kinds, given the GPU models there are, by their index, and the worth of shares."""
    pods = np.zeros((len(kinds), 4), np.int64)
    access = np.zeros((len(kinds), len(models) + 1), np.bool_)
    for at, (kind, weight) in enumerate(kinds):
        pods[at] = (kind.cpu, kind.gpus, kind.share, weight)
        access[at, 0] = not kind.models
        for number, model in enumerate(models):
            access[at, number + 1] = not kind.models or model in kind.models
    return Typical(pods, access, shares)


def _thresholds() -> Int64:
    # sigmoid(x) >= s / 100 from x = ln(s / (100 - s)) on. Decimal rounds correctly, so these are the same everywhere.
    unit = Decimal(1000 * MILLIONTHS)
    exact = [(Decimal(s) / (100 - s)).ln() * unit for s in range(1, 100)]
    return np.array([int(one.to_integral_value(ROUND_CEILING)) for one in exact], np.int64)


THRESHOLDS: Final = _thresholds()
"""int64[99], ascending: gains in millionths of GPU-thousandths from which int(100 * sigmoid(gain in GPUs)) is 1, ..."""
