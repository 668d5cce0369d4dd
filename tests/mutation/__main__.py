"""Draws mutants of the core at random and asks the tests that come by the changed line: ``python -m tests.mutation``.

cosmic-ray makes the mutants. Nothing is written to files: pytest collects the tests once, and each mutant is tried in a
fork of that process, in which the changed function has the mutant's code. A first pass over all tests records which of
them comes by which line, and its CPU time. The same seed draws the same mutants of the same code, and properties try
the same examples each time.
"""

import argparse
import json
import os
import tempfile
import time
from dataclasses import asdict
from itertools import chain, zip_longest
from pathlib import Path

import pytest

from tests.mutation.score import Mutant, table
from tests.mutation.targets import TARGETS, TESTS


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--sample", type=int, default=20, help="mutants of each part (20)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="parts whose name contains this")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    parser.add_argument("--out", type=Path, default=Path("mutation.json"), help="results as JSON")
    parser.add_argument("tests", nargs="*", default=TESTS, help="tests that are asked (those of the core)")
    chosen = parser.parse_args()
    # Before anything is imported that reads them.
    os.environ |= {"NUMBA_DISABLE_JIT": "1", "CI": "1"}
    from tests.mutation.mutants import drawn
    from tests.mutation.trial import Trial

    targets = [target for target in TARGETS if chosen.only in target.name]
    of_each = [list(drawn(target, chosen.sample, chosen.seed)) for target in targets]
    changes = [change for change in chain.from_iterable(zip_longest(*of_each)) if change is not None]
    mutants: list[Mutant] = []
    begun = time.monotonic()

    def tell(mutant: Mutant) -> None:
        mutants.append(mutant)
        minutes = (time.monotonic() - begun) / 60
        what = f"{mutant.file}:{mutant.line} {mutant.operator} {mutant.by}"
        print(f"{minutes:5.1f} {mutant.outcome:9} {what}", flush=True)
        chosen.out.write_text(
            json.dumps({"seed": chosen.seed, "mutants": [asdict(entry) for entry in mutants]}, indent=1)
        )

    print(f"{len(changes)} mutants", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(changes, Path(folder), chosen.jobs, tell)
        # Threads watch over the time of tests, since the alarm is for the whole.
        options = ["-q", "-s", "-p", "no:cacheprovider", "-m", "not real and not slow", "--timeout-method=thread"]
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # hypothesis is imported here already
        pytest.main([*options, *chosen.tests], plugins=[trial])
    print("\n".join(table(mutants)))


if __name__ == "__main__":
    main()
