"""Regular expressions as instructions of a small virtual machine."""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from .pattern_syntax import (
    Assertion,
    Characters,
    Choice,
    Empty,
    Repeat,
    Sequence,
    Tree,
    UnsupportedPatternError,
)

MAX_INSTRUCTIONS: Final = 2_000


@dataclass(slots=True)
class PatternInstruction:
    """``characters``, ``split`` (prefer ``first``), ``jump`` to ``first``, ``assert`` or ``match``."""

    kind: str
    first: int = 0
    second: int = 0
    starts: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    assertion: str = ""

    def accepts(self, character: str) -> bool:
        """Return whether a character is one of these."""
        code = ord(character)
        index = bisect_right(self.starts, code) - 1
        return index >= 0 and code <= self.ends[index]

    def holds(self, text: str, position: int) -> bool:
        """Return whether the assertion holds in front of a character."""
        return _ASSERTIONS[self.assertion](text, position)


def _is_word(text: str, position: int) -> bool:
    return (
        0 <= position < len(text) and text[position].isascii() and (text[position].isalnum() or text[position] == "_")
    )


def _boundary(text: str, position: int) -> bool:
    return _is_word(text, position - 1) != _is_word(text, position)


_ASSERTIONS: Final[dict[str, Callable[[str, int], bool]]] = {
    "text begin": lambda text, position: position == 0,
    "text end": lambda text, position: position == len(text),
    "line begin": lambda text, position: position == 0 or text[position - 1] == "\n",
    "line end": lambda text, position: position == len(text) or text[position] == "\n",
    "boundary": _boundary,
    "no boundary": lambda text, position: not _boundary(text, position),
}


def compile_tree(tree: Tree) -> list[PatternInstruction]:
    """Return the program of a pattern."""
    compiler = _ProgramBuilder()
    compiler.add(tree)
    compiler.emit("match")
    return compiler.program


def _nullable(tree: Tree) -> bool:
    match tree:
        case Characters():
            return False
        case Sequence():
            return all(map(_nullable, tree.parts))
        case Choice():
            return any(map(_nullable, tree.branches))
        case Repeat():
            return tree.minimum == 0 or _nullable(tree.part)
    return True


class _ProgramBuilder:
    def __init__(self) -> None:
        self.program: list[PatternInstruction] = []

    def emit(self, kind: str, assertion: str = "") -> PatternInstruction:
        if len(self.program) >= MAX_INSTRUCTIONS:
            raise UnsupportedPatternError("it is too large")
        self.program.append(PatternInstruction(kind, assertion=assertion))
        return self.program[-1]

    def add(self, tree: Tree) -> None:
        """Append the instructions of a tree."""
        match tree:
            case Characters():
                emitted = self.emit("characters")
                emitted.starts, emitted.ends = tree.starts, tree.ends
            case Assertion():
                self.emit("assert", assertion=tree.kind)
            case Sequence():
                for part in tree.parts:
                    self.add(part)
            case Choice():
                self._choice(tree)
            case Repeat():
                self._repeat(tree)
            case Empty():
                pass

    def _choice(self, tree: Choice) -> None:
        jumps: list[PatternInstruction] = []
        for branch in tree.branches[:-1]:
            split = self.emit("split")
            split.first = len(self.program)
            self.add(branch)
            jumps.append(self.emit("jump"))
            split.second = len(self.program)
        self.add(tree.branches[-1])
        for jump in jumps:
            jump.first = len(self.program)

    def _repeat(self, tree: Repeat) -> None:
        if tree.maximum is None:
            for _ in range(tree.minimum - 1):
                self.add(tree.part)
            if tree.minimum:
                self._plus(tree)
            elif _nullable(tree.part):
                self._optional(tree, lambda: self._plus(tree))
            else:
                self._star(tree)
            return
        for _ in range(tree.minimum):
            self.add(tree.part)
        splits: list[PatternInstruction] = []
        for _ in range(tree.maximum - tree.minimum):
            splits.append(self.emit("split"))
            self._prefer(splits[-1], len(self.program), tree.greedy)
            self.add(tree.part)
        for split in splits:
            self._otherwise(split, len(self.program), tree.greedy)

    def _prefer(self, split: PatternInstruction, target: int, greedy: bool) -> None:
        if greedy:
            split.first = target
        else:
            split.second = target

    def _otherwise(self, split: PatternInstruction, target: int, greedy: bool) -> None:
        self._prefer(split, target, not greedy)

    def _plus(self, tree: Repeat) -> None:
        start = len(self.program)
        self.add(tree.part)
        split = self.emit("split")
        self._prefer(split, start, tree.greedy)
        self._otherwise(split, len(self.program), tree.greedy)

    def _star(self, tree: Repeat) -> None:
        start = len(self.program)
        split = self.emit("split")
        self._prefer(split, len(self.program), tree.greedy)
        self.add(tree.part)
        self.emit("jump").first = start
        self._otherwise(split, len(self.program), tree.greedy)

    def _optional(self, tree: Repeat, add: Callable[[], None]) -> None:
        split = self.emit("split")
        self._prefer(split, len(self.program), tree.greedy)
        add()
        self._otherwise(split, len(self.program), tree.greedy)
