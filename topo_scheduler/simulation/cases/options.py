"""Parse specs on the command line: a path or a generator, followed by options.

``topo.csv@gpus=8,model=A100`` is a path with options, ``leaf-spine:spines=8,leaves=16`` a generator with parameters.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Final, TypeVar

from topo_scheduler.api.text import did_you_mean
from topo_scheduler.simulation.cases.model import CaseError
from topo_scheduler.simulation.cases.tables import quoted

T = TypeVar("T")

_OPTIONS: Final = re.compile(r"[a-z][a-z-]*=[^=@]*(?:,[a-z][a-z-]*=[^=@]*)*")


@dataclass(slots=True)
class Options:
    """Options by name, and the spec that contains them. `finish` rejects options that no reader took."""

    spec: str
    values: Mapping[str, str]
    _known: list[str] = field(default_factory=list)

    def take(self, name: str, parse: Callable[[str], T], default: T) -> T:
        """Return an option's value, or the default where it is not given.

        Raises:
            CaseError: the value can't be read.
        """
        self._known.append(name)
        if name not in self.values:
            return default
        try:
            return parse(self.values[name])
        except ValueError as error:
            raise CaseError(f"{self.spec}: {name}: {error}") from error

    def finish(self) -> None:
        """Raise `CaseError` if there is an option that no reader took."""
        for name in self.values:
            if name not in self._known:
                known = f"there are {', '.join(sorted(set(self._known)))}" if self._known else "there are none here"
                hint = did_you_mean(name, self._known, known)
                raise CaseError(f"{self.spec}: unknown option {quoted(name)}; {hint}")


def parse_options(spec: str, text: str) -> dict[str, str]:
    """Return ``a=1,b=2`` as a mapping.

    Raises:
        CaseError: a part is no ``name=value``, or a name occurs twice.
    """
    values: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not name or not value:
            raise CaseError(f"{spec}: {quoted(part)} is no option; write name=value, separated by commas")
        if name in values:
            raise CaseError(f"{spec}: {name} is given twice; keep one")
        values[name] = value
    return values


def split_path(spec: str) -> tuple[Path, Options]:
    """Return the path of a spec and its options. An existing file whose name contains ``@`` has no options."""
    head, at, tail = spec.rpartition("@")
    if not at or not head or Path(spec).exists() or not _OPTIONS.fullmatch(tail):
        return Path(spec), Options(spec, {})
    return Path(head), Options(spec, parse_options(spec, tail))


def split_generator(spec: str) -> tuple[str, Mapping[str, str], Options]:
    """Return the kind of a generator, its own parameters, and the options behind ``@``."""
    kind, _, remaining = spec.partition(":")
    parameters, at, tail = remaining.partition("@")
    return kind, parse_options(spec, parameters), Options(spec, parse_options(spec, tail) if at else {})


# ---------------------------------------------------------------- values


def whole_number(low: int, high: int) -> Callable[[str], int]:
    """Return a parser of whole numbers from ``low`` to ``high``."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,9}", text) or not low <= int(text) <= high:
            raise ValueError(f"{quoted(text)} is not a whole number from {low} to {high}")
        return int(text)

    return parse


def number(low: float, high: float = 1e9) -> Callable[[str], float]:
    """Return a parser of numbers above ``low`` and up to ``high``."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not isfinite(value) or not low < value <= high:
            raise ValueError(f"{quoted(text)} is not a number above {low:g} and up to {high:g}")
        return value

    return parse


def checked(parse: Callable[[str], object]) -> Callable[[str], str]:
    """Return a parser that returns the text unchanged if another parser accepts it."""

    def check(text: str) -> str:
        parse(text)
        return text

    return check


def one_of(*choices: str) -> Callable[[str], str]:
    """Return a parser that accepts one of the choices."""

    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"{quoted(text)} is not one of {', '.join(choices)}")
        return text

    return parse
