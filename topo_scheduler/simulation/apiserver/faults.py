"""Faults on demand: what networks and busy servers do to clients, exactly when a test asks for it.

A rule says which requests it is for, how often it strikes and what happens. Rules are asked in the order in which
they were added, and the first one that matches has its way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from .errors import APIError
from .requests import RequestInfo

_REASONS = {
    400: "BadRequest", 403: "Forbidden", 404: "NotFound", 409: "Conflict", 410: "Expired", 429: "TooManyRequests",
    500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Delay:
    """Answer ``seconds`` later; the request takes effect only then."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer with an error and do nothing."""

    code: int
    retry_after: int | None = None
    message: str = "injected fault"

    def error(self) -> APIError:
        """What the client gets."""
        return APIError(self.code, _REASONS.get(self.code, "Unknown"), self.message, retry_after=self.retry_after)


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Close the connection without an answer: before the request took effect, or after it did."""

    applied: bool = False


@dataclass(frozen=True, slots=True)
class Truncate:
    """Do what was asked, and close the connection in the middle of the answer's body."""


@dataclass(frozen=True, slots=True)
class BreakWatch:
    """Let a watch send ``after`` events, and then go wrong.

    ``drop`` closes the connection, ``end`` ends the stream in good order, ``expire`` sends a 410 and ends,
    ``truncate`` sends half a line and closes, ``silence`` stays connected and never sends anything again, and
    ``repeat`` sends every event twice, the second time as ADDED.
    """

    how: Literal["drop", "end", "expire", "truncate", "silence", "repeat"]
    after: int = 0


Fault = Delay | Refuse | Disconnect | Truncate | BreakWatch
Condition = Callable[[RequestInfo], bool]


@dataclass(slots=True)
class FaultRule:
    """A fault and the requests it is for."""

    fault: Fault
    verb: str | None = None
    resource: str | None = None
    """With its subresource, if it has one: ``pods/binding``."""
    where: Condition | None = None
    times: int | None = None
    """How often it still strikes; None is always."""
    struck: int = 0

    def matches(self, info: RequestInfo) -> bool:
        """Whether the rule is for that request."""
        return (
            self.times != 0
            and (self.verb is None or self.verb == info.verb)
            and (self.resource is None or self.resource == info.full_resource)
            and (self.where is None or self.where(info))
        )


@dataclass(slots=True)
class Faults:
    """The rules in force."""

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
        """Have ``fault`` strike the requests that match, ``times`` times."""
        if verb is None and isinstance(fault, BreakWatch):
            verb = "watch"
        rule = FaultRule(fault, verb, resource, where, times)
        self.rules.append(rule)
        return rule

    def remove(self, rule: FaultRule) -> None:
        """Take a rule out of force."""
        self.rules.remove(rule)

    def clear(self) -> None:
        """No more faults, but for those that watches already carry."""
        self.rules.clear()

    def strike(self, info: RequestInfo) -> Fault | None:
        """The fault for a request, if there is one; counts it."""
        for rule in self.rules:
            if rule.matches(info):
                rule.struck += 1
                if rule.times is not None:
                    rule.times -= 1
                return rule.fault
        return None
