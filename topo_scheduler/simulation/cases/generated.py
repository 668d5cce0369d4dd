"""Generate clusters and workloads from a few parameters.

``leaf-spine:spines=8,leaves=16,nodes=16,gpus=8``: the number of spines, of leaves per spine, of nodes per leaf, and of
GPUs per node.

``poisson:rate=120/h,jobs=1000,sizes=1:0.5|8:0.3|64:0.2,duration=lognormal:mean=2h,sigma=1.5``: the distributions of
arrivals, sizes and durations. ``poisson`` has exponential gaps between arrivals. ``gamma`` has gaps with the
coefficient of variation ``cv``; above 1 arrivals come in bursts. The same seed generates the same workload.
"""

import random
import re
from collections.abc import Callable, Mapping
from math import exp, log, sqrt
from typing import Final

from topo_scheduler.api.durations import parse_duration
from topo_scheduler.api.objects import Node
from topo_scheduler.simulation.cases.model import CaseError, ClusterCase
from topo_scheduler.simulation.cases.object_factory import Host, TracedJob, make_node, take_host
from topo_scheduler.simulation.cases.options import Options, number, whole_number
from topo_scheduler.simulation.cases.tables import quoted

LEAF_SPINE: Final = "leaf-spine"
SHORTEST_SECONDS: Final = 0.001
"""Shortest duration, in seconds: times have a resolution of one millisecond."""
_MIN_CV: Final = 1e-6
"""Gaps with a smaller coefficient of variation are equal to the millisecond. The gamma shape is ``1 / cv**2``."""
STREAMS: Final = ("poisson", "gamma")
_MOMENTS: Final = {
    "exponential": ("mean",),
    "lognormal": ("mean", "sigma", "duration-cv"),
    "uniform": ("low", "high"),
}
"""The parameters of each distribution of durations, one of which follows its name."""
MAX_NODES: Final = 200_000
MAX_JOBS: Final = 1_000_000
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def leaf_spine(parameters: Options) -> ClusterCase:
    """Return a leaf-spine cluster, with nodes in fabric order.

    Raises:
        CaseError: a parameter is wrong or unknown.
    """
    spines, leaves = (
        parameters.take("spines", whole_number(1, 10_000), 1),
        parameters.take("leaves", whole_number(1, 10_000), 1),
    )
    nodes_per_leaf = parameters.take("nodes", whole_number(1, 10_000), 1)
    host: Host = take_host(parameters)
    parameters.finish()
    if spines * leaves * nodes_per_leaf > MAX_NODES:
        raise CaseError(f"{parameters.spec}: {spines * leaves * nodes_per_leaf} nodes; make it {MAX_NODES} at most")
    nodes: list[Node] = []
    for spine in range(1, spines + 1):
        for leaf in range((spine - 1) * leaves + 1, spine * leaves + 1):
            for _ in range(nodes_per_leaf):
                nodes.append(make_node(f"node-{len(nodes) + 1}", (f"spine-{spine}", f"leaf-{leaf}"), host))
    return ClusterCase(parameters.spec, tuple(nodes))


# ---------------------------------------------------------------- streams


def stream(kind: str, parameters: Options, seed: int) -> list[TracedJob]:
    """Return the jobs of a random arrival process.

    Args:
        kind: one of `STREAMS`.
        parameters: its parameters.
        seed: seed of the random numbers.

    Raises:
        CaseError: a parameter is wrong, missing or unknown.
    """
    for name in ("rate", "duration"):
        if name not in parameters.values:
            raise CaseError(
                f"{parameters.spec}: {name} is missing; write such as rate=120/h and duration=lognormal:mean=2h"
            )
    rate = parameters.take("rate", _rate, 1.0)
    jobs = parameters.take("jobs", whole_number(1, MAX_JOBS), 1000)
    sizes = parameters.take("sizes", _sizes, {1: 1.0})
    spread = max(parameters.take("cv", number(0.0, 100.0), 1.0), _MIN_CV) if kind == "gamma" else 1.0
    rng = random.Random(seed)
    draw_duration = _duration(parameters, rng)
    parameters.finish()
    alpha = 1 / spread**2
    at, traced_jobs = 0.0, []
    counts, weights = list(sizes), list(sizes.values())
    for index in range(1, jobs + 1):
        gap = rng.expovariate(rate) if kind == "poisson" else rng.gammavariate(alpha, 1 / (rate * alpha))
        at += gap  # rounded only in the result: at 1,000 jobs per second, rounding each gap would lose it
        gpus = rng.choices(counts, weights)[0]
        seconds = max(round(draw_duration(), 3), SHORTEST_SECONDS)
        traced_jobs.append(
            TracedJob(f"job-{index}", round(at, 3), seconds, gpus, source=f"{parameters.spec}: job {index}")
        )
    return traced_jobs


def _rate(text: str) -> float:
    """Return a rate such as ``120/h`` in jobs per second."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)/([smhd])", text)
    if match is None or not float(match[1]):
        raise ValueError(f"{quoted(text)} is no rate; write jobs a second, minute, hour or day, such as 120/h")
    return float(match[1]) / _UNITS[match[2]]


def _sizes(text: str) -> dict[int, float]:
    """Return ``1:0.5|8:0.5`` as a weight for each number of GPUs."""
    weights: dict[int, float] = {}
    for entry in text.split("|"):
        size, _, weight = entry.partition(":")
        gpus = whole_number(1, 100_000)(size)
        if gpus in weights:
            raise ValueError(f"{gpus} GPUs are there twice")
        weights[gpus] = number(0.0)(weight or "1")
    return weights


def _duration(parameters: Options, rng: random.Random) -> Callable[[], float]:
    """Return a function that draws durations in seconds: a constant such as ``2h``, or a distribution."""
    text = parameters.take("duration", str, "")
    kind, colon, first_moment = text.partition(":")
    if not colon:
        seconds = parameters.take("duration", parse_duration, 1.0)
        return lambda: seconds
    name, _, value = first_moment.partition("=")
    name, value = name.strip(), value.strip()
    if name in parameters.values:
        raise CaseError(f"{parameters.spec}: {name} is given twice; keep one")
    values: Mapping[str, str] = {**parameters.values, name: value}
    moments = Options(parameters.spec, values)
    known = _MOMENTS.get(kind, ())
    if known and name not in known:
        raise CaseError(f"{parameters.spec}: {kind} durations have no {quoted(name)}; there are {', '.join(known)}")
    if kind == "exponential":
        mean = _moment(parameters, moments, "mean", "lognormal:mean=2h,sigma=1.5")
        return lambda: rng.expovariate(1 / mean)
    if kind == "lognormal":
        mean = _moment(parameters, moments, "mean", "lognormal:mean=2h,sigma=1.5")
        sigma = _sigma(parameters, moments)
        centre = log(mean) - sigma**2 / 2
        return lambda: exp(rng.gauss(centre, sigma))
    if kind == "uniform":
        low, high = (_moment(parameters, moments, name, "uniform:low=1h,high=3h") for name in ("low", "high"))
        if high < low:
            raise CaseError(f"{parameters.spec}: high is less than low; swap them")
        return lambda: rng.uniform(low, high)
    raise CaseError(
        f"{parameters.spec}: duration: {quoted(text)} is none; write a duration such as 2h, exponential:mean=2h,"
        " lognormal:mean=2h,sigma=1.5 or uniform:low=1h,high=3h"
    )


def _sigma(parameters: Options, moments: Options) -> float:
    """Return the standard deviation of the logarithm: ``sigma`` itself, or computed from ``duration-cv``."""
    parameters.take("sigma", str, "")
    if "duration-cv" in moments.values:
        parameters.take("duration-cv", str, "")
        if "sigma" in moments.values:
            raise CaseError(f"{parameters.spec}: sigma and duration-cv both set the variation of durations; keep one")
        return sqrt(log(1 + moments.take("duration-cv", number(0.0, 100.0), 1.0) ** 2))
    return moments.take("sigma", number(0.0, 10.0), 1.0)


def _moment(parameters: Options, moments: Options, name: str, example: str) -> float:
    parameters.take(name, str, "")
    if name not in moments.values:
        raise CaseError(f"{parameters.spec}: the duration has no {name}; write such as {example}")
    return moments.take(name, parse_duration, 1.0)
