"""Run FGD's protocol on traces.

``python -m tests.fragmentation --data DIR [--trace default,cpu050] [--seeds 42..51] [--scoring fragmentation,fgd,off]
[--learned]``: one JSON line an experiment, then the means beside those that were published.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from statistics import mean

from tests.docs.results import keep
from tests.fragmentation.experiment import PUBLISHED, run
from tests.fragmentation.openb import machines, wants


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fragmentation")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--trace", default="default")
    parser.add_argument("--seeds", default="42..44")
    parser.add_argument("--scoring", default="fragmentation")
    parser.add_argument("--learned", action="store_true")
    parser.add_argument("--write", action="store_true", help="keep the result in docs/reference/results")
    options = parser.parse_args(arguments)
    low, high = map(int, options.seeds.split(".."))
    cluster = machines(options.data)
    means: dict[str, dict[str, float]] = {}
    for trace in options.trace.split(",") if options.trace != "all" else PUBLISHED:
        pods = wants(options.data, trace)
        for scoring in options.scoring.split(","):
            results = [run(cluster, pods, trace, s, scoring, learned=options.learned) for s in range(low, high + 1)]
            for result in results:
                sys.stdout.write(json.dumps(asdict(result)) + "\n")
            average = mean(result.allocated for result in results)
            means.setdefault(trace, {"published": PUBLISHED[trace]})[scoring] = round(average, 2)
            sys.stdout.write(f"# {trace} {scoring}: mean {average:.2f}, published FGD {PUBLISHED[trace]:.2f}\n")
            sys.stdout.flush()
    if options.write:
        above = all(trace_means.get("fragmentation", 0.0) > trace_means["published"] for trace_means in means.values())
        name = "fragmentation_learned" if options.learned else "fragmentation"
        keep(name, "above the published values" if above else "not above all published values", means)
    return 0


sys.exit(main(sys.argv[1:]))
