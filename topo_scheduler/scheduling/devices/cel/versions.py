"""Semantic versions as github.com/blang/semver parses and orders them."""

import re
from dataclasses import dataclass
from typing import Final

_NUMBER: Final = r"(?:0|[1-9][0-9]*)"
_VERSION: Final = re.compile(
    rf"({_NUMBER})\.({_NUMBER})\.({_NUMBER})"
    r"(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?(?:\+([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?"
)
_MAX_NUMBER: Final = 2**64 - 1


class VersionError(ValueError):
    """The text is no semantic version."""


@dataclass(frozen=True, slots=True)
class Version:
    """A version. ``precedence`` orders it: what stands behind ``+`` does not count."""

    major: int
    minor: int
    patch: int
    precedence: tuple[int, int, int, int, tuple[tuple[int, int, str], ...]]

    def compare(self, other: "Version") -> int:
        """Return -1, 0 or 1."""
        return (self.precedence > other.precedence) - (self.precedence < other.precedence)


def parse_version(text: str) -> Version:
    """Return the version that a text such as ``1.2.3-beta.1+build`` stands for.

    Raises:
        VersionError: it is not one.
    """
    match = _VERSION.fullmatch(text)
    if match is None:
        raise VersionError(f"{text[:64]!r} is not a semantic version such as 1.2.3")
    numbers = [_number(match[group], text) for group in (1, 2, 3)]
    identifiers = tuple(_identifier(part, text) for part in match[4].split(".")) if match[4] else ()
    major, minor, patch = numbers
    return Version(major, minor, patch, (major, minor, patch, not identifiers, identifiers))


def normalised(text: str) -> str:
    """Return the text that ``semver(text, true)`` parses: without ``v`` and leading zeros, with three numbers."""
    parts = text.removeprefix("v").split(".", 2)
    for index, part in enumerate(parts):
        if len(part) > 1:
            stripped = part.lstrip("0")
            parts[index] = stripped if stripped[:1].isascii() and stripped[:1].isdigit() else "0" + stripped
    if len(parts) < 3:
        if re.search(r"[+-]", parts[-1]):
            raise VersionError(f"{text[:64]!r}: a short version has neither pre-release nor build")
        parts += ["0"] * (3 - len(parts))
    return ".".join(parts)


def _number(digits: str, text: str) -> int:
    number = int(digits) if len(digits) <= 20 else _MAX_NUMBER + 1
    if number > _MAX_NUMBER:
        raise VersionError(f"{text[:64]!r}: a number is too large")
    return number


def _identifier(part: str, text: str) -> tuple[int, int, str]:
    if not part.isdigit():
        return (1, 0, part)
    if len(part) > 1 and part.startswith("0"):
        raise VersionError(f"{text[:64]!r}: the pre-release number {part[:20]} has a leading zero")
    return (0, _number(part, text), "")
