"""``python -m tests.soak [--events 1000000] [--pods 10000]``: exits 1 if anything grows without an end."""

import argparse
import sys
import time

from tests.docs.results import keep

from .soak import figures, run, verdict


def main() -> int:
    """Run it; print every so many events, and in the end what leaks."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000, help="changes of objects that are lived through")
    parser.add_argument("--pods", type=int, default=10_000, help="pods that are there at any time")
    parser.add_argument("--every", type=int, default=50_000, help="events from one line to the next")
    parser.add_argument("--write", action="store_true", help="keep the result in docs/reference/results")
    given = parser.parse_args()
    began = time.perf_counter()

    def tell(text: str) -> None:
        print(f"{time.perf_counter() - began:7.0f} s {text}", flush=True)

    result = run(given.events, given.pods, given.every, tell)
    print("what happened: " + ", ".join(f"{count} {what}" for what, count in result.begun.items()))
    wrong = verdict(result, given.events)
    print("\n".join(wrong) if wrong else "nothing grows, and nothing is left")
    if given.write:
        keep("soak", "; ".join(wrong) or "nothing grew", figures(result))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
