"""Label selectors, compiled once; selectors that Kubernetes' own parser refuses are refused here.

Source of the rules: ``k8s.io/apimachinery/pkg/labels``.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from topo_scheduler.api.selectors import LabelSelector, Requirement
from topo_scheduler.api.text import quoted

OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist")
COMPARING: Final = ("Gt", "Lt")
MAX_INDEXED_VALUES: Final = 16
"""Maximum values of a clause by which a selector is indexed."""
_CLAUSE_BYTES: Final = 512
_VALUE_BYTES: Final = 128
"""Memory of a condition and of one value in addition to their characters: measured, and rounded up."""
_INTEGER_LIMIT: Final = 2**63
_MAX_DIGITS: Final = len(str(_INTEGER_LIMIT))
_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_DOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


class SelectorError(ValueError):
    """A selector that Kubernetes would not accept; the message names the key and the problem."""


@dataclass(frozen=True, slots=True)
class Clause:
    """One condition on one label."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether labels meet the condition."""
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value is not None and value in self.values
            case "NotIn":
                return value is None or value not in self.values
            case "Exists":
                return value is not None
        return value is None


@dataclass(frozen=True, slots=True)
class Selector:
    """Conditions that must all be met. Without conditions it selects everything; with ``nothing``, nothing."""

    clauses: tuple[Clause, ...] = ()
    nothing: bool = False
    _hash: int = field(init=False, compare=False, repr=False)
    """Computed once: selectors are part of keys of frequent lookups."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.clauses, self.nothing)))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return Selector, (self.clauses, self.nothing)  # hashes of text differ between processes

    @property
    def memory_bytes(self) -> int:
        """The approximate memory of its conditions in bytes."""
        return sum(
            _CLAUSE_BYTES + len(clause.key) + sum(_VALUE_BYTES + len(value) for value in clause.values)
            for clause in self.clauses
        )

    @property
    def everything(self) -> bool:
        """Whether it has no condition and selects everything."""
        return not self.clauses and not self.nothing

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether it selects these labels."""
        return not self.nothing and all(clause.matches(labels) for clause in self.clauses)

    def narrowed(self, labels: Iterable[tuple[str, str]]) -> "Selector":
        """Return a selector that requires these labels too."""
        if self.nothing:
            return self
        added = {Clause(key, "In", frozenset((value,))) for key, value in labels}
        return Selector(_in_order({*self.clauses, *added}))


Place = tuple[str, str] | str | None
"""Index key of a selector: a label that each selected pod has, a label key that each has, or None for neither."""


def places_of(selector: Selector) -> Sequence[Place]:
    """Return the index keys of a selector, of which each selected pod has one; none if it selects nothing."""
    if selector.nothing:
        return ()
    for clause in selector.clauses:
        if clause.operator == "In" and len(clause.values) <= MAX_INDEXED_VALUES:
            return [(clause.key, value) for value in sorted(clause.values)]
    return (next((clause.key for clause in selector.clauses if clause.operator in ("In", "Exists")), None),)


def places_in(labels: Mapping[str, str]) -> Sequence[Place]:
    """Return the index keys of selectors that may select a pod with these labels; each selector has one of them."""
    return (None, *labels, *labels.items())


EVERYTHING: Final = Selector()
NOTHING: Final = Selector(nothing=True)


def compile_selector(selector: LabelSelector | None) -> Selector:
    """Compile a label selector; None selects nothing.

    Raises:
        SelectorError: an operator, a key or a value that is not allowed.
    """
    if selector is None:
        return NOTHING
    clauses = {Clause(key, "In", frozenset((value,))) for key, value in selector.match_labels.items()}
    for key, value in selector.match_labels.items():
        check_requirement(Requirement(key, "In", (value,)))
    for requirement in selector.match_expressions:
        if requirement.operator not in OPERATORS:
            raise SelectorError(f"{quoted(requirement.operator)} is not an operator of a label selector")
        check_requirement(requirement)
        clauses.add(Clause(requirement.key, requirement.operator, frozenset(requirement.values)))
    return Selector(_in_order(clauses))


def check_requirement(requirement: Requirement) -> None:
    """Check operator, key and values as Kubernetes does.

    Raises:
        SelectorError: the requirement is invalid.
    """
    key, operator, values = requirement.key, requirement.operator, requirement.values
    prefix, slash, name = key.rpartition("/")
    domain_ok = not slash or (len(prefix) <= 253 and _DOMAIN.fullmatch(prefix) is not None)
    if not _NAME.fullmatch(name) or not domain_ok:
        raise SelectorError(f"{quoted(key)} is not a label key")
    if operator in ("In", "NotIn"):
        if not values:
            raise SelectorError(f"{key}: {operator} needs at least one value")
    elif operator in ("Exists", "DoesNotExist"):
        if values:
            raise SelectorError(f"{key}: {operator} takes no values")
    elif operator in COMPARING:
        if len(values) != 1 or as_int64(values[0]) is None:
            raise SelectorError(f"{key}: {operator} needs one integer")
    else:
        raise SelectorError(f"{key}: {quoted(operator)} is not an operator")
    for value in values:
        if value and not _NAME.fullmatch(value):
            raise SelectorError(f"{key}: {quoted(value)} is not a label value")


def as_int64(text: str) -> int | None:
    """Return the integer value of a label value, None if it is no integer or does not fit into 64 bits."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdigit()):
        return None
    # Preferred node affinity may have numbers of any length, and Python refuses to parse very long ones.
    digits = digits.lstrip("0") or "0"
    if len(digits) > _MAX_DIGITS:
        return None
    value = -int(digits) if text[0] == "-" else int(digits)
    return value if -_INTEGER_LIMIT <= value < _INTEGER_LIMIT else None


def _in_order(clauses: Iterable[Clause]) -> tuple[Clause, ...]:
    return tuple(sorted(clauses, key=lambda clause: (clause.key, clause.operator, sorted(clause.values))))
