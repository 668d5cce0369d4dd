"""Draws mutants of the core at random and runs the tests nearest to each: ``python -m tests.mutation``.

cosmic-ray makes the mutants. Each is made in a copy of the checkout, so that this one stays as it is, and kernels run
as plain Python there (``NUMBA_DISABLE_JIT=1``), so that no mutant is taken for a kernel that was compiled before. The
same seed draws the same mutants of the same code.
"""

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Final

from cosmic_ray.commands.init import init
from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec, TestOutcome, WorkerOutcome

from tests.mutation.score import Mutant, table
from tests.mutation.targets import ROOT, TARGETS, Target

SECONDS_PER_MUTANT: Final = 120.0
LEFT_OUT: Final = ("core/NumberReplacer", "core/RemoveDecorator", "core/ReplaceBinaryOperator_BitOr", "_Is_", "_IsNot_")
"""Operators whose mutants say little: numbers of limits, decorators of data classes, ``X | None`` in annotations (any
import notices it), and comparisons by identity, which others replace by what means the same for singletons."""
COPIED: Final = ("topo_scheduler", "tests", "manifests", "examples", "docs", "pyproject.toml", "README.md", "tox.ini")


def drawn(target: Target, sample: int, seed: int, db: WorkDB) -> list[MutationSpec]:
    """Return a random sample of a target's mutants, in the order in which they are drawn."""
    init(target.files(), db, {})
    every = [mutation for item in db.work_items for mutation in item.mutations]
    every = [one for one in every if not any(left in one.operator_name for left in LEFT_OUT)]
    every.sort(key=lambda one: (str(one.module_path), one.operator_name, one.occurrence))
    return random.Random(f"{seed} {target.name}").sample(every, min(sample, len(every)))


def tried(target: Target, sample: int, seed: int) -> Iterator[Mutant]:
    """Yield mutants of a target once their tests have run. The working directory is the copy.

    Raises:
        RuntimeError: the tests fail without a mutant.
    """
    command = f"{sys.executable} -m pytest -q -x -p no:cacheprovider -m 'not real' {' '.join(target.tests)}"
    if os.system(f"{command} >/dev/null 2>&1") != 0:
        raise RuntimeError(f"{target.name}: its tests fail without a mutant: {command}")
    with use_db(":memory:", WorkDB.Mode.create) as db:
        mutations = drawn(target, sample, seed, db)
    for one in mutations:
        result = mutate_and_test([one], command, SECONDS_PER_MUTANT)
        if result.worker_outcome is WorkerOutcome.NO_TEST:
            continue
        outcome = "survived" if result.test_outcome is TestOutcome.SURVIVED else "killed"
        if outcome == "killed" and "timeout" in (result.output or "")[:40].lower():
            outcome = "timeout"
        yield Mutant(
            target.name, str(one.module_path), one.start_pos[0], one.operator_name, outcome, _changed(result.diff)
        )


def _changed(diff: str | None) -> str:
    """Return the lines that a diff takes away and adds, without its head."""
    lines = (diff or "").splitlines()
    return "\n".join(line for line in lines if line[:1] in "+-" and not line.startswith(("+++", "---")))


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--sample", type=int, default=40, help="mutants of each part (40)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="parts whose name contains this")
    parser.add_argument("--minutes", type=float, default=60.0, help="no mutant is begun after so many minutes (60)")
    parser.add_argument("--out", type=Path, default=Path("mutation.json"), help="results as JSON")
    chosen = parser.parse_args()
    out, until = chosen.out.resolve(), time.monotonic() + 60 * chosen.minutes
    mutants: list[Mutant] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in COPIED:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, Path(folder) / name)
        os.chdir(folder)
        os.environ |= {"NUMBA_DISABLE_JIT": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": folder}
        targets = [target for target in TARGETS if chosen.only in target.name]
        for number, target in enumerate(targets):
            share = time.monotonic() + (until - time.monotonic()) / (len(targets) - number)
            for mutant in tried(target, chosen.sample, chosen.seed):
                mutants.append(mutant)
                print(f"{mutant.outcome:9} {mutant.file}:{mutant.line} {mutant.operator}", flush=True)
                out.write_text(json.dumps({"seed": chosen.seed, "mutants": [asdict(one) for one in mutants]}, indent=1))
                if time.monotonic() > share:
                    break
    print("\n".join(table(mutants)))


if __name__ == "__main__":
    main()
