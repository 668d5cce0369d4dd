"""Whether a report keeps what is promised."""

from collections.abc import Sequence
from typing import Final

from tests.e2e.api import Json

from .watching import ANSWER_SECONDS

KINDS: Final = ("pods", "gangs")
MOST_MIB: Final = 512
MOST_CORES: Final = 1.0
SLOWER_SECONDS: Final = 1.0
"""How much longer than without attacks the 99th percentile of pods and of gangs may be pending."""
FORGED: Final = "8"
"""The attack with forged annotations, after which the large gang comes."""
FORGED_PODS: Final = 500
LARGE_GANG_PODS: Final = 4000
PROBE_FAILURES: Final = 3
"""Unanswered probes one after the other that end the container, by the manifests."""


Pair = tuple[Json, Json | None]
"""A report, and its control: the same with hostile pods of another scheduler."""


def problems(report: Json, slower_seconds: float = SLOWER_SECONDS) -> list[str]:
    """Return what is not as promised."""
    quiet, attacked = report["quiet"], report["attacked"]
    created = report["tenant"].get("created", {})
    broken = [f"attack {number} created nothing" for number in report["attacks"] if not created.get(str(number))]
    if not report["alive"] or attacked["died"]:
        broken.append("the daemon ended")
    if report["terms"] != 1:
        broken.append(f"the Lease was taken {report['terms']} times")
    if attacked["rss_mib"] > MOST_MIB:
        broken.append(f"{attacked['rss_mib']} MiB resident, more than {MOST_MIB}")
    if attacked["cpus"] > MOST_CORES:
        broken.append(f"{attacked['cpus']} of one core used")
    if attacked["never_bound"]:
        broken.append(f"{attacked['never_bound']} pods of the other namespace were not bound")
    if attacked["livez"]["unanswered"]:
        broken.append(f"{attacked['livez']['unanswered']} probes were not answered in time")
    for kind in KINDS:
        if not quiet[kind]["count"] or not attacked[kind]["count"]:
            broken.append(f"no {kind} were measured")
            continue
        slower = attacked[kind]["p99"] - quiet[kind]["p99"]
        if slower > slower_seconds:
            broken.append(
                f"p99 of {kind} {attacked[kind]['p99']} s with attacks, {quiet[kind]['p99']} s without:"
                f" {slower:.2f} s more"
            )
    return broken


def figures(report: Json) -> Json:
    """Return what is kept of a report: the report, with each promise and whether it was kept."""
    quiet, attacked, created = report["quiet"], report["attacked"], report["tenant"]["created"]
    livez = attacked["livez"]
    slower = {kind: attacked[kind]["p99"] - quiet[kind]["p99"] for kind in KINDS}
    kept = {
        "process": report["alive"] and not attacked["died"] and report["terms"] == 1,
        "memory": attacked["rss_mib"] <= MOST_MIB,
        "core": attacked["cpus"] <= MOST_CORES,
        "livez": not livez["unanswered"],
        "bound": not attacked["never_bound"],
        **{kind: seconds <= SLOWER_SECONDS for kind, seconds in slower.items()},
    }
    promised = {"rss_mib": MOST_MIB, "livez_seconds": round(ANSWER_SECONDS), "percentile": 99}
    return {
        **report,
        "kept": kept,
        "promised": {**promised, "slower_seconds": round(SLOWER_SECONDS)},
        "attacked": {
            **attacked,
            "livez": {**livez, "answered": livez["count"] - livez["unanswered"]},
            "pods_and_gangs_max": max(attacked["pods"]["max"], attacked["gangs"]["max"]),
        },
        "tenant": {
            **report["tenant"],
            "created_in_all": sum(created.values()),
            "of_the_large_gang": min(LARGE_GANG_PODS, max(0, created.get(FORGED, 0) - FORGED_PODS)),
        },
    }


def paired_figures(pairs: Sequence[Pair]) -> Json:
    """Return what is kept of attacks beside a control: a row for each run."""
    return {
        "nodes": pairs[0][0]["nodes"],
        "seconds": round(pairs[0][0]["attacked"]["seconds"]),
        "runs": [*map(_row, pairs)],
    }


def _row(pair: Pair) -> Json:
    report, control = pair
    attacked = report["attacked"]
    return {
        "attacks": " ".join(map(str, report["attacks"])),
        "created": sum(report["tenant"]["created"].values()),
        **{f"{kind}_p99_quiet_s": report["quiet"][kind]["p99"] for kind in KINDS},
        **{f"{kind}_p99_control_s": control["attacked"][kind]["p99"] if control else None for kind in KINDS},
        **{f"{kind}_p99_s": attacked[kind]["p99"] for kind in KINDS},
        "rss_mib": attacked["rss_mib"],
        "cpus": attacked["cpus"],
        "livez_max_s": attacked["livez"]["max"],
        "api_server_p50_quiet_s": report["quiet"]["api_server"]["p50"],
        "api_server_p50_control_s": control["attacked"]["api_server"]["p50"] if control else None,
        "api_server_p50_s": attacked["api_server"]["p50"],
        "kept": not report["problems"],
    }
