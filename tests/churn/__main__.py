"""``python -m tests.churn [--hours 24] [--hostile 0.01]``: exits 1 if anything happens that must not."""

import argparse
import sys
import time

from tests.docs.results import keep

from .day import figures, report, run


def main() -> int:
    """Run it; print a line an hour."""
    parser = argparse.ArgumentParser(prog="python -m tests.churn", description=__doc__)
    parser.add_argument("--hours", type=float, default=24.0, help="of virtual time")
    parser.add_argument("--pods", type=int, default=150, help="pods that are there at any time, without hostile ones")
    parser.add_argument("--hostile", type=float, default=0.01, help="share of all pods that are hostile")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="keep the result in docs/reference/results")
    given = parser.parse_args()
    began = time.perf_counter()

    def tell(text: str) -> None:
        print(f"{time.perf_counter() - began:7.0f} s {text}", flush=True)

    day = run(given.hours, given.pods, given.hostile, given.seed, tell)
    print("\n".join(report(day)))
    if given.write:
        result = f"{len(day.violations)} violations" if day.violations else "no violation"
        keep("churn", result, figures(day))
    return 1 if day.violations else 0


if __name__ == "__main__":
    sys.exit(main())
