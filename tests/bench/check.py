"""Whether anything became slower than it may: ``python -m tests.bench.check [--from FILE]``, ``tox -e bench-check``.

Without ``--from`` it measures what needs nothing but Python, and what looks worse once more before it fails. With it,
the check reads every ratio of a run of ``tox -e bench``. It also reads the promised floors of races, the promised times
of starts and takeovers, and the verdicts on placements. Both forms compare with ``baseline.json``; a figure that is
missing fails as well.
"""

import argparse
import json
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from . import machine
from .correct import wrong
from .objects import Json
from .parts import CHECKED, PARTS
from .promises import PROMISES
from .ratios import RATIOS, Better, Ratio, ratios_of
from .results import Unusable, failures, measured, read

BASELINE: Final = Path(__file__).with_name("baseline.json")
SCHEMA: Final = 1
REMEDY: Final = """\
A ratio is worse than the baseline allows, or missing. Look for the change that made it so; measured again without your
changes, it shows whether the machine caused it. If the change is meant or a ratio is new, take a new baseline in a
quiet hour; write the reason in the commit message:
  tox -e bench -- --accept                # measure all, then take it
  tox -e bench -- --from FILE --accept    # take a run that was made earlier"""
Verdict = Literal["ok", "worse", "missing", "not in the baseline"]


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a ratio was, and by which factor it may be worse."""

    value: float
    better: Better
    allowed: float

    @property
    def bound(self) -> float:
        """The worst that passes."""
        return self.value / self.allowed if self.better == "higher" else self.value * self.allowed

    def worse(self, value: float) -> bool:
        """Whether a value fails."""
        return value < self.bound if self.better == "higher" else value > self.bound

    def best(self, value: float, other: float) -> float:
        """The better one of two values."""
        return max(value, other) if self.better == "higher" else min(value, other)


@dataclass(frozen=True, slots=True)
class Row:
    """One ratio, compared."""

    name: str
    verdict: Verdict
    now: float | None
    then: Allowed | None


def read_baseline(path: Path = BASELINE) -> dict[str, Allowed]:
    """Return what is committed.

    Raises:
        Unusable: it is not there or not of its form.
    """
    try:
        document = json.loads(path.read_text())
        if document["schema"] != SCHEMA:
            raise ValueError(f"its schema is {document['schema']}, not {SCHEMA}")
        ratios = {name: Allowed(**fields) for name, fields in document["ratios"].items()}
        for name, ratio in ratios.items():
            if ratio.better not in get_args(Better) or not ratio.allowed >= 1 or not ratio.value > 0:
                raise ValueError(f"{name}: a value above 0, higher or lower, and a factor of at least 1 are wanted")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Unusable(f"{path} can't be used: {error}; take a new one: tox -e bench -- --accept") from error
    return ratios


def write_baseline(results: Json, path: Path = BASELINE) -> None:
    """Take the ratios of the parts that a run measured as what is to hold from now on; the others stay as they are.

    Raises:
        Unusable: a part failed, a placement was wrong, a ratio of what was measured is missing, or what is there can't
            be read.
    """
    now: dict[str, float] = results["ratios"]
    wanted = of_parts(results["parts"])
    if errors := wrong(results["parts"]):
        raise Unusable(f"no baseline is taken of a run with wrong placements: {'; '.join(errors)}")
    if lost := [*failures(results["parts"]), *(ratio.name for ratio in wanted if ratio.name not in now)]:
        raise Unusable(f"no baseline is taken of a run without {', '.join(lost)}")
    values = {name: ratio.value for name, ratio in read_baseline(path).items()} if path.exists() else {}
    values |= {ratio.name: now[ratio.name] for ratio in wanted}
    ratios = {
        ratio.name: {"value": values[ratio.name], "better": ratio.better, "allowed": ratio.allowed}
        for ratio in RATIOS
        if ratio.name in values
    }
    path.write_text(json.dumps({"schema": SCHEMA, "ratios": ratios}, indent=2) + "\n")


def compared(baseline: Mapping[str, Allowed], now: Mapping[str, float], ratios: Iterable[Ratio]) -> list[Row]:
    """Compare these ratios; one that is missing on either side is reported, never passed."""
    rows = []
    for ratio in ratios:
        then, value = baseline.get(ratio.name), now.get(ratio.name)
        verdict: Verdict = "ok"
        if then is None:
            verdict = "not in the baseline"
        elif value is None:
            verdict = "missing"
        elif then.worse(value):
            verdict = "worse"
        rows.append(Row(ratio.name, verdict, value, then))
    return rows


def missed(parts: Mapping[str, Json]) -> list[str]:
    """Return the promised rates, races, starts and takeovers that a run misses or lacks, whatever the baseline says."""
    problems = []
    for promise in PROMISES:
        if promise.at_least or promise.checked:
            measured = promise.measured(parts)
            if measured is None or not promise.kept(measured):
                text = "nothing" if measured is None else promise.told(measured)
                problems.append(f"{promise.tells}: {promise.promised} is promised, {text} measured")
    return problems


def better_of(
    baseline: Mapping[str, Allowed], first: Mapping[str, float], other: Mapping[str, float]
) -> dict[str, float]:
    """Return the better value of each ratio of two measurements."""
    better = {**first, **other}
    for name in first.keys() & other.keys() & baseline.keys():
        better[name] = baseline[name].best(first[name], other[name])
    return better


def of_parts(names: Iterable[str]) -> list[Ratio]:
    """Return the ratios that these parts alone yield."""
    wanted = set(names)
    return [ratio for ratio in RATIOS if ratio.parts <= wanted]


def table(rows: Sequence[Row]) -> str:
    """Return the comparison as text."""
    lines = [("ratio", "baseline", "now", "allowed", "")]
    for row in rows:
        then, sign = row.then, "≥" if row.then and row.then.better == "higher" else "≤"
        lines.append(
            (
                row.name,
                f"{then.value:,.4g}" if then else "-",
                f"{row.now:,.4g}" if row.now is not None else "-",
                f"{sign} {then.bound:,.4g}" if then else "-",
                "" if row.verdict == "ok" else row.verdict.upper(),
            )
        )
    widths = [max(len(line[at]) for line in lines) for at in range(5)]
    return "\n".join(
        "  ".join((line[0].ljust(widths[0]), *(line[at].rjust(widths[at]) for at in (1, 2, 3)), line[4])).rstrip()
        for line in lines
    )


def measure_anew(names: Iterable[str]) -> dict[str, Json]:
    """Measure these parts."""
    results = {}
    for name in names:
        _say(f"measuring {name}: {PARTS[name].tells} …")
        results[name] = measured(PARTS[name])
    return results


def check(baseline: Mapping[str, Allowed]) -> tuple[list[Row], list[str]]:
    """Measure what needs nothing but Python, and what failed once more; return the comparison and the failed parts."""
    wanted = of_parts(CHECKED)
    parts = measure_anew(CHECKED)
    now = ratios_of(parts)
    worse = {row.name for row in compared(baseline, now, wanted) if row.verdict == "worse"}
    again = [name for name in CHECKED if any(ratio.name in worse and name in ratio.parts for ratio in wanted)]
    if again:
        _say(f"{', '.join(sorted(worse))} looked worse: {', '.join(again)} once more, the better of both counts")
        second = measure_anew(again)
        now = better_of(baseline, now, ratios_of({**parts, **second}))
        parts |= second
    return compared(baseline, now, wanted), [f"{name}: {parts[name]['failed']}" for name in failures(parts)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare and say so; 1 where anything is worse or missing."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.check", description=__doc__)
    parser.add_argument("--from", dest="file", type=Path, help="look at every ratio of this run of tox -e bench")
    parser.add_argument("--baseline", type=Path, default=BASELINE, help="compare with this instead")
    options = parser.parse_args(arguments)
    try:
        baseline = read_baseline(options.baseline)
        if options.file is None:
            _say(f"load average {machine.load()} on {machine.facts()['cpus']} CPUs")
            rows, failed = check(baseline)
        else:
            results = read(options.file)
            rows = compared(baseline, ratios_of(results["parts"]), RATIOS)
            failed = [f"{name}: {results['parts'][name]['failed']}" for name in failures(results["parts"])]
            failed += [*missed(results["parts"]), *wrong(results["parts"])]
    except Unusable as error:
        _say(str(error))
        return 1
    sys.stdout.write(table(rows) + "\n")
    if rest := len(RATIOS) - len(rows):
        _say(
            f"{rest} more ratios were not checked, they need a whole run: "
            "tox -e bench, then tox -e bench-check -- --from bench-results/bench.json"
        )
    bad = [row for row in rows if row.verdict != "ok"]
    for text in failed:
        _say(f"failed: {text}")
    if bad or failed:
        _say(REMEDY)
        return 1
    _say(f"all {len(rows)} ratios are as good as they have to be")
    return 0


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that what runs is ended with it
    sys.exit(main())
