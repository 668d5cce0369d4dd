"""Comprehensions. Their cost is charged for all elements in advance, and errors do not end them: nor upstream's."""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from .errors import EvaluationError
from .frames import Frame, Run, charge
from .values import MISSING, CelMap, Value, map_key, no_such_overload

STEP_COST: Final = 20
"""Cost of one round beside the predicate and the transformation: at least upstream's."""

_Rounds: TypeAlias = Callable[[Frame], Sequence[tuple[Value, ...]]]


def comprehension(
    macro: str, operand: Run, slots: Sequence[int], predicate: Run | None, transform: Run | None, body_cost: int
) -> Run:
    """Return the code of a comprehension; ``slots`` are the variables' places in the frame."""
    first, last = slots[0], slots[-1]

    def rounds(frame: Frame) -> Sequence[tuple[Value, ...]]:
        value = operand(frame)
        charge(frame, (len(value) if isinstance(value, list | CelMap) else 1) * (body_cost + STEP_COST))
        return _values(value, len(slots))

    if macro in ("all", "exists", "exists_one"):
        assert predicate is not None
        if macro == "exists_one":
            return _exists_one(rounds, first, last, predicate)
        return _quantifier(macro == "exists", rounds, first, last, predicate)
    if macro in ("transform_map", "transform_entry"):
        assert transform is not None
        return _map_builder(macro == "transform_entry", rounds, first, last, predicate, transform)
    return _list_builder(rounds, first, last, predicate, transform)


def _values(value: Value, count: int) -> Sequence[tuple[Value, ...]]:
    if isinstance(value, list):
        return list(enumerate(value)) if count == 2 else [(element, element) for element in value]
    if isinstance(value, CelMap):
        return list(value.items()) if count == 2 else [(key, key) for key, _ in value.items()]
    raise no_such_overload("a comprehension", value)


def _holds(frame: Frame, predicate: Run | None) -> bool:
    if predicate is None:
        return True
    value = predicate(frame)
    if value is True or value is False:
        return bool(value)
    raise no_such_overload("the predicate of a comprehension", value)


def _quantifier(deciding: bool, rounds: _Rounds, first: int, last: int, predicate: Run) -> Run:
    def run(frame: Frame) -> Value:
        error: EvaluationError | None = None
        for elements in rounds(frame):
            frame[first], frame[last] = elements
            try:
                if _holds(frame, predicate) is deciding:
                    return deciding
            except EvaluationError as failed:
                error = error or failed
        if error is not None:
            raise error
        return not deciding

    return run


def _collected(rounds: _Rounds, first: int, last: int, each: Callable[[Frame], None], frame: Frame) -> None:
    """Do something in each round, and raise the first error when all are over."""
    error: EvaluationError | None = None
    for elements in rounds(frame):
        frame[first], frame[last] = elements
        try:
            each(frame)
        except EvaluationError as failed:
            error = error or failed
    if error is not None:
        raise error


def _exists_one(rounds: _Rounds, first: int, last: int, predicate: Run) -> Run:
    def run(frame: Frame) -> Value:
        count = 0

        def each(frame: Frame) -> None:
            nonlocal count
            count += _holds(frame, predicate)

        _collected(rounds, first, last, each, frame)
        return count == 1

    return run


def _list_builder(rounds: _Rounds, first: int, last: int, predicate: Run | None, transform: Run | None) -> Run:
    def run(frame: Frame) -> Value:
        elements: list[Value] = []

        def each(frame: Frame) -> None:
            if _holds(frame, predicate):
                elements.append(frame[first] if transform is None else transform(frame))

        _collected(rounds, first, last, each, frame)
        return elements

    return run


def _map_builder(entries: bool, rounds: _Rounds, first: int, last: int, predicate: Run | None, transform: Run) -> Run:
    def run(frame: Frame) -> Value:
        by_key: dict[Value, tuple[Value, Value]] = {}

        def insert(key: Value, value: Value) -> None:
            if CelMap(by_key).find(key) is not MISSING:
                raise EvaluationError("the map already has this key")
            by_key[map_key(key)] = (key, value)

        def each(frame: Frame) -> None:
            if not _holds(frame, predicate):
                return
            key, value = frame[first], transform(frame)
            if not entries:
                insert(key, value)
            elif isinstance(value, CelMap):
                charge(frame, len(value))
                for entry in value.items():
                    insert(*entry)
            else:
                raise no_such_overload("transformMapEntry", value)

        _collected(rounds, first, last, each, frame)
        return CelMap(by_key)

    return run
