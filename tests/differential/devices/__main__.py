"""``python -m tests.differential.devices --cases 50000 --seed 1``: many random cases, as JSON on stdout.

What differs is made small and written to a folder, one file for each kind of difference.
"""

import argparse
import importlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.differential.choices import Json
from tests.differential.shrink import shrink

from .comparison import Allocate, Comparison, Difference, add, judge
from .generator import Case, random_case
from .oracle import Oracle
from .validate import validate

OURS = "tests.differential.devices.ours:allocate"
LISTS = ("slices", "claims", "allocated", "classes")
KEPT = ("node", "slices", "classes", "claims", "allocated")


def allocator(name: str) -> Allocate:
    """The function of a name such as ``package.module:function``."""
    module, _, function = name.partition(":")
    allocate: Allocate = getattr(importlib.import_module(module), function)
    return allocate


def smaller(difference: Difference, allocate: Allocate, oracle: Oracle) -> Case:
    """The smallest case that differs in the same way."""

    def differs(tried: Json) -> bool:
        other, _ = judge(tried, oracle.answer(tried), allocate, Comparison())
        return other is not None and other.kind == difference.kind and not other.order_dependent

    return shrink(difference.case, differs, lists=LISTS, kept=KEPT)


def _write(folder: Path, seed: int, difference: Difference, allocate: Allocate, oracle: Oracle) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"seed-{seed}.json"
    small = smaller(difference, allocate, oracle)
    content = {"kind": difference.kind, "details": difference.details, "case": small}
    path.write_text(json.dumps(content, indent=1) + "\n")
    print(f"differs: {difference.kind}: {path}", file=sys.stderr)


def _oracle_itself(oracle: Oracle) -> Allocate:
    """The oracle as the allocator that is compared, but for allocations that are known to be illegal."""

    def allocate(case: Case) -> list[Json] | None:
        answer = oracle.answer(case)
        if answer.error is not None:
            raise RuntimeError(answer.error)
        return None if answer.allocations is None or validate(case, answer.allocations) else answer.allocations

    return allocate


def main() -> int:
    """Compare so many cases; the exit code says whether any differed."""
    parser = argparse.ArgumentParser(prog="python -m tests.differential.devices", description=__doc__)
    parser.add_argument("--cases", type=int, default=50_000, help="how many cases")
    parser.add_argument("--seed", type=int, default=1, help="of the first case; the next one has the next seed")
    parser.add_argument("--allocator", default=OURS, help="package.module:function; ours without it")
    parser.add_argument("--itself", action="store_true", help="compare the oracle with itself")
    parser.add_argument("--strict", action="store_true", help="count what depends on the order of search as well")
    parser.add_argument("--folder", type=Path, help="where to write cases that differ, made small")
    parser.add_argument("--program", type=Path, help="the kube-allocator to ask, instead of the one built here")
    arguments = parser.parse_args()
    begun = time.monotonic()
    comparison = Comparison()
    kinds: set[str] = set()
    with Oracle(arguments.program) as oracle:
        allocate = _oracle_itself(oracle) if arguments.itself else allocator(arguments.allocator)
        for seed, case in _cases(arguments.seed, arguments.cases):
            difference = add(comparison, case, oracle.answer(case), allocate)
            if difference is None or (difference.order_dependent and not arguments.strict):
                continue
            if difference.kind not in kinds:
                kinds.add(difference.kind)
                print(f"seed {seed}: {difference.kind}: {difference.details}", file=sys.stderr)
                if arguments.folder and not difference.order_dependent:
                    _write(arguments.folder, seed, difference, allocate, oracle)
    print(json.dumps({**comparison.summary(), "seconds": round(time.monotonic() - begun, 1)}, indent=1))
    return 1 if comparison.differences or (arguments.strict and comparison.order_dependent) else 0


def _cases(first: int, count: int) -> Iterator[tuple[int, Case]]:
    for seed in range(first, first + count):
        yield seed, random_case(seed)


if __name__ == "__main__":
    raise SystemExit(main())
