"""Evaluates CEL selectors: once for each expression and each distinct set of the values that it reads."""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

from topo_scheduler.api.text import clipped
from topo_scheduler.scheduling.devices.allocator import SelectorFailure
from topo_scheduler.scheduling.devices.cel import (
    CelError,
    CostError,
    DeviceSelector,
    Quantity,
    SelectorDevice,
    Version,
    compile_selector,
    parse_quantity,
    parse_version,
)
from topo_scheduler.scheduling.devices.cel.quantities import QuantityFormatError, QuantityRangeError
from topo_scheduler.scheduling.devices.cel.versions import VersionError
from topo_scheduler.state.devices import pools
from topo_scheduler.state.devices.slice_shape import is_identity
from topo_scheduler.state.operation_budget import charge

MAX_EXPRESSIONS: Final = 1024
"""Expressions that are kept compiled; those used longest ago are dropped first."""
MAX_RESULTS: Final = 131_072
"""Results that are kept for all expressions together; those of expressions used longest ago are dropped first."""
OPERATIONS_PER_CHARACTER: Final = 10
"""What compiling takes: 0.1 s for the 10 KiB that the API server accepts."""
MAX_STEPS: Final = 50_000
"""Steps of an evaluation, of a million that Kubernetes allows: the event loop waits for them. Others take a hundred."""
STEPS_PER_OPERATION: Final = 2
_REASON_CHARACTERS: Final = 320
"""Maximum length of the reasons that are kept; they may quote what the expression computed."""

_Answer = bool | str
"""Whether a device matches, or why that is unknown."""


@dataclass(slots=True)
class _Compiled:
    """A compiled expression, or why it is not understood; the attributes that it reads; its answers."""

    selector: DeviceSelector | str
    reads: tuple[str, ...] | None
    answers: dict[Hashable, _Answer] = field(default_factory=dict)


class Selectors:
    """Compiled expressions and their results."""

    def __init__(self) -> None:
        self._compiled: OrderedDict[str, _Compiled] = OrderedDict()
        self._results = 0

    def __getstate__(self) -> dict[str, object]:
        """Return no caches: compiled expressions can't be written to a checkpoint."""
        return {"_compiled": OrderedDict(), "_results": 0}

    def matches(self, expression: str, device: pools.PublishedDevice) -> bool:
        """Return whether a device matches an expression.

        Raises:
            SelectorFailure: the expression fails on the device, or is not understood.
        """
        compiled = self._selector(expression)
        selector, answers = compiled.selector, compiled.answers
        if isinstance(selector, str):
            raise SelectorFailure(selector)
        key = _key(compiled.reads, device)
        answer = answers.get(key)
        if answer is None:
            try:
                answer = answers[key] = _evaluate(selector, device)
            except CostError:
                # Not for this device alone: trying the next ones would take as long each.
                self._results -= len(answers)
                answers.clear()
                compiled.selector = f"the selector takes more than {MAX_STEPS:,} steps"
                raise SelectorFailure(compiled.selector) from None
            self._results += 1
            if self._results > MAX_RESULTS:
                self._drop_oldest()
        if isinstance(answer, str):
            raise SelectorFailure(answer)
        return answer

    def reads_identity(self, expression: str) -> bool:
        """Return whether an expression may read an attribute that identifies a device."""
        reads = self._selector(expression).reads
        return reads is None or any(map(is_identity, reads))

    def _selector(self, expression: str) -> _Compiled:
        known = self._compiled.get(expression)
        if known is None:
            charge(1 + OPERATIONS_PER_CHARACTER * len(expression))
            selector: DeviceSelector | str
            try:
                selector = compile_selector(expression)
            except CelError as error:
                selector = clipped(f"the selector is not understood: {error}", _REASON_CHARACTERS)
            known = self._compiled[expression] = _Compiled(selector, _names(selector))
            while len(self._compiled) > MAX_EXPRESSIONS:
                self._results -= len(self._compiled.popitem(last=False)[1].answers)
        self._compiled.move_to_end(expression)
        return known

    def _drop_oldest(self) -> None:
        """Drop results, expression by expression, until half of them are left; those of the last one if need be."""
        for compiled in self._compiled.values():
            if self._results <= MAX_RESULTS // 2:
                break
            self._results -= len(compiled.answers)
            compiled.answers.clear()


def _names(selector: DeviceSelector | str) -> tuple[str, ...] | None:
    """Return the full names of the attributes that an expression reads; None if it may read all."""
    if isinstance(selector, str) or selector.reads.attributes is None:
        return None
    return tuple(f"{domain}/{name}" for domain, name in sorted(selector.reads.attributes))


def _key(reads: tuple[str, ...] | None, device: pools.PublishedDevice) -> Hashable:
    """Return a value that is equal for devices that get the same answer."""
    attributes = device.attributes
    read = tuple(attributes.items()) if reads is None else tuple(map(attributes.get, reads))
    return device.id[0], device.shared, read, device.kind.readability


def _evaluate(selector: DeviceSelector, device: pools.PublishedDevice) -> _Answer:
    view = _view_of(device)
    if isinstance(view, str):
        return view
    outcome, steps = selector.judge(view, MAX_STEPS)
    charge(1 + min(steps, MAX_STEPS) // STEPS_PER_OPERATION)  # one step may cost more than there is
    if isinstance(outcome, CostError):
        raise outcome
    return clipped(f"the selector fails: {outcome}", _REASON_CHARACTERS) if isinstance(outcome, CelError) else outcome


def _view_of(device: pools.PublishedDevice) -> SelectorDevice | str:
    """Return a device as selectors read it, or why it can't be read."""
    driver = device.id[0]
    attributes: dict[str, dict[str, str | int | bool | Version]] = {}
    capacity: dict[str, dict[str, Quantity]] = {}
    try:
        for name, (kind, value) in device.attributes.items():
            domain, _, identifier = name.partition("/")
            attributes.setdefault(domain, {})[identifier] = parse_version(str(value)) if kind == "version" else value
        for name, item in device.capacity.items():
            domain, slash, identifier = name.partition("/")
            owner, identifier = (domain, identifier) if slash else (driver, name)
            capacity.setdefault(owner, {})[identifier] = parse_quantity(item.total.text)
    except (VersionError, QuantityFormatError, QuantityRangeError) as error:
        return f"{name}: {error}"
    return SelectorDevice(driver, attributes, capacity, device.shared)
