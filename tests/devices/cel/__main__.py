"""``python -m tests.devices.cel --expressions 100000 --seed 1``: the long form, as JSON on stdout.

``--record`` writes what kube-cel answers to the table, which the tests then compare with ours.
"""

import argparse
import json
import re
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from .comparison import DEVICES, RECORDED, differs, not_understood, ours, read
from .generator import random_expression
from .oracle import Oracle
from .table import expressions


def record(oracle: Oracle) -> None:
    """Write the answers to the table, one a line."""
    lines: list[str] = []
    for feature, expression in expressions():
        answer = oracle.answer(expression, DEVICES)
        outcomes: Any = "invalid" if answer.error else answer.outcomes
        lines.append(json.dumps([feature, expression, outcomes], ensure_ascii=False))
    RECORDED.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def compare(oracle: Oracle, first_seed: int, count: int) -> dict[str, Any]:
    """Return the counts of random expressions; differences go to stderr."""
    devices = read(DEVICES)
    kinds: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    differences = answers = 0
    begun = time.monotonic()
    for seed in range(first_seed, first_seed + count):
        kind, expression = random_expression(seed)
        theirs, mine = oracle.answer(expression, DEVICES), ours(expression, devices, with_steps=True)
        kinds[f"{kind}, {'invalid' if theirs.error else 'valid'}"] += 1
        answers += len(theirs.outcomes) or 1
        if difference := differs(mine, theirs):
            differences += 1
            print(f"seed {seed}: {expression}\n    {difference}", file=sys.stderr)
        reasons.update(_general(reason) for reason in not_understood(mine, theirs))
    return {
        "expressions": count,
        "kinds": dict(sorted(kinds.items())),
        "answers": answers,
        "differences": differences,
        "not understood": reasons.total(),
        "reasons": dict(reasons.most_common()),
        "seconds": round(time.monotonic() - begun, 1),
    }


def _general(reason: str) -> str:
    return re.sub(r" \(line.*|'.*'|quantity [^ ]*\d[^ ]*", "", reason)


def main() -> int:
    """Compare, or record; the exit code says whether any answer differed."""
    parser = argparse.ArgumentParser(prog="python -m tests.devices.cel", description=__doc__)
    parser.add_argument("--expressions", type=int, default=100_000, help="how many random expressions")
    parser.add_argument("--seed", type=int, default=1, help="of the first one; the next one has the next seed")
    parser.add_argument("--record", action="store_true", help="write the answers to the table instead")
    parser.add_argument("--program", type=Path, help="the kube-cel to ask, instead of the one built here")
    arguments = parser.parse_args()
    with Oracle(arguments.program) as oracle:
        if arguments.record:
            record(oracle)
            return 0
        report = compare(oracle, arguments.seed, arguments.expressions)
    print(json.dumps(report, indent=1))
    return 1 if report["differences"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
