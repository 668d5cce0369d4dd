"""The writes of one decision go out one after the other, up to the first that fails."""

import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from topo_scheduler.kube.connection.errors import ApiError, Conflict, Fenced, Unreachable

Write = TypeVar("Write")
Outcome = TypeVar("Outcome")

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class OrderedWriteResult(Generic[Write, Outcome]):
    """Completed writes with what came of each; and why the other writes failed."""

    done: list[tuple[Write, Outcome]] = field(default_factory=list)
    problem: str = ""
    fenced: bool = False
    """Whether nothing was sent, as the lease ends."""


async def write_in_order(
    writes: Iterable[Write],
    send: Callable[[Write], Awaitable[Outcome]],
    describe: Callable[[Write, Exception], str],
    claim_of: Callable[[Write], tuple[str, str]],
    failures: tuple[type[Exception], ...],
) -> OrderedWriteResult[Write, Outcome]:
    """Write in order, up to the first that fails; never raises for failures.

    Args:
        writes: what to write.
        send: writes one.
        describe: returns the problem with a write that failed.
        claim_of: returns namespace and name of the claim that a write is for.
        failures: what a write raises when the server does not take it; all else is an internal error.
    """
    result: OrderedWriteResult[Write, Outcome] = OrderedWriteResult()
    for write in writes:
        try:
            result.done.append((write, await send(write)))
        except failures as error:
            result.problem, result.fenced = describe(write, error), isinstance(error, Fenced)
            break
        except Exception as error:  # a fault in one write must stop no other
            result.problem = f"internal error, please report it: {error!r}"
            logger.exception("internal error in a write, please report it: claim %s/%s", *claim_of(write))
            break
    return result


def message_of(error: Exception) -> str:
    """Return what the server said, or what kept it from saying anything."""
    return error.message if isinstance(error, ApiError) else str(error)


def failure_of(described: str, error: Exception) -> str:
    """Return why an object, as described, was not written."""
    if isinstance(error, Conflict):
        return f"{described} changed meanwhile: {message_of(error)}"
    if isinstance(error, Unreachable):
        return f"{described} was not written in time: {message_of(error)}"
    return f"{described} can't be written: {message_of(error)}"
