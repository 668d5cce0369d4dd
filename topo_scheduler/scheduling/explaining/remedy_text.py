"""Remedies as text, short enough for an event."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from topo_scheduler.api.text import counted, few_of
from topo_scheduler.scheduling.explaining.remedies import EndingPods, Remedy, RemedyKind

NOTE_BYTES: Final = 1024
"""The API server's limit for the message of an event, in bytes."""
MAX_NAMES: Final = 3
"""Names of a list that the text contains; it only counts the others."""
_INTRO: Final = " What would help, cheapest first: "


def say(way: Remedy, wall: float, reader: str = "") -> str:
    """Return one remedy as an instruction to the reader.

    Args:
        way: the remedy.
        wall: the current time, in seconds since the epoch.
        reader: namespace whose names the text may contain, see `few_for`; empty for all names.
    """
    match way.kind:
        case RemedyKind.WAIT:
            ended_text = _ended_text(way, reader)
            return f"wait until about {_time_of_day(way.until, wall)}, when {ended_text} {_end_verb(way, reader)}"
        case RemedyKind.RETURN:
            verb = "uncordon" if way.value == "uncordon" else "bring back"
            return f"{verb} {_plural(len(way.nodes), 'node')} {few_of(way.nodes, MAX_NAMES)}"
        case RemedyKind.COMBINE:
            parts = way.parts
            return " and ".join(
                _reduce_text(part) if part.kind is RemedyKind.REDUCE else say(part, wall, reader) for part in parts
            )
        case RemedyKind.RELAX if not way.level:
            return f"set {way.demand} to {way.value}"
        case RemedyKind.RELAX:
            where = "on one node" if way.level == "node" else f"under one {way.level}"
            return f"set {way.demand} to {way.value}: it fits {where if way.level != 'cluster' else 'in the cluster'}"
        case RemedyKind.DROP:
            return _drop_text(way)
        case RemedyKind.REDUCE:
            return _reduce_text(way) if _is_useful(way) else _fits_text(way)
        case RemedyKind.FREE:
            ended_text = _ended_text(way, reader)
            nodes_text = f"{_plural(len(way.nodes), 'node')} {few_of(way.nodes, MAX_NAMES)}"
            caveat = "" if way.least else " (a smaller set may be enough)"
            amounts = f"{counted(way.cost.pods, 'pod')}, {counted(way.cost.gpus, 'GPU')}"
            return f"end {ended_text} on {nodes_text}: {amounts}{caveat}"


def say_all(ways: Sequence[Remedy], wall: float, max_bytes: int = NOTE_BYTES, reader: str = "") -> str:
    """Return as many remedies as fit into ``max_bytes``, the cheapest first. Empty where none fits."""
    text, count = _INTRO, 0
    too_small = next((way for way in ways if way.kind is RemedyKind.REDUCE and not _is_useful(way)), None)
    size_text = f" {_fits_text(too_small)}." if too_small is not None else ""
    max_bytes -= len(size_text.encode())
    for number, way in enumerate((way for way in ways if _is_useful(way)), 1):
        part = f"{'; ' if count else ''}({number}) {say(way, wall, reader)}"
        if len((text + part).encode()) >= max_bytes:
            break
        text, count = text + part, count + 1
    return (f"{text}." if count else "") + size_text


def _is_useful(way: Remedy) -> bool:
    """Whether the remedy is useful: a gang with less than half of its members is a different job."""
    if way.parts:
        return all(_is_useful(part) for part in way.parts)
    return way.kind is not RemedyKind.REDUCE or way.size >= way.cost.members


def _reduce_text(way: Remedy) -> str:
    return f"reduce it to {counted(way.size, 'pod')}"


def _fits_text(way: Remedy) -> str:
    return f"{way.size} of {counted(way.size + way.cost.members, 'pod')} would fit now"


def _time_of_day(until: float, wall: float) -> str:
    """Return a time of day, with the date where it is not within the next 20 hours."""
    time = datetime.fromtimestamp(until, UTC)
    return time.strftime("%H:%M UTC" if until - wall < 20 * 3600 else "%Y-%m-%d %H:%M UTC")


def _drop_text(way: Remedy) -> str:
    match way.demand:
        case "taint":
            return f"tolerate the taint {way.value}, or remove it"
        case "nodeSelector":
            return f"remove {way.value} from nodeSelector"
        case "topology.scheduler/gpu-model-mixed":
            return f"set {way.demand} to {way.value}"
        case _:
            return f"do without {way.demand}{f' {way.value}' if way.value else ''}"


def _end_verb(way: Remedy, reader: str) -> str:
    hidden = len(way.ended) == 1 and reader and not way.ended[0].name.startswith(f"{reader}/")
    return "ends" if len(way.ended) == 1 and not (hidden and len(way.ended[0].pods) > 1) else "end"


def _ended_text(way: Remedy, reader: str) -> str:
    """Return the names of the pods and gangs that end. Pods of other namespaces are only counted."""
    own = [_unit_text(unit) for unit in way.ended if not reader or unit.name.startswith(f"{reader}/")]
    foreign = [unit for unit in way.ended if reader and not unit.name.startswith(f"{reader}/")]
    if not foreign:
        return few_of(own, MAX_NAMES)
    pods = sum(len(unit.pods) if unit.gang else 1 for unit in foreign)
    hidden = "a pod of another namespace" if pods == 1 else f"{pods} pods of other namespaces"
    return f"{few_of(own, MAX_NAMES)} and {hidden}" if own else hidden


def _unit_text(unit: EndingPods) -> str:
    return f"gang {unit.name} ({counted(len(unit.pods), 'pod')})" if unit.gang else f"pod {unit.name}"


def _plural(count: int, noun: str) -> str:
    return noun if count == 1 else f"{noun}s"
