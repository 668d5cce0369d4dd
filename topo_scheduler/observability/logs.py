"""Logs: one JSON object a line for machines, or text for people, on standard error."""

import logging
import sys
from itertools import islice
from typing import Any, Final, Literal

from pythonjsonlogger.json import JsonFormatter

from topo_scheduler.api.printable import LONGEST_CHARACTERS, printable
from topo_scheduler.state.decision import Decision, Verdict

decisions: Final = logging.getLogger("topo_scheduler.decisions")
"""One line a decision."""

SHOWN: Final = 16
"""Nodes named in the line of a decision; a gang of a thousand would fill the screen."""

MOST_ITEMS: Final = 256
"""Items of a list, or keys of an object, in one field of a line of JSON."""

CONTINUED: Final = "    | "
"""Begins the lines of a traceback, so that none can be taken for a message."""


class _TextFormatter(logging.Formatter):
    """Text for people; strings from outside can neither forge a line nor move the cursor of a terminal.

    JSON needs nothing of the kind: it writes all but ASCII as codes.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = printable(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        return "\n".join(CONTINUED + printable(line) for line in super().formatException(ei).splitlines())

    def formatStack(self, stack_info: str) -> str:
        return "\n".join(CONTINUED + printable(line) for line in stack_info.splitlines())


class _Json(JsonFormatter):
    """JSON for machines; a text from outside makes no line longer than people and collectors can read."""

    def process_log_record(self, log_data: dict[str, Any]) -> dict[str, Any]:
        return {key: _cut(value) for key, value in super().process_log_record(log_data).items()}


def _cut(value: Any) -> Any:
    """Return a value of which texts and sequences are cut; of a long text, such as a traceback, both ends stay."""
    match value:
        case str() if len(value) > 2 * LONGEST_CHARACTERS:
            left = len(value) - 2 * LONGEST_CHARACTERS
            return f"{value[:LONGEST_CHARACTERS]}... ({left} more characters) ...{value[-LONGEST_CHARACTERS:]}"
        case list() | tuple():
            some = [_cut(one) for one in value[:MOST_ITEMS]]
            return [*some, f"and {len(value) - MOST_ITEMS} more"] if len(value) > MOST_ITEMS else some
        case dict():
            cut = {_cut(str(key)): _cut(one) for key, one in islice(value.items(), MOST_ITEMS)}
            return cut | ({"...": f"and {len(value) - MOST_ITEMS} more"} if len(value) > MOST_ITEMS else {})
    return value


def configure(level: str, format: Literal["json", "text"]) -> None:
    """Send all logs to standard error in the given form, replacing what was configured before."""
    handler = logging.StreamHandler(sys.stderr)
    if format == "json":
        handler.setFormatter(
            _Json(
                "{asctime}{levelname}{name}{message}",
                style="{",
                rename_fields={"asctime": "time", "levelname": "level", "name": "logger"},
                datefmt="%Y-%m-%dT%H:%M:%S%z",
            )
        )
    else:
        handler.setFormatter(_TextFormatter("{asctime} {levelname:7} {message}", style="{", datefmt="%H:%M:%S"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Their debug logs are one line a request: they hide what they should show.
    for noisy in ("aiohttp", "asyncio", "numba", "kubernetes_asyncio"):
        logging.getLogger(noisy).setLevel(max(logging.INFO, logging.getLevelName(level.upper())))


def log_decision(decision: Decision, seconds: float) -> None:
    """Write the line of a decision."""
    placed = decision.verdict is Verdict.PLACED
    fields: dict[str, object] = {
        "decision": decision.id,
        "workload": decision.name,
        "verdict": decision.verdict.value,
        "members": decision.members,
        "generation": decision.generation,
        "microseconds": round(seconds * 1e6),
    }
    if placed:
        fields["nodes"] = [seat.node for seat in decision.seats[:SHOWN]]
        fields["leaves"] = ["/".join(path) for path in decision.leaves[:SHOWN]]
        if decision.score is not None:
            fields["score"] = decision.score.total / 1000
            fields |= {f"score_{name}": part / 1000 for name, part in decision.score.added}
    if decision.rule is not None:
        fields["leaves_needed"] = decision.rule.leaves
    message = f"{decision.name}: {decision.verdict.value}: {decision.message}"
    decisions.log(logging.INFO if placed else logging.WARNING, message, extra=fields)
