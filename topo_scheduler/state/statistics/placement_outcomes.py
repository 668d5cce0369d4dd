"""Recent outcomes of placements in each leaf, with weights that decay. Empty, and so neutral, after a restart."""

from dataclasses import dataclass
from typing import Final

from topo_scheduler.state.statistics.gang_sizes import GangSizeHistory
from topo_scheduler.state.topology.fabric import Path

HALF_LIFE_SECONDS: Final = 3600.0
"""Seconds after which the weight of an outcome is halved."""
NEUTRAL_SCORE: Final = 1000


_UNIT_WEIGHT: Final = 1 << 20
_HALVING_STEPS: Final = 16
_FADE: Final = tuple(round(_UNIT_WEIGHT * 0.5 ** (step / _HALVING_STEPS)) for step in range(_HALVING_STEPS))
_FORGOTTEN: Final = _UNIT_WEIGHT // 100


@dataclass(frozen=True, slots=True)
class _DecayedOutcomes:
    good: int
    bad: int
    step: int


class History:
    """Decayed outcomes by leaf. Good: a pod completed. Bad: a bind failed, a node refused a pod, or a node failed.

    Weights decay in whole steps of a sixteenth of the half-life, in integers, so that every machine gets the same
    score. The decay counts from the last outcome, so that reading a score changes nothing.
    """

    def __init__(self, half_life: float = HALF_LIFE_SECONDS) -> None:
        self._step = half_life / _HALVING_STEPS
        self._records: dict[Path, _DecayedOutcomes] = {}
        self.gangs = GangSizeHistory()

    def note(self, leaf: Path, now: float, *, good: bool) -> None:
        """Record an outcome at a time in seconds."""
        record = self._faded(leaf, now)
        if record is None:
            if good:
                return  # without failures the record is neutral: nothing to keep
            record = _DecayedOutcomes(0, 0, int(now // self._step))
        self._records[leaf] = _DecayedOutcomes(
            record.good + _UNIT_WEIGHT * good, record.bad + _UNIT_WEIGHT * (not good), record.step
        )

    def score(self, leaf: Path, now: float) -> int:
        """Return the score in thousandths: 1000 without bad outcomes, lower with a larger share of them."""
        record = self._faded(leaf, now)
        if record is None:
            return NEUTRAL_SCORE
        return NEUTRAL_SCORE * (record.good + _UNIT_WEIGHT) // (record.good + record.bad + _UNIT_WEIGHT)

    def known(self) -> tuple[Path, ...]:
        """Return the leaves whose record is not neutral."""
        return tuple(self._records)

    def _faded(self, leaf: Path, now: float) -> _DecayedOutcomes | None:
        record = self._records.get(leaf)
        if record is None:
            return None
        elapsed = int(now // self._step) - record.step
        if elapsed > 0:
            halvings, remainder = divmod(elapsed, _HALVING_STEPS)
            good = (record.good * _FADE[remainder] >> 20) >> halvings
            bad = (record.bad * _FADE[remainder] >> 20) >> halvings
            record = _DecayedOutcomes(good, bad, record.step + elapsed)
        if record.bad < _FORGOTTEN:
            del self._records[leaf]
            return None
        return record
