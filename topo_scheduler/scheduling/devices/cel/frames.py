"""What an evaluation works on, and what it may cost."""

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from .errors import EvaluationError, ExpressionNotUnderstoodError
from .quantities import Quantity
from .values import MISSING, CelMap, Optional, Value
from .versions import Version

COST_LIMIT: Final = 1_000_000
"""Maximum cost of an evaluation, about as upstream counts: one unit is one step."""

Attribute: TypeAlias = str | int | bool | Version


class DeviceView(Protocol):
    """What selectors read of a device. A domain without attributes may be absent."""

    @property
    def driver(self) -> str:
        """The name of the driver."""

    @property
    def attributes(self) -> Mapping[str, Mapping[str, Attribute]]:
        """Attributes by domain and name; without a domain in the ResourceSlice, the domain is the driver's name."""

    @property
    def capacity(self) -> Mapping[str, Mapping[str, Quantity]]:
        """Capacities by domain and name."""

    @property
    def allow_multiple_allocations(self) -> bool:
        """Whether several claims may share the device."""


class CostError(ExpressionNotUnderstoodError):
    """The evaluation takes too many steps, by a count that is never below upstream's."""


Frame: TypeAlias = list[Any]
"""The device, the remaining cost, and the variables of macros."""
DEVICE_SLOT: Final = 0
COST_SLOT: Final = 1
FIRST_VARIABLE: Final = 2
Run: TypeAlias = Callable[[Frame], Value]


@dataclass(frozen=True, slots=True)
class Code:
    """A compiled node.

    Attributes:
        run: computes the value.
        constant: the value, where upstream's planner knows it.
        fixed_cost: evaluating it costs what was counted when it was compiled.
    """

    run: Run
    constant: Value = MISSING
    fixed_cost: bool = False


def constant(value: Value) -> Code:
    """Return the code of a constant."""
    return Code(lambda frame: value, value, fixed_cost=True)


def charge(frame: Frame, cost: int) -> None:
    """Take cost from what remains.

    Raises:
        CostError: there is not so much left.
    """
    frame[COST_SLOT] -= cost
    if frame[COST_SLOT] < 0:
        raise CostError(
            f"evaluating the expression takes more than {COST_LIMIT} steps: compare fewer elements or shorter texts"
        )


def both(left: Code, right: Code) -> Run:
    """Return the code of a left operand that has the right one evaluated even if it fails: upstream charges for it."""
    first, second = left.run, right.run
    if right.fixed_cost:
        return first

    def run(frame: Frame) -> Value:
        try:
            return first(frame)
        except EvaluationError:
            with suppress(EvaluationError):
                charge(frame, size(second(frame)))
            raise

    return run


def size(value: Value) -> int:
    """Return the length of what has one, else 1."""
    return len(value) if isinstance(value, str | bytes | list | CelMap) else 1


def traversal(characters: int) -> int:
    """Return the cost of going through a text once."""
    return math.ceil(characters / 10)


def charge_weight(frame: Frame, value: Value) -> None:
    """Take the cost of visiting all elements of nested lists and maps."""
    pending = [value]
    while pending:
        part = pending.pop()
        if isinstance(part, list):
            charge(frame, len(part) + 1)
            pending += [element for element in part if isinstance(element, _SIZED)]
        elif isinstance(part, CelMap):
            charge(frame, 4 * len(part) + 1)
            pending += [element for _, element in part.items() if isinstance(element, _SIZED)]
        elif isinstance(part, str | bytes):
            charge(frame, traversal(len(part)))
        elif isinstance(part, Optional):
            charge(frame, 1)
            pending.append(part.value)


_SIZED: Final = (list, CelMap, str, bytes, Optional)
