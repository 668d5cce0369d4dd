"""Results of benchmarks that no benchmark measured, for tests of the checks."""

from collections.abc import Mapping

from tests.bench.objects import Json
from tests.bench.parts import PARTS
from tests.bench.promises import PROMISES
from tests.bench.ratios import RATIOS, ratios_of
from tests.bench.results import begun


def synthetic_parts(factors: Mapping[str, float] | None = None) -> dict[str, Json]:
    """Return parts with figures for all ratios and checked promises; ``factors`` multiplies some, by their paths."""
    parts: dict[str, Json] = {name: {"seconds": 1.0, "load": {"begin": 0.0, "end": 0.0}} for name in PARTS}
    of_promises = {
        promise.path: (1.1 if promise.at_least else 0.9) * promise.bound for promise in PROMISES if promise.checked
    }
    for path in {path for ratio in RATIOS for path in (ratio.over, ratio.by) if path} | of_promises.keys():
        name, *keys = path.split(".")
        at = parts[name].setdefault("figures", {})
        for key in keys[:-1]:
            at = at.setdefault(key, {})
        value = 8000.0 if path.endswith(".ours.pods_per_s") else 8.0  # ahead of the others by what is promised
        at[keys[-1]] = of_promises.get(path, value) * (factors or {}).get(path, 1.0)
    return parts


def synthetic_run(parts: Mapping[str, Json]) -> Json:
    """Return the results of a run with these parts."""
    return {**begun(), "parts": parts, "ratios": ratios_of(parts)}
