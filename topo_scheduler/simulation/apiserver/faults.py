"""Fault injection: errors of networks and busy servers, for requests that a test selects.

A rule has a condition on requests, a fault, and the number of requests that it applies to. Rules are checked in the
order in which they were added; the first match applies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from .errors import StatusError
from .requests import RequestInfo

_REASONS = {
    400: "BadRequest", 403: "Forbidden", 404: "NotFound", 409: "Conflict", 410: "Expired", 429: "TooManyRequests",
    500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Delay:
    """Delay request and response by ``seconds``; the request takes effect after the delay."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Refuse:
    """Respond with an error without effect."""

    code: int
    retry_after: int | None = None
    message: str = "injected fault"

    def error(self) -> StatusError:
        """Return the error for the client."""
        return StatusError(self.code, _REASONS.get(self.code, "Unknown"), self.message, retry_after=self.retry_after)


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Close the connection without a response, before the request takes effect, or after it if ``applied``."""

    applied: bool = False


@dataclass(frozen=True, slots=True)
class Truncate:
    """Execute the request, and close the connection in the middle of the response body."""


@dataclass(frozen=True, slots=True)
class Stray:
    """Respond as another server behind the same load balancer does: 200 and JSON of its own, without effect."""

    body: bytes = b"{}"


@dataclass(frozen=True, slots=True)
class BreakWatch:
    """Break a watch after ``after`` events.

    ``drop`` closes the connection. ``end`` ends the stream normally. ``expire`` sends a 410 and ends, ``fail`` a
    500. ``truncate`` sends half a line and closes. ``silence`` stays connected and never sends anything again.
    ``repeat`` sends every event twice, the second time as ADDED.
    """

    how: Literal["drop", "end", "expire", "fail", "truncate", "silence", "repeat"]
    after: int = 0


Fault = Delay | Refuse | Disconnect | Truncate | Stray | BreakWatch
Condition = Callable[[RequestInfo], bool]


@dataclass(slots=True)
class FaultRule:
    """A fault, and the requests that it applies to."""

    fault: Fault
    verb: str | None = None
    resource: str | None = None
    """Resource including its subresource, such as ``pods/binding``."""
    where: Condition | None = None
    times: int | None = None
    """Number of further requests that it applies to; None means all."""
    struck: int = 0

    def matches(self, info: RequestInfo) -> bool:
        """Whether the rule applies to a request."""
        return (
            self.times != 0
            and (self.verb is None or self.verb == info.verb)
            and (self.resource is None or self.resource == info.full_resource)
            and (self.where is None or self.where(info))
        )


@dataclass(slots=True)
class Faults:
    """The active rules."""

    rules: list[FaultRule] = field(default_factory=list)

    def add(
        self,
        fault: Fault,
        *,
        verb: str | None = None,
        resource: str | None = None,
        where: Condition | None = None,
        times: int | None = None,
    ) -> FaultRule:
        """Add a rule that applies a fault to matching requests, ``times`` times."""
        if verb is None and isinstance(fault, BreakWatch):
            verb = "watch"
        rule = FaultRule(fault, verb, resource, where, times)
        self.rules.append(rule)
        return rule

    def remove(self, rule: FaultRule) -> None:
        """Remove a rule."""
        self.rules.remove(rule)

    def clear(self) -> None:
        """Remove all rules; faults of open watches stay."""
        self.rules.clear()

    def strike(self, info: RequestInfo) -> Fault | None:
        """Return the fault for a request, and count it; None if no rule matches."""
        for rule in self.rules:
            if rule.matches(info):
                rule.struck += 1
                if rule.times is not None:
                    rule.times -= 1
                return rule.fault
        return None
