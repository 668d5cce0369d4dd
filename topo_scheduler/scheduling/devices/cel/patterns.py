"""Regular expressions in a subset of RE2's syntax, in time linear to the text: tenants write the patterns.

Python's ``re`` may take exponential time, and differs from Go's regexp. What is outside the subset (Unicode classes,
quoting, case folding of letters beyond ASCII) is reported as not understood.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from .errors import EvaluationError, ExpressionNotUnderstoodError
from .pattern_program import PatternInstruction, compile_tree
from .pattern_syntax import InvalidPatternError, UnsupportedPatternError, parse_pattern

FIND_ALL_PASSES: Final = 4
"""``find_all`` goes through a text about so often at most."""
_MAX_PATTERN_CHARACTERS: Final = 2_000
"""Maximum characters of a pattern."""


class Pattern:
    """A compiled pattern, simulated with one list of threads in order of preference (a Pike virtual machine)."""

    def __init__(self, program: list[PatternInstruction]) -> None:
        self._program = program

    @property
    def size(self) -> int:
        """The number of instructions: a search takes about this many steps for each character."""
        return len(self._program)

    def matches(self, text: str) -> bool:
        """Return whether the pattern matches somewhere in a text."""
        return self._search(text, 0, first_only=True)[0] is not None

    def find(self, text: str) -> str:
        """Return the first match, empty if there is none."""
        span, _ = self._search(text, 0)
        return "" if span is None else text[span[0] : span[1]]

    def find_all(self, text: str, count: int = -1) -> list[str]:
        """Return the matches that do not overlap, at most ``count`` of them if that is not negative."""
        matches: list[str] = []
        position, previous_end = 0, -1
        searched = 0
        while position <= len(text) and (count < 0 or len(matches) < count):
            if searched > FIND_ALL_PASSES * (len(text) + 1):
                raise ExpressionNotUnderstoodError("findAll() goes through the text too often: simplify the pattern")
            span, visited = self._search(text, position)
            searched += visited
            if span is None:
                break
            start, end = span
            accepted = True
            if end == start:
                accepted = start != previous_end  # no empty match right behind another match
                position = end + 1
            else:
                position = end
            previous_end = end
            if accepted:
                matches.append(text[start:end])
        return matches

    def _search(self, text: str, begin: int, first_only: bool = False) -> tuple[tuple[int, int] | None, int]:
        """Return the first match behind a position, and how many positions were visited."""
        threads: list[tuple[int, int]] = []
        best: tuple[int, int] | None = None
        position = begin
        for position in range(begin, len(text) + 1):
            if position == begin:
                threads = list(self._follow([], text, position, best))
            character = text[position] if position < len(text) else ""
            arrived: list[tuple[int, int]] = []
            for counter, start in threads:
                instruction = self._program[counter]
                if instruction.kind == "match":
                    best = (start, position)
                    if first_only:
                        return best, 0
                    break
                if character and instruction.accepts(character):
                    arrived.append((counter + 1, start))
            following = list(self._follow(arrived, text, position + 1, best)) if character else []
            if not following and best is not None:
                break
            threads = following
        return best, position - begin + 1

    def _follow(
        self, arrived: list[tuple[int, int]], text: str, position: int, best: tuple[int, int] | None
    ) -> Iterator[tuple[int, int]]:
        """Yield the threads at a position by preference; a new one starts there as long as nothing matched."""
        seen: set[int] = set()
        sources = arrived if best is not None else [*arrived, (0, position)]
        for source in sources:
            pending = [source]
            while pending:
                counter, start = pending.pop()
                if counter in seen:
                    continue
                seen.add(counter)
                instruction = self._program[counter]
                if instruction.kind == "split":
                    pending += [(instruction.second, start), (instruction.first, start)]
                elif instruction.kind == "jump":
                    pending.append((instruction.first, start))
                elif instruction.kind == "assert":
                    if instruction.holds(text, position):
                        pending.append((counter + 1, start))
                else:
                    yield counter, start


@lru_cache(maxsize=256)
def _compiled(source: str) -> Pattern | InvalidPatternError | UnsupportedPatternError:
    try:
        return Pattern(compile_tree(parse_pattern(source)))
    except (InvalidPatternError, UnsupportedPatternError) as error:
        return error


def pattern(source: str) -> Pattern:
    """Return the compiled form of a pattern.

    Raises:
        EvaluationError: Go refuses the pattern too.
        ExpressionNotUnderstoodError: it is outside the supported subset.
    """
    if len(source) > _MAX_PATTERN_CHARACTERS:
        raise ExpressionNotUnderstoodError(
            f"regular expressions of more than {_MAX_PATTERN_CHARACTERS} characters are not supported"
        )
    compiled = _compiled(source)
    if isinstance(compiled, Pattern):
        return compiled
    shown = f"the regular expression {source[:64]!r}"
    if isinstance(compiled, InvalidPatternError):
        raise EvaluationError(f"{shown} is invalid: {compiled}")
    raise ExpressionNotUnderstoodError(f"{shown} is not supported: {compiled}")
