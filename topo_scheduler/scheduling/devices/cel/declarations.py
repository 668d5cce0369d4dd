"""The functions of Kubernetes' CEL environment, as its own compiler lists them (`declarations.txt`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from .types import Type, parameter_names, parse_types


@dataclass(frozen=True, slots=True)
class Overload:
    """One signature of a function. The arguments of a method begin with its target."""

    identifier: str
    member: bool
    arguments: tuple[Type, ...]
    result: Type
    parameters: tuple[str, ...]


def _overload(identifier: str, kind: str, signature: str) -> Overload:
    arguments, _, result = signature.rpartition("->")
    types = (*parse_types(arguments), *parse_types(result))
    names = sorted(set().union(*map(parameter_names, types)))
    return Overload(identifier, kind == "member", types[:-1], types[-1], tuple(names))


def declarations_text() -> str:
    """Return the signatures, one a line."""
    return files(__package__).joinpath("declarations.txt").read_text(encoding="utf-8")


def _read() -> Mapping[str, Sequence[Overload]]:
    functions: dict[str, list[Overload]] = {}
    for line in declarations_text().splitlines():
        name, identifier, kind, signature = line.split(" | ")
        functions.setdefault(name, []).append(_overload(identifier, kind, signature))
    return functions


FUNCTIONS: Final = _read()
