"""The syntax of regular expressions: RE2's, without what is rarely used."""

import re
from dataclasses import dataclass
from typing import Final, NoReturn, TypeAlias

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Sorted ranges of code points, both ends included."""

_MAX_CODE: Final = 0x10FFFF
_MAX_REPEAT: Final = 1_000
_MAX_DEPTH: Final = 30
_DIGITS: Final[Ranges] = ((0x30, 0x39),)
_LETTERS: Final[Ranges] = ((0x41, 0x5A), (0x61, 0x7A))
_WORD: Final[Ranges] = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACE: Final[Ranges] = ((0x09, 0x0A), (0x0C, 0x0D), (0x20, 0x20))
_OTHER_CASES: Final = (
    *((0x41, 0x5A, 0x20), (0x61, 0x7A, -0x20)),
    *((code, code, 0x212A - code) for code in b"kK"),
    *((code, code, 0x17F - code) for code in b"sS"),
)
"""Ranges of ASCII letters, and how far their other case is: of k also the sign of Kelvin, of s also the long s."""
_PERL: Final = {"d": _DIGITS, "w": _WORD, "s": _SPACE}
_POSIX: Final[dict[str, Ranges]] = {
    "alnum": ((0x30, 0x39), *_LETTERS),
    "alpha": _LETTERS,
    "ascii": ((0, 0x7F),),
    "blank": ((0x09, 0x09), (0x20, 0x20)),
    "cntrl": ((0, 0x1F), (0x7F, 0x7F)),
    "digit": _DIGITS,
    "graph": ((0x21, 0x7E),),
    "lower": ((0x61, 0x7A),),
    "print": ((0x20, 0x7E),),
    "punct": ((0x21, 0x2F), (0x3A, 0x40), (0x5B, 0x60), (0x7B, 0x7E)),
    "space": ((0x09, 0x0D), (0x20, 0x20)),
    "upper": ((0x41, 0x5A),),
    "word": _WORD,
    "xdigit": ((0x30, 0x39), (0x41, 0x46), (0x61, 0x66)),
}
_ASSERTIONS: Final = {"A": "text begin", "z": "text end", "b": "boundary", "B": "no boundary"}
_CONTROLS: Final = {"a": 7, "f": 12, "t": 9, "n": 10, "r": 13, "v": 11}
_PUNCTUATION: Final = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
_COUNTS: Final = re.compile(r"\{([0-9]{1,9})(,([0-9]{1,9})?)?\}")
_GROUP: Final = re.compile(r"\(\?(?:(P?)<([^>]*)>|([imsU]*)(-[imsU]+)?([:)]))")
_POSIX_CLASS: Final = re.compile(r"\[:(\^?)([a-z]+):\]")
_OCTAL: Final = re.compile(r"0[0-7]{0,2}|[1-7][0-7]{1,2}")
_HEX: Final = re.compile(r"x(?:\{([0-9a-fA-F]{1,8})\}|([0-9a-fA-F]{2}))")


class InvalidPatternError(ValueError):
    """Go refuses the pattern."""


class UnsupportedPatternError(ValueError):
    """Go may accept the pattern, but it is outside the supported subset."""


@dataclass(frozen=True, slots=True)
class Empty:
    """Matches nothing at all, everywhere."""


@dataclass(frozen=True, slots=True)
class Characters:
    """One character out of ranges: from one of ``starts`` to the one of ``ends`` beside it."""

    starts: tuple[int, ...]
    ends: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Assertion:
    """A place in the text, such as its end."""

    kind: str


@dataclass(frozen=True, slots=True)
class Sequence:
    """One part behind the other."""

    parts: "tuple[Tree, ...]"


@dataclass(frozen=True, slots=True)
class Choice:
    """The first branch that leads to a match."""

    branches: "tuple[Tree, ...]"


@dataclass(frozen=True, slots=True)
class Repeat:
    """A part several times; without a maximum, any number of times."""

    part: "Tree"
    minimum: int
    maximum: int | None
    greedy: bool
    counted: bool = False


Tree: TypeAlias = Empty | Characters | Assertion | Sequence | Choice | Repeat


@dataclass(slots=True)
class _PatternParser:
    source: str
    position: int = 0
    depth: int = 0
    flags: frozenset[str] = frozenset()

    def choice(self) -> Tree:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise UnsupportedPatternError(f"it nests more than {_MAX_DEPTH} groups")
        branches = [self._sequence()]
        while self._skip("|"):
            branches.append(self._sequence())
        self.depth -= 1
        return branches[0] if len(branches) == 1 else Choice(tuple(branches))

    def _skip(self, text: str) -> bool:
        if not self.source.startswith(text, self.position):
            return False
        self.position += len(text)
        return True

    def _invalid(self, message: str) -> NoReturn:
        raise InvalidPatternError(f"{message} at character {self.position + 1}")

    def _sequence(self) -> Tree:
        parts: list[Tree] = []
        while self.position < len(self.source) and self.source[self.position] not in "|)":
            part = self._atom()
            if part is not None:
                parts.append(self._repeats(part))
            elif self._counts() is not None:
                raise UnsupportedPatternError("a repetition right behind flags")
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts)) if parts else Empty()

    def _repeats(self, part: Tree) -> Tree:
        counts = self._counts()
        if counts is None:
            return part
        counted = self.source[self.position - 1] == "}"
        minimum, maximum = counts
        greedy = self._skip("?") == ("U" in self.flags)
        if self._counts() is not None:
            self._invalid("one repetition right behind another")
        if minimum > _MAX_REPEAT or (maximum is not None and (maximum > _MAX_REPEAT or maximum < minimum)):
            self._invalid("a repetition of more than 1,000 times, or of fewer than none")
        repeat = Repeat(part, minimum, maximum, greedy, counted)
        if counted and not _within(repeat, _MAX_REPEAT):
            self._invalid("repetitions within one another that make more than 1,000")
        return repeat

    def _counts(self) -> tuple[int, int | None] | None:
        for operator, counts in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._skip(operator):
                return counts
        match = _COUNTS.match(self.source, self.position)
        if match is None:
            return None
        self.position = match.end()
        minimum = int(match[1])
        return minimum, minimum if match[2] is None else None if match[3] is None else int(match[3])

    def _atom(self) -> Tree | None:
        character = self.source[self.position]
        if character == "(":
            return self._group()
        if character == "[":
            return _characters(self._class())
        if character in "*+?":
            self._invalid("a repetition of nothing")
        if character == "{" and _COUNTS.match(self.source, self.position):
            self._invalid("a repetition of nothing")
        if character == "\\":
            return self._escape()
        self.position += 1
        multiline = "m" in self.flags
        match character:
            case ".":
                return _characters(((0, _MAX_CODE),) if "s" in self.flags else ((0, 9), (11, _MAX_CODE)))
            case "^":
                return Assertion("line begin" if multiline else "text begin")
            case "$":
                return Assertion("line end" if multiline else "text end")
        return _characters(self._folded(((ord(character), ord(character)),)))

    def _group(self) -> Tree | None:
        flags = self.flags
        if self.source.startswith("(?", self.position):
            match = _GROUP.match(self.source, self.position)
            if match is None:
                raise UnsupportedPatternError("a group of this kind")
            self.position = match.end()
            if match[2] is not None:
                self._name(match[2])
            else:
                self._set_flags(match)
                if match[5] == ")":
                    return None
        else:
            self.position += 1
        inner = self.choice()
        if not self._skip(")"):
            self._invalid("a group without its end")
        self.flags = flags
        return inner

    def _name(self, name: str) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_]+", name):
            raise UnsupportedPatternError("a group with such a name")

    def _set_flags(self, match: re.Match[str]) -> None:
        self.flags = (self.flags | set(match[3])) - set((match[4] or "")[1:])

    def _escape(self) -> Tree:
        self.position += 1
        if self.position >= len(self.source):
            self._invalid("a backslash at the end")
        letter = self.source[self.position]
        if letter in _ASSERTIONS:
            self.position += 1
            return Assertion(_ASSERTIONS[letter])
        ranges = self._perl(letter)
        if ranges is None:
            code = self._escaped_code()
            ranges = self._folded(((code, code),))
        return _characters(ranges)

    def _perl(self, letter: str) -> Ranges | None:
        if letter.lower() not in _PERL:
            return None
        self.position += 1
        ranges = self._folded(_PERL[letter.lower()])
        return _inverted(ranges) if letter.isupper() else ranges

    def _escaped_code(self) -> int:
        letter = self.source[self.position]
        if letter in _PUNCTUATION or letter in _CONTROLS:
            self.position += 1
            return _CONTROLS.get(letter, ord(letter))
        octal = _OCTAL.match(self.source, self.position)
        if octal is not None:
            self.position = octal.end()
            return int(octal[0], 8)
        match = _HEX.match(self.source, self.position)
        if match is None:
            raise UnsupportedPatternError(f"the escape \\{letter}")
        self.position = match.end()
        code = int(match[1] or match[2], 16)
        if code > _MAX_CODE:
            self._invalid("a number that no character has")
        return code

    def _class(self) -> Ranges:
        self.position += 1
        negated = self._skip("^")
        ranges: list[tuple[int, int]] = []
        first = True
        while first or not self._skip("]"):
            if self.position >= len(self.source):
                self._invalid("a class without its end")
            first = False
            ranges += self._class_item()
        merged = _merged(ranges)
        return _inverted(merged) if negated else merged

    def _class_item(self) -> Ranges:
        posix = _POSIX_CLASS.match(self.source, self.position)
        if posix:
            if posix[2] not in _POSIX:
                self._invalid("an unknown class")
            self.position = posix.end()
            ranges = self._folded(_POSIX[posix[2]])
            return _inverted(ranges) if posix[1] else ranges
        if self.source.startswith("[:", self.position):
            raise UnsupportedPatternError("[: in a class")
        if self.source[self.position] == "\\" and self.position + 1 < len(self.source):
            self.position += 1
            perl = self._perl(self.source[self.position])
            if perl is not None:
                return perl
            self.position -= 1
        low = high = self._class_character()
        if self.source.startswith("-", self.position) and self.source[self.position + 1 : self.position + 2] not in (
            "",
            "]",
        ):
            self.position += 1
            high = self._class_character()
            if high < low:
                self._invalid("a range that ends before it begins")
        return self._folded(((low, high),))

    def _class_character(self) -> int:
        if self.position >= len(self.source):
            self._invalid("a class without its end")
        character = self.source[self.position]
        self.position += 1
        if character != "\\":
            return ord(character)
        if self.position >= len(self.source):
            self._invalid("a backslash at the end")
        return self._escaped_code()

    def _folded(self, ranges: Ranges) -> Ranges:
        """Add the other case of letters if the pattern ignores case."""
        if "i" not in self.flags:
            return ranges
        if any(high > 0x7F for _, high in ranges):
            raise UnsupportedPatternError("(?i) with characters beyond ASCII")
        folded = list(ranges)
        for low, high in ranges:
            for first, last, distance in _OTHER_CASES:
                if low <= last and high >= first:
                    folded.append((max(low, first) + distance, min(high, last) + distance))
        return _merged(folded)


def _within(tree: Tree, limit: int) -> bool:
    """Return whether counted repetitions within one another multiply to no more than a limit."""
    match tree:
        case Repeat():
            if tree.counted:
                if tree.maximum == 0:
                    return True
                repetitions = tree.minimum if tree.maximum is None else tree.maximum
                if repetitions > limit:
                    return False
                limit //= max(repetitions, 1)
            return _within(tree.part, limit)
        case Sequence():
            return all(_within(part, limit) for part in tree.parts)
        case Choice():
            return all(_within(branch, limit) for branch in tree.branches)
    return True


def _merged(ranges: list[tuple[int, int]]) -> Ranges:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def _characters(ranges: Ranges) -> Characters:
    return Characters(tuple(low for low, _ in ranges), tuple(high for _, high in ranges))


def _inverted(ranges: Ranges) -> Ranges:
    inverted: list[tuple[int, int]] = []
    begin = 0
    for low, high in ranges:
        if low > begin:
            inverted.append((begin, low - 1))
        begin = high + 1
    if begin <= _MAX_CODE:
        inverted.append((begin, _MAX_CODE))
    return tuple(inverted)


def parse_pattern(source: str) -> Tree:
    """Return the syntax tree of a pattern.

    Raises:
        InvalidPatternError: Go refuses it.
        UnsupportedPatternError: it uses what is not supported here.
    """
    parser = _PatternParser(source)
    tree = parser.choice()
    if parser.position < len(source):
        raise InvalidPatternError(f"a ) without its ( at character {parser.position + 1}")
    return tree
