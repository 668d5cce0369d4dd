"""Ways out in words, short enough for an event."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from topo_scheduler.api.words import few_of
from topo_scheduler.scheduling.explaining.ways import EndingPods, RemedyKind, Way

NOTE_BYTES: Final = 1024
"""The API's limit for the message of an event."""
NAMES: Final = 3
"""Names that are told of a list; of the rest, how many there are."""
_INTRO: Final = " What would help, cheapest first: "


def say(way: Way, wall: float, reader: str = "") -> str:
    """Return one way out as a demand on whoever reads it.

    ``wall`` the time now, in seconds since the epoch; ``reader`` see `few_for`: whose names may be told.
    """
    match way.kind:
        case RemedyKind.WAIT:
            ended = _ended(way, reader)
            return f"wait until about {moment(way.until, wall)}, when {ended} {_verb(way, reader)}"
        case RemedyKind.RETURN:
            verb = "uncordon" if way.value == "uncordon" else "bring back"
            return f"{verb} {_plural(len(way.nodes), 'node')} {few_of(way.nodes, NAMES)}"
        case RemedyKind.COMBINE:
            parts = way.parts
            return " and ".join(
                _reduce(one) if one.kind is RemedyKind.REDUCE else say(one, wall, reader) for one in parts
            )
        case RemedyKind.RELAX if not way.level:
            return f"set {way.demand} to {way.value}"
        case RemedyKind.RELAX:
            where = "on one node" if way.level == "node" else f"under one {way.level}"
            return f"set {way.demand} to {way.value}: it fits {where if way.level != 'cluster' else 'in the cluster'}"
        case RemedyKind.DROP:
            return _drop(way)
        case RemedyKind.REDUCE:
            return _reduce(way) if _sensible(way) else _fits(way)
        case RemedyKind.FREE:
            who = _ended(way, reader)
            on = f"{_plural(len(way.nodes), 'node')} {few_of(way.nodes, NAMES)}"
            more = "" if way.least else " (a smaller set may be enough)"
            return f"end {who} on {on}: {_count(way.cost.pods, 'pod')}, {_count(way.cost.gpus, 'GPU')}{more}"


def say_all(ways: Sequence[Way], wall: float, room: int = NOTE_BYTES, reader: str = "") -> str:
    """Return as many ways as there is room for, in bytes, the cheapest first; empty where there is none for any."""
    text, told = _INTRO, 0
    small = next((way for way in ways if way.kind is RemedyKind.REDUCE and not _sensible(way)), None)
    rest = f" {_fits(small)}." if small is not None else ""
    room -= len(rest.encode())
    for number, way in enumerate((way for way in ways if _sensible(way)), 1):
        part = f"{'; ' if told else ''}({number}) {say(way, wall, reader)}"
        if len((text + part).encode()) >= room:
            break
        text, told = text + part, told + 1
    return (f"{text}." if told else "") + rest


def _sensible(way: Way) -> bool:
    """Whether a person may want it: a gang of which less than half is left is another job."""
    if way.parts:
        return all(_sensible(part) for part in way.parts)
    return way.kind is not RemedyKind.REDUCE or way.size >= way.cost.members


def _reduce(way: Way) -> str:
    return f"reduce it to {_count(way.size, 'pod')}"


def _fits(way: Way) -> str:
    return f"{way.size} of {_count(way.size + way.cost.members, 'pod')} would fit now"


def moment(until: float, wall: float) -> str:
    """Return a time of day, with the date where it is not within the next 20 hours."""
    when = datetime.fromtimestamp(until, UTC)
    return when.strftime("%H:%M UTC" if until - wall < 20 * 3600 else "%Y-%m-%d %H:%M UTC")


def _drop(way: Way) -> str:
    match way.demand:
        case "taint":
            return f"tolerate the taint {way.value}, or remove it"
        case "nodeSelector":
            return f"remove {way.value} from nodeSelector"
        case "topology.scheduler/gpu-model-mixed":
            return f"set {way.demand} to {way.value}"
        case _:
            return f"do without {way.demand}{f' {way.value}' if way.value else ''}"


def _verb(way: Way, reader: str) -> str:
    hidden = len(way.ended) == 1 and reader and not way.ended[0].name.startswith(f"{reader}/")
    return "ends" if len(way.ended) == 1 and not (hidden and len(way.ended[0].pods) > 1) else "end"


def _ended(way: Way, reader: str) -> str:
    """Return who ends, those of other namespaces by their number only."""
    own = [_who(one) for one in way.ended if not reader or one.name.startswith(f"{reader}/")]
    others = [one for one in way.ended if reader and not one.name.startswith(f"{reader}/")]
    if not others:
        return few_of(own, NAMES)
    pods = sum(len(one.pods) if one.gang else 1 for one in others)
    hidden = "a pod of another namespace" if pods == 1 else f"{pods} pods of other namespaces"
    return f"{few_of(own, NAMES)} and {hidden}" if own else hidden


def _who(one: EndingPods) -> str:
    return f"gang {one.name} ({_count(len(one.pods), 'pod')})" if one.gang else f"pod {one.name}"


def _plural(count: int, what: str) -> str:
    return what if count == 1 else f"{what}s"


def _count(number: int, what: str) -> str:
    return f"{number} {_plural(number, what)}"
