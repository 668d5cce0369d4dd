"""Logs on standard error: one JSON object per line, or text."""

import json
import logging
import sys
from itertools import islice
from typing import Any, Final, Literal

from pythonjsonlogger.json import JsonFormatter

from topo_scheduler.api.printable import LONGEST_CHARACTERS, printable
from topo_scheduler.observability.log_budget import NamespaceBudgets
from topo_scheduler.state.decision import Decision, Verdict

decisions: Final = logging.getLogger("topo_scheduler.decisions")
"""Logger with one line for each decision."""

MAX_NODES: Final = 16
"""Nodes in the line of a decision at most: a gang of a thousand pods would fill the screen."""

MAX_ITEMS: Final = 256
"""Items of a list, or keys of an object, in one field of a JSON line at most."""

CONTINUED: Final = "    | "
"""Prefix of the lines of a traceback, so that they can't be mistaken for a message."""


class _TextFormatter(logging.Formatter):
    """Formats text logs: the message, then its fields as ``key=value``.

    Untrusted strings can neither forge a line nor move the cursor of a terminal. JSON does not need this, because it
    escapes all non-ASCII characters.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = printable(record.message) + "".join(
            f" {printable(key)}={printable(_as_text(value))}"
            for key, value in vars(record).items()
            if key not in _OF_EVERY_RECORD
        )
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        return "\n".join(CONTINUED + printable(line) for line in super().formatException(ei).splitlines())

    def formatStack(self, stack_info: str) -> str:
        return "\n".join(CONTINUED + printable(line) for line in stack_info.splitlines())


_OF_EVERY_RECORD: Final = frozenset((*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"))
"""Attributes that are no fields of a message."""


def _as_text(value: Any) -> str:
    """Return the value of a field on one line; a text that could be taken for more than one value is quoted."""
    match _cut(value):
        case str() as text:
            plain = text.isprintable() and not any(mark in text for mark in ' "=,[]') and text
            return text if plain else json.dumps(text, ensure_ascii=False)
        case list() as items:
            return f"[{','.join(map(_as_text, items))}]"
        case dict() as items_by_key:
            return json.dumps(items_by_key, ensure_ascii=False, default=str)
        case other:
            return str(other)


class _Json(JsonFormatter):
    """Formats JSON logs. Untrusted strings are cut, so that people and log collectors can read each line."""

    def process_log_record(self, log_data: dict[str, Any]) -> dict[str, Any]:
        return {key: _cut(value) for key, value in super().process_log_record(log_data).items()}


def _cut(value: Any) -> Any:
    """Return a value with long texts and sequences cut. Both ends of a long text, such as a traceback, stay."""
    match value:
        case str() if len(value) > 2 * LONGEST_CHARACTERS:
            omitted = len(value) - 2 * LONGEST_CHARACTERS
            return f"{value[:LONGEST_CHARACTERS]}... ({omitted} more characters) ...{value[-LONGEST_CHARACTERS:]}"
        case list() | tuple():
            items = [_cut(item) for item in value[:MAX_ITEMS]]
            return [*items, f"and {len(value) - MAX_ITEMS} more"] if len(value) > MAX_ITEMS else items
        case dict():
            items_by_key = {_cut(str(key)): _cut(item) for key, item in islice(value.items(), MAX_ITEMS)}
            return items_by_key | ({"...": f"and {len(value) - MAX_ITEMS} more"} if len(value) > MAX_ITEMS else {})
    return value


def configure(level: str, format: Literal["json", "text"]) -> None:
    """Send all logs to standard error in the given format, and replace any earlier configuration."""
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
    handler.addFilter(NamespaceBudgets())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # These log one line for each request at level debug, which would hide our own lines.
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
        fields["nodes"] = [seat.node for seat in decision.seats[:MAX_NODES]]
        fields["leaves"] = ["/".join(path) for path in decision.leaves[:MAX_NODES]]
        if decision.score is not None:
            fields["score"] = decision.score.total / 1000
            fields |= {f"score_{name}": part / 1000 for name, part in decision.score.added}
    else:
        fields["namespace"] = decision.name.partition("/")[0]
    if decision.rule is not None:
        fields["leaves_needed"] = decision.rule.leaves
    message = f"{decision.name}: {decision.verdict.value}: {decision.message}"
    decisions.log(logging.INFO if placed else logging.WARNING, message, extra=fields)
