"""Clusters and workloads that are made up, by a few numbers.

``leaf-spine:spines=8,leaves=16,nodes=16,gpus=8``: so many spines, leaves below each, and nodes below each leaf.

``poisson:rate=120/h,jobs=1000,sizes=1:0.5|8:0.3|64:0.2,duration=lognormal:mean=2h,sigma=1.5``: moments of arrivals,
sizes and durations. ``poisson`` has exponential gaps between arrivals, ``gamma`` gaps of a stated coefficient of
variation ``cv``: above 1 arrivals come in bursts. The same seed makes the same workload.
"""

import random
import re
from collections.abc import Callable, Mapping
from math import exp, log, sqrt
from typing import Final

from topo_scheduler.api.objects import Node
from topo_scheduler.simulation.cases.making import (
    Host,
    TracedJob,
    make_node,
    take_host,
)
from topo_scheduler.simulation.cases.model import CaseError, ClusterCase
from topo_scheduler.simulation.cases.options import Options, duration, number, whole
from topo_scheduler.simulation.cases.tables import quoted

LEAF_SPINE: Final = "leaf-spine"
SHORTEST: Final = 0.001
"""Seconds: moments are told to the millisecond, and what takes less takes one all the same."""
_LEAST_CV: Final = 1e-6
"""Gaps that vary less are equal to the millisecond; the shape of a gamma distribution is its square's inverse."""
STREAMS: Final = ("poisson", "gamma")
MOST_NODES: Final = 200_000
MOST_JOBS: Final = 1_000_000
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def leaf_spine(own: Options) -> ClusterCase:
    """Return a leaf-spine cluster, its nodes in the order of the fabric.

    Raises:
        CaseError: a parameter is wrong or unknown.
    """
    spines, leaves = own.take("spines", whole(1, 10_000), 1), own.take("leaves", whole(1, 10_000), 1)
    each = own.take("nodes", whole(1, 10_000), 1)
    host: Host = take_host(own)
    own.finish()
    if spines * leaves * each > MOST_NODES:
        raise CaseError(f"{own.spec}: {spines * leaves * each} nodes; make it {MOST_NODES} at most")
    nodes: list[Node] = []
    for spine in range(1, spines + 1):
        for leaf in range((spine - 1) * leaves + 1, spine * leaves + 1):
            for _ in range(each):
                nodes.append(make_node(f"node-{len(nodes) + 1}", (f"spine-{spine}", f"leaf-{leaf}"), host))
    return ClusterCase(own.spec, tuple(nodes))


# ---------------------------------------------------------------- streams


def stream(kind: str, own: Options, seed: int) -> list[TracedJob]:
    """Return a workload of stated moments.

    Args:
        kind: one of `STREAMS`.
        own: its parameters.
        seed: of the random numbers.

    Raises:
        CaseError: a parameter is wrong, missing or unknown.
    """
    for name in ("rate", "duration"):
        if name not in own.values:
            raise CaseError(f"{own.spec}: {name} is missing; write such as rate=120/h and duration=lognormal:mean=2h")
    rate = own.take("rate", _rate, 1.0)
    jobs = own.take("jobs", whole(1, MOST_JOBS), 1000)
    sizes = own.take("sizes", _sizes, {1: 1.0})
    spread = max(own.take("cv", number(0.0, 100.0), 1.0), _LEAST_CV) if kind == "gamma" else 1.0
    draw = random.Random(seed)
    lasts = _duration(own, draw)
    own.finish()
    alpha = 1 / spread**2
    at, found = 0.0, []
    counts, weights = list(sizes), list(sizes.values())
    for index in range(1, jobs + 1):
        gap = draw.expovariate(rate) if kind == "poisson" else draw.gammavariate(alpha, 1 / (rate * alpha))
        at += gap  # told to the millisecond, but not added up so: at a thousand a second gaps would be cut away
        gpus = draw.choices(counts, weights)[0]
        seconds = max(round(lasts(), 3), SHORTEST)
        found.append(TracedJob(f"job-{index}", round(at, 3), seconds, gpus, source=f"{own.spec}: job {index}"))
    return found


def _rate(text: str) -> float:
    """Return ``120/h`` in jobs a second."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)/([smhd])", text)
    if match is None or not float(match[1]):
        raise ValueError(f"{quoted(text)} is no rate; write jobs a second, minute, hour or day, such as 120/h")
    return float(match[1]) / _UNITS[match[2]]


def _sizes(text: str) -> dict[int, float]:
    """Return ``1:0.5|8:0.5`` as a weight for each number of GPUs."""
    found: dict[int, float] = {}
    for part in text.split("|"):
        size, _, weight = part.partition(":")
        gpus = whole(1, 100_000)(size)
        if gpus in found:
            raise ValueError(f"{gpus} GPUs are there twice")
        found[gpus] = number(0.0)(weight or "1")
    return found


def _duration(own: Options, draw: random.Random) -> Callable[[], float]:
    """Return what draws durations: ``2h`` is always the same, else a distribution by its moments."""
    told = own.take("duration", str, "")
    kind, colon, first = told.partition(":")
    if not colon:
        seconds = own.take("duration", duration, 1.0)
        return lambda: seconds
    name, _, value = first.partition("=")
    name, value = name.strip(), value.strip()
    if name in own.values:
        raise CaseError(f"{own.spec}: {name} is given twice; keep one")
    values: Mapping[str, str] = {**own.values, name: value}
    moments = Options(own.spec, values)
    if kind == "exponential":
        _only(own, name, kind, "mean")
        mean = _moment(own, moments, "mean", "lognormal:mean=2h,sigma=1.5")
        return lambda: draw.expovariate(1 / mean)
    if kind == "lognormal":
        _only(own, name, kind, "mean", "sigma", "duration-cv")
        mean = _moment(own, moments, "mean", "lognormal:mean=2h,sigma=1.5")
        sigma = _sigma(own, moments)
        centre = log(mean) - sigma**2 / 2
        return lambda: exp(draw.gauss(centre, sigma))
    if kind == "uniform":
        _only(own, name, kind, "low", "high")
        low, high = (_moment(own, moments, name, "uniform:low=1h,high=3h") for name in ("low", "high"))
        if high < low:
            raise CaseError(f"{own.spec}: high is less than low; swap them")
        return lambda: draw.uniform(low, high)
    raise CaseError(
        f"{own.spec}: duration: {quoted(told)} is none; write a duration such as 2h, exponential:mean=2h,"
        " lognormal:mean=2h,sigma=1.5 or uniform:low=1h,high=3h"
    )


def _only(own: Options, name: str, kind: str, *known: str) -> None:
    """Check the parameter that stands right behind the name of a distribution."""
    if name not in known:
        raise CaseError(f"{own.spec}: {kind} durations have no {quoted(name)}; there are {', '.join(known)}")


def _sigma(own: Options, moments: Options) -> float:
    """Return the deviation of the logarithm: told as it is, or by the coefficient of variation of the durations."""
    own.take("sigma", str, "")
    if "duration-cv" in moments.values:
        own.take("duration-cv", str, "")
        if "sigma" in moments.values:
            raise CaseError(f"{own.spec}: sigma and duration-cv both tell how durations vary; keep one")
        return sqrt(log(1 + moments.take("duration-cv", number(0.0, 100.0), 1.0) ** 2))
    return moments.take("sigma", number(0.0, 10.0), 1.0)


def _moment(own: Options, moments: Options, name: str, example: str) -> float:
    own.take(name, str, "")
    if name not in moments.values:
        raise CaseError(f"{own.spec}: the duration has no {name}; write such as {example}")
    return moments.take(name, duration, 1.0)
