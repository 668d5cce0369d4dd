"""Typical pods: the usual requests in this cluster, by which the fragmentation of its GPUs is measured.

The count covers running pods except DaemonSet pods, and pending pods of this scheduler. It depends on the pods in the
API server alone, so a restarted process has the same count as one that followed every event.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from heapq import nsmallest
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from topo_scheduler.state.nodes.resources import CPU, GPU, GPU_SHARE

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

COVERED_THOUSANDTHS: Final = 950
"""Thousandths of all pods that the typical ones cover; the rarest kinds are left out."""
MAX_KINDS: Final = 128
"""Maximum kinds of typical pods: each costs time with every score."""
MILLIONTHS: Final = 1_000_000


class PodKind(NamedTuple):
    """Requests of a typical pod: milli-CPU, whole GPUs, thousandths of one GPU, GPU models (empty for any)."""

    cpu: int
    gpus: int = 0
    share: int = 0
    models: tuple[str, ...] = ()


def kind_of(amounts: Mapping[int, int], models: Iterable[str] = ()) -> PodKind:
    """Return the kind of a pod that requests these amounts, by resource column."""
    gpus, share = amounts.get(GPU, 0), amounts.get(GPU_SHARE, 0)
    return PodKind(amounts.get(CPU, 0), gpus, share, tuple(sorted(models)) if gpus or share else ())


class PodKinds:
    """Number of pods of each kind."""

    def __init__(self) -> None:
        self.counts: Counter[PodKind] = Counter()
        self.changes = 0
        """Number of pods added or removed so far."""
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
        """Stop counting a pod."""
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
    """Return the most popular kinds that together cover 95 % of the pods; equally popular ones in order of size."""
    total = sum(counts.values())
    kinds: list[tuple[PodKind, int]] = []
    covered = 0
    most_frequent = nsmallest(
        MAX_KINDS, counts.items(), key=lambda kind_and_count: (-kind_and_count[1], kind_and_count[0])
    )
    for kind, count in most_frequent:
        if covered * 1000 >= COVERED_THOUSANDTHS * total:
            break
        covered += count
        kinds.append((kind, count))
    return in_millionths(kinds)


def in_millionths(kinds: Sequence[tuple[PodKind, int]]) -> Popular:
    """Return kinds with their share of the sum of all weights."""
    total = sum(weight for _, weight in kinds)
    return tuple((kind, weight * MILLIONTHS // total) for kind, weight in kinds)


def moved(old: Popular, new: Popular) -> int:
    """Return how much popularity moved between kinds, in millionths."""
    old_weights, new_weights = dict(old), dict(new)
    changes = [new_weights.get(kind, 0) - old_weights.get(kind, 0) for kind in old_weights | new_weights]
    return max(sum(change for change in changes if change > 0), -sum(change for change in changes if change < 0))


@dataclass(frozen=True, slots=True)
class ShareWorth:
    """Worth of shares of GPUs in millionths of a GPU, by thousandths of one GPU.

    ``left`` int64[1001]: worth of the part of a GPU that is left. ``price`` int64[1001]: cost of a share.
    """

    left: Int64
    price: Int64

    @classmethod
    def nothing(cls) -> "ShareWorth":
        """Return the worth in a cluster without shares: 0 for all, so that every share fits anywhere."""
        return cls(np.zeros(1001, np.int64), np.zeros(1001, np.int64))


@dataclass(frozen=True, slots=True)
class Typical:
    """Typical pods as arrays.

    ``pods`` int64[t, 4]: milli-CPU, whole GPUs, thousandths of one GPU, popularity in millionths. ``access`` bool[t,
    models + 1]: the models on which each can run; the first column stands for nodes of unknown model.
    """

    pods: Int64
    access: Bool
    shares: ShareWorth


def typical_of(kinds: Popular, models: Sequence[str], shares: ShareWorth) -> Typical:
    """Return the arrays of popular kinds for the GPU models of the cluster, in order, and the worth of shares."""
    pods = np.zeros((len(kinds), 4), np.int64)
    access = np.zeros((len(kinds), len(models) + 1), np.bool_)
    for index, (kind, weight) in enumerate(kinds):
        pods[index] = (kind.cpu, kind.gpus, kind.share, weight)
        access[index, 0] = not kind.models
        for number, model in enumerate(models):
            access[index, number + 1] = not kind.models or model in kind.models
    return Typical(pods, access, shares)


def _thresholds() -> Int64:
    # sigmoid(x) >= s / 100 from x = ln(s / (100 - s)) on. Decimal rounds correctly, so these are the same everywhere.
    unit = Decimal(1000 * MILLIONTHS)
    exact = [(Decimal(s) / (100 - s)).ln() * unit for s in range(1, 100)]
    return np.array([int(threshold.to_integral_value(ROUND_CEILING)) for threshold in exact], np.int64)


THRESHOLDS: Final = _thresholds()
"""int64[99], ascending: gains in millionths of GPU-thousandths from which int(100 * sigmoid(gain in GPUs)) is 1, ..."""
