"""The page of measurements in docs/, made of a run's JSON and of nothing else: ``python -m tests.bench --docs``."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.docs.results import recorded_figures

from .device_promises import device_promises
from .objects import Json
from .parts import PARTS
from .promises import PROMISES, SETTLED_ELSEWHERE
from .ratios import RATIOS
from .reliability_promises import reliability_promises
from .reservation_promises import reservation_promises
from .results import read, write

REFERENCE: Final = Path(__file__).resolve().parents[2] / "docs" / "reference"
PAGE: Final = REFERENCE / "measurements.md"
COPY: Final = REFERENCE / "measurements.json"
"""The run that the page describes."""

_HEAD: Final = """\
<!-- Written by `python -m tests.bench --docs` from measurements.json; measure again, don't change this file. -->
# Measurements

One run of `tox -e bench`, one part after the other, on one machine. Rates and times are those of this machine in that
hour; the [ratios](#ratios) hold better, and `tox -e bench-check` fails where one becomes worse than its baseline
allows. How it was measured, and what it means: [speed](../explanation/speed.md). A figure with a link comes from the
linked page, not from this run. All other figures: [measurements.json](measurements.json).

Times in core are CPU time: what a decision takes when nothing else runs. Races, memory and traffic are of the daemon as
a process of its own; API server, scheduler and the measuring program share the CPUs.
"""


def publish(results: Json) -> None:
    """Keep a run in docs/, and write the page."""
    write(COPY, results)
    PAGE.write_text(page(results), encoding="utf-8")


def page_of_copy() -> str:
    """Return the page of the run that is kept in docs/."""
    return page(read(COPY))


def page(results: Json) -> str:
    """Return the page."""
    parts = results["parts"]
    text = [_HEAD, "\n", _machine(results)]
    for title, rows in (
        ("Promises", _promises(parts)),
        ("Beside other schedulers", _races(parts)),
        ("Decisions on gangs", _decisions(parts)),
        ("Pods alone", _alone(parts)),
        ("No room", _no_room(parts)),
        ("Experiments of FGD", _fgd(parts)),
        ("Memory and start", _memory(parts)),
        ("At rest and at work", _load(parts)),
        ("Records", _records(parts)),
        ("Start and nodes", _starting(parts)),
        ("Start and takeover on a real control plane", _takeover(parts)),
        ("Failures", _recovery(parts)),
        ("What dies on a real control plane", _healing(parts)),
        ("Beside an integer solver", _gap(parts)),
        ("Ratios", _ratios(results["ratios"])),
        ("How long it took", _took(parts)),
    ):
        text.append(f"\n## {title}\n\n{_table(rows)}")
    return "".join(text)


Rows = Iterator[Sequence[Any]]
"""The first is the header."""


def _table(rows: Iterable[Sequence[Any]]) -> str:
    header, *rest = [[_cell(cell) for cell in row] for row in rows]
    if not rest:
        return "Not measured in this run.\n"
    lines = [header, ["---"] * len(header), *rest]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _cell(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "**no**"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
        case _:
            return str(value)


def _figures(parts: Mapping[str, Json], name: str, *keys: str) -> Any:
    """Return what a part measured below some keys, an empty dict where it did not."""
    value: Any = parts.get(name, {}).get("figures", {})
    for key in keys:
        value = value.get(key, {})
    return value


def _machine(results: Json) -> str:
    machine, parts = results["machine"], results["parts"]
    loops = [part["reference"] for part in parts.values() if "reference" in part]
    python, compiled = ([loop[key] for loop in loops] for key in ("python_ns", "compiled_ns"))
    loads = [part["load"] for part in parts.values()]
    lines = [
        f"Measured {results['made'][:10]} on {machine['cpus']} CPUs ({machine['model']}, {machine['machine']}), "
        f"{machine['system']}, Python {machine['python']}.",
        f"Code: commit {results.get('commit') or 'not recorded'}, digest of `topo_scheduler` {results['source']}.",
    ]
    if loads:
        highest = max(max(load.values()) for load in loads)
        lines.append(
            f"Load average {loads[0]['begin']} at the begin, {loads[-1]['end']} at the end, {highest} at most."
        )
    if loops:
        lines.append(
            f"A step of the reference loop in Python took {min(python):.0f} to {max(python):.0f} ns, of the compiled "
            f"one {min(compiled):.2f} to {max(compiled):.2f} ns: compare these before figures of two days or machines."
        )
    if lacking := [name for name in PARTS if name not in parts]:
        lines.append(f"**Not measured in this run: {', '.join(lacking)}.**")
    if failed := [name for name, part in parts.items() if "failed" in part]:
        lines.append(f"**Failed in this run, and missing below: {', '.join(failed)}.**")
    return "\n".join(lines) + "\n"


def _promises(parts: Mapping[str, Json]) -> Rows:
    yield "what", "promised", "measured", "kept"
    for promise in PROMISES:
        figure = promise.measured(parts)
        if figure is None:
            yield promise.tells, promise.promised, "not measured", ""
        else:
            measured = "; ".join(filter(None, (promise.told(figure), promise.remark(parts))))
            yield promise.tells, promise.promised, measured, promise.kept(figure)
    recorded = recorded_figures()
    settled = (*SETTLED_ELSEWHERE, *reservation_promises(recorded), *reliability_promises(recorded))
    for other in (*settled, *device_promises(recorded)):
        yield other.tells, other.promised, f"[{other.measured}]({other.page})", other.kept


_CONTESTANTS: Final = {"ours": "topo-scheduler", "kube_scheduler": "kube-scheduler 1.36.3", "kai": "KAI-Scheduler"}
_ALSO: Final = {"gangs": "kai"}
"""The part in which another contestant ran the same race."""
_RACES: Final = (
    ("plain", "pods of 2 GPUs"),
    ("gangs", "gangs of 8 whole nodes, each in a leaf of 16"),
    ("linked", "gangs of 3 pods of 4 GPUs, each asks for the whole network of its nodes"),
    ("embedded", "pods of 2 GPUs, embedded API server"),
)


def _races(parts: Mapping[str, Json]) -> Rows:
    yield (
        "race",
        "nodes",
        "scheduler",
        "pods",
        "pods/s",
        "ours is",
        "CPU ms a pod",
        "MiB",
        "first bind after s",
        "correct %",
    )
    for name, tells in _RACES:
        for size, race in _figures(parts, name).items():
            race = race | _figures(parts, _ALSO.get(name, ""), size)
            ours = race["ours"]["pods_per_s"]
            for key, contestant in _CONTESTANTS.items():
                if key not in race:
                    continue
                result = race[key]
                rate, version = result["pods_per_s"], result.get("version", "").lstrip("v")
                times = f"{ours / rate:.3g} x" if ours and rate and key != "ours" else None
                yield (
                    *(tells, race["nodes"], f"{contestant} {version}".strip(), result["bound"], rate, times),
                    *(result["cpu_ms_per_pod"], result["rss_mb"], result["first_bind_after_s"]),
                    result["verifier"]["correct_percent"],
                )


_PERCENTILES: Final = ("p50_us", "p99_us", "max_us")


def _decisions(parts: Mapping[str, Json]) -> Rows:
    yield "decision", "nodes", "median µs", "99th percentile µs", "most µs"
    figures = _figures(parts, "decisions")
    if not figures:
        return
    for size, rows in (
        ("4", figures["growth"]["gang_of_4"]),
        ("8", figures["gang_of_8"]),
        ("64", figures["growth"]["gang_of_64"]),
    ):
        for timings in rows.values():
            yield f"gang of {size}, leaves of 16", timings["nodes"], *(timings[key] for key in _PERCENTILES)
    targets = figures["targets"]
    for tells, timings in (
        ("gang of 4, leaves of 100", targets["gang_of_4"]),
        ("gang of 1,000 in 100 segments, leaves of 10", targets["gang_in_segments"]),
        ("the same, each segment with a launcher without GPU", figures["mixed_segments"]),
        ("gang of 64 without room, looked at again", targets["recheck"]),
    ):
        yield tells, timings["nodes"], *(timings.get(key) for key in _PERCENTILES)
    links = {"no_links": "links unknown", "not_asked": "links known, not asked for", "asked": "asks for 100 Gb/s"}
    for gang, ways in figures["bandwidth"].items():
        for way, timings in ways.items():
            yield f"{gang.replace('_', ' ')}, {links[way]}", timings["nodes"], *(timings[key] for key in _PERCENTILES)
    racks = {
        "no_racks": "no racks",
        "not_asked": "racks not asked for",
        "required": "one rack",
        "preferred": "one rack preferred",
    }
    for way, timings in figures["accelerators"].items():
        yield f"gang of 16, leaves of nine, {racks[way]}", timings["nodes"], *(timings[key] for key in _PERCENTILES)


def _alone(parts: Mapping[str, Json]) -> Rows:
    yield "pods alone, while the cluster fills", "nodes", "median µs", "99th percentile µs", "most µs"
    labels = {
        "whole": "whole GPUs, our score",
        "scoring_off": "whole GPUs, scoring off",
        "shares": "some ask for shares of a GPU",
    }
    for name, timings in _figures(parts, "alone").items():
        yield labels[name], timings["nodes"], *(timings[key] for key in _PERCENTILES)


def _no_room(parts: Mapping[str, Json]) -> Rows:
    yield "what", "nodes", "pods that run", "CPU ms", "longest part or step, ms"
    for case in _figures(parts, "roomless", "preemption"):
        what = f"choice of victims for {_gang(case['gang'])} of {case['gpus_each']} GPUs: {case['victims']} pods"
        yield what, case["nodes"], case["candidates"], case["p50_ms"], None
    for case in _figures(parts, "roomless", "explanations").values():
        what = f"why a gang of {case['gang']} waits, and what would help"
        yield what, case["nodes"], case["pods"], case["p50_ms"], case["slice_max_ms"]
    for key, what in (
        ("reservation", "nodes are held for a gang of 16"),
        ("moves", "moves that make room for a gang of 16"),
    ):
        for case in _figures(parts, "waiting", key).values():
            yield what, case["nodes"], case["pods"], case["cpu_ms"], case["step_max_cpu_ms"]
    for case in _figures(parts, "waiting", "backlog").values():
        what = f"each second of a backlog of {case['gangs']:,} gangs, a pod ends in it"
        yield what, case["nodes"], case["nodes"], case["cpu_ms_per_second"], None


def _gang(members: int) -> str:
    return "a pod" if members == 1 else f"a gang of {members}"


def _fgd(parts: Mapping[str, Json]) -> Rows:
    yield "score", "seconds", "CPU s, nodes included", "decisions", "GPUs allocated %", "published %"
    labels = {"ours": "ours", "learned": "ours, typical pods learned", "fgd": "the published one"}
    figures = _figures(parts, "fgd")
    for name, tells in labels.items():
        if name in figures:
            run = figures[name]
            spent, share = (run["seconds"], run["cpu_s_with_its_nodes"]), f"{run['allocated_percent']:.2f}"
            yield tells, *spent, run["decisions"], share, f"{figures['published_percent']:.2f}"


def _memory(parts: Mapping[str, Json]) -> Rows:
    yield (
        "nodes",
        "bound pods",
        "MiB of its own",
        "MiB resident",
        "most resident",
        "first bind after s",
        "CPU s until then",
    )
    figures = _figures(parts, "memory")
    for by_pods in figures.values():
        for sample in by_pods.values() if isinstance(by_pods, dict) else ():
            sizes = (sample["uss_mb"], sample["rss_mb"], sample["peak_rss_mb"])
            yield sample["nodes"], sample["pods"], *sizes, sample["first_bind_after_s"], sample["cpu_s"]
    if figures:
        yield "each", "", f"{figures['kib_per_node']} KiB", "", "", "", ""
        yield "", "each", f"{figures['kib_per_pod']} KiB", "", "", "", ""


def _load(parts: Mapping[str, Json]) -> Rows:
    yield "what", "CPUs", "MB/s received", "MB/s sent", "bytes received a decision", "bytes sent a decision"
    figures = _figures(parts, "load")
    if not figures:
        return
    where = f"{figures['nodes']:,} nodes, {figures['pods_bound_before']:,} pods, {figures['rss_mb_after_load']:.0f} MiB"
    for key in ("at_rest", "at_work"):
        load = figures[key]
        what = f"{where}, " + (f"{load['decisions_per_s']:.0f} decisions a second" if key == "at_work" else "at rest")
        rates = (load["cpu_cores"], load["received_mb_per_s"], load["sent_mb_per_s"])
        yield what, *rates, load.get("received_bytes_per_decision"), load.get("sent_bytes_per_decision")


def _records(parts: Mapping[str, Json]) -> Rows:
    yield "what", "with neither", "with a record", "with an audit log", "with both"
    figures = _figures(parts, "record")
    if not figures:
        return
    core, served = figures["core"], figures["served"]
    for key, what in (
        ("us_per_pod", "CPU µs a pod in the engine's thread"),
        ("us_per_pod_all_threads", "in all threads"),
    ):
        yield what, *(core[f"{name}_{key}"] for name in ("nobody", "record", "audit")), None
    what = f"pods/s on a real API server, {served['nodes']:,} nodes"
    yield what, served["nobody"]["pods_per_s"], served["record"]["pods_per_s"], None, served["both"]["pods_per_s"]
    pause = figures["checkpoint"]
    yield (
        f"pause of a checkpoint, {pause['nodes']:,} nodes, {pause['pods']:,} pods, s",
        None,
        pause["seconds"],
        None,
        None,
    )


def _starting(parts: Mapping[str, Json]) -> Rows:
    yield "what", "CPU"
    figures = _figures(parts, "starting")
    if not figures:
        return
    kernels, nodes = figures["kernels"], figures["nodes"]
    yield "a process that compiles all kernels", f"{kernels['cold']['process_cpu_s']} s"
    yield "a process that has all kernels from a cache", f"{kernels['cached']['process_cpu_s']} s"
    for command, seconds in figures.get("commands", {}).get("cpu_s", {}).items():
        yield f"`{command}` until its first request", f"{seconds} s"
    yield f"a first list of {nodes['nodes']:,} nodes, decoded", f"{nodes['first_list_ms']} ms"
    yield "the same list, every node changed", f"{nodes['relist_all_changed_ms']} ms"
    yield "one node's changed labels: median, 99th percentile", _pair(nodes["one_change"])
    for size, timings in figures["fragmentation"].items():
        yield f"fragmentation of {int(size):,} nodes: median, 99th percentile", _pair(timings)


def _takeover(parts: Mapping[str, Json]) -> Rows:
    yield "from … to the next bind", "nodes", "shortest s", "longest s"
    figures = _figures(parts, "takeover")
    for key, what in (("first_bind", "the start of a process"), ("after_sigkill", "SIGKILL of the leader")):
        if key in figures:
            yield what, figures["nodes"], figures[key]["min_s"], figures[key]["max_s"]


def _pair(timings: Json) -> str:
    return f"{timings['p50_us'] / 1e3:.3g} ms, {timings['p99_us'] / 1e3:.3g} ms"


def _recovery(parts: Mapping[str, Json]) -> Rows:
    yield "what", "measured"
    figures = _figures(parts, "recovery")
    if not figures:
        return
    for failure in figures["healing"].values():
        what = f"{failure['failed_nodes']} of {failure['nodes']} nodes fail"
        yield f"{what}: CPU until every lost pod has a reservation", f"{failure['cpu_s_until_all_seats_are_held']} s"
        yield f"{what}: pods moved, pods lost", f"{failure['moved_pods']}, {failure['lower_bound']}"
    thread = figures["watching"]
    yield f"kopf's thread on {thread['nodes']:,} nodes: CPU until all are listed", f"{thread['thread_cpu_s']} s"
    yield "its memory, with what is imported for it", f"{thread['memory_mb_with_import_and_lists']} MiB"
    yield "its CPU for a heartbeat", f"{thread['cpu_ms_per_heartbeat']} ms"
    yield "a failure is seen after it was written", f"{thread['failure_seen_after_ms']} ms"


def _healing(parts: Mapping[str, Json]) -> Rows:
    yield (
        "what",
        "pods on it",
        "moved",
        "gangs hit",
        "whole again",
        "wait for room",
        "s until it is seen",
        "s from the debounce to the plan",
        "all bound after s",
        "without the Job controller s",
    )
    steps = {"eight_nodes": "eight nodes", "leaf": "a leaf", "spine": "a spine"}
    for part, lead in (("heal", ""), ("heal_full", "no GPU is free: ")):
        yield from _healing_steps(_figures(parts, part), {name: f"{lead}{what}" for name, what in steps.items()})


def _healing_steps(figures: Json, labels: Mapping[str, str]) -> Rows:
    for name in (key for key in labels if key in figures):
        step = figures[name]
        times = step["s_from_not_ready"]
        yield (
            *(labels[name], step["pods_on_them"], step["moved_pods"], step["gangs_hit"], step["gangs_whole_again"]),
            *(step["gangs_that_wait_for_room"], step["seen_after_s"], step["to_plan_s"]),
            *(times.get("last_replacement_bound"), times.get("last_bound_less_the_job_controller")),
        )


def _gap(parts: Mapping[str, Json]) -> Rows:
    yield "gangs", "tried", "no place", "as well as can be", "more leaves", "a wider level", "missed", "median ms"
    labels = {
        "mixed": "of different pods",
        "mixed_in_segments": "of different pods, in segments",
        "tied": "tied to each other",
        "tied_in_segments": "tied to each other, in segments",
    }
    for name, counts in _figures(parts, "gap").items():
        results = ("impossible", "optimal", "leaves_too_many", "level_too_wide", "missed")
        yield labels[name], counts["instances"], *(counts[key] for key in results), counts["p50_ms"]


def _ratios(ratios: Mapping[str, float]) -> Rows:
    yield "ratio", "value", "better is", "worse by more fails", "of what"
    for ratio in RATIOS:
        if ratio.name in ratios:
            yield f"`{ratio.name}`", f"{ratios[ratio.name]:,.4g}", ratio.better, f"x {ratio.allowed:g}", ratio.tells


def _took(parts: Mapping[str, Json]) -> Rows:
    yield "part", "seconds", "load average before, after", "what"
    for name, part in parts.items():
        load = f"{part['load']['begin']}, {part['load']['end']}"
        yield f"`{name}`", part["seconds"], load, PARTS[name].tells + (" (**failed**)" if "failed" in part else "")
