"""``python -m tests.differential --pairs 100000 --seed 1``: the long form, as JSON on stdout.

What differs is made small and written as a case, which the tests then compare for ever.
"""

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path

from topo_scheduler.cli.filtering import filter_snapshot

from .choices import Json
from .comparison import CASES, Difference, differences, pairs, pending_names, write_case
from .generator import ANNOTATION, snapshot
from .oracle import Answer, Oracle
from .shrink import shrink

MOST_CASES = 30
"""So many differences are made small, each of another kind; it takes a second or so."""


class Run:
    """The counts of a run, one snapshot after the other."""

    def __init__(self, oracle: Oracle, folder: Path, oracle_only: bool, detailed: bool) -> None:
        self._oracle = oracle
        self._folder = folder
        self._oracle_only = oracle_only
        self._detailed = detailed
        self.pairs = self.feasible = 0
        self.differences: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.aspects: Counter[str] = Counter()
        self.aspects_feasible: Counter[str] = Counter()

    def compare(self, seed: int) -> None:
        """Ask both sides about the snapshot of a seed."""
        case = snapshot(seed)
        theirs = self._oracle.answer(case)
        self._count(case, theirs)
        if self._oracle_only:
            return
        for difference in self._differences(case, theirs):
            if difference.kind not in self.differences and len(self.differences) < MOST_CASES:
                self._write(seed, case, difference)
            self.differences[difference.kind] += 1

    def report(self, seconds: float) -> Json:
        """The numbers, as printed."""
        aspects = {
            name: {"pairs": count, "feasible": self.aspects_feasible[name]}
            for name, count in sorted(self.aspects.items())
        }
        return {
            "pairs": self.pairs,
            "differences": None if self._oracle_only else self.differences.total(),
            "kinds": dict(self.differences.most_common()),
            "seconds": round(seconds, 1),
            "feasible": self.feasible,
            "reasons": dict(self.reasons.most_common()),
            "aspects": aspects,
        }

    def _count(self, case: Json, answer: Answer) -> None:
        self.pairs += pairs(case)
        for pod, name in zip(case["pending"], pending_names(case), strict=True):
            feasible = len(answer.feasible[name])
            self.feasible += feasible
            for aspect in pod["metadata"]["annotations"][ANNOTATION].split(","):
                self.aspects[aspect or "none"] += len(case["nodes"])
                self.aspects_feasible[aspect or "none"] += feasible
            for reason in answer.reasons[name].values():
                self.reasons[reason if self._detailed else reason.partition(":")[0]] += 1

    def _differences(self, case: Json, theirs: Answer) -> list[Difference]:
        try:
            return differences(case, theirs, filter_snapshot(case))
        except Exception as error:  # one snapshot too many must not end the run
            return [Difference("any", "any", None, f"raised {type(error).__name__}: {error}")]

    def _write(self, seed: int, case: Json, difference: Difference) -> None:
        def differs(smaller: Json) -> bool:
            left = self._differences(smaller, self._oracle.answer(smaller))
            return any(other.pod == difference.pod and other.kind == difference.kind for other in left)

        small = shrink(case, differs)
        path = self._folder / f"seed-{seed}-{difference.pod.replace('/', '-')}-{difference.node}.json"
        write_case(path, f"Differed: {difference.kind}", small, self._oracle.answer(small))
        print(f"differs: {path}", file=sys.stderr)


def main() -> int:
    """Compare until there are pairs enough; the exit code says whether any differed."""
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__)
    parser.add_argument("--pairs", type=int, default=100_000, help="how many pairs of a pod and a node, at least")
    parser.add_argument("--seed", type=int, default=1, help="of the first snapshot; the next one has the next seed")
    parser.add_argument("--cases", type=Path, default=CASES, help="the folder for what differs, made small")
    parser.add_argument("--oracle-only", action="store_true", help="only count what kube-scheduler says")
    parser.add_argument("--detailed", action="store_true", help="count whole reasons, not only their plugins")
    parser.add_argument("--program", type=Path, help="the kube-filters to ask, instead of the one built here")
    arguments = parser.parse_args()
    begun = time.monotonic()
    seed = arguments.seed
    with Oracle(arguments.program) as oracle:
        run = Run(oracle, arguments.cases, arguments.oracle_only, arguments.detailed)
        while run.pairs < arguments.pairs:
            run.compare(seed)
            seed += 1
    print(json.dumps(run.report(time.monotonic() - begun), indent=1))
    return 1 if run.differences else 0


if __name__ == "__main__":
    raise SystemExit(main())
