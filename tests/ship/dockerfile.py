"""The Dockerfile and .dockerignore as data: the little of their languages that this project uses.

What is not understood raises, so that the Dockerfile gets no line that these tests would not carry out.
"""

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

KNOWN = frozenset({"FROM", "ENV", "WORKDIR", "COPY", "RUN", "USER", "EXPOSE", "ENTRYPOINT", "CMD"})


class NotUnderstood(ValueError):
    """A line outside the part of the language that is read here."""


@dataclass(frozen=True)
class Instruction:
    """One instruction: its name and the rest of its line."""

    name: str
    text: str

    def words(self) -> list[str]:
        """The arguments, unquoted."""
        return shlex.split(self.text)

    def pairs(self) -> dict[str, str]:
        """The arguments of ENV, unexpanded."""
        return dict(self._pair(word) for word in self.words())

    def options(self) -> tuple[dict[str, str], list[str]]:
        """Leading ``--name=value`` words, and the rest."""
        words = self.words()
        options = [word for word in words if word.startswith("--")]
        return dict(self._pair(word[2:]) for word in options), words[len(options) :]

    def command(self) -> list[str]:
        """The argument of ENTRYPOINT or CMD in its JSON form; the shell form would put a shell before the process."""
        try:
            arguments = json.loads(self.text)
        except ValueError:
            raise NotUnderstood(f'{self.name} {self.text}: write it as ["program", "argument"]') from None
        return [str(part) for part in arguments]

    @staticmethod
    def _pair(word: str) -> tuple[str, str]:
        key, separator, value = word.partition("=")
        if not separator:
            raise NotUnderstood(f"{word!r} is no NAME=VALUE")
        return key, value


@dataclass(frozen=True)
class Stage:
    """One FROM and what follows it."""

    base: str
    name: str
    instructions: tuple[Instruction, ...]

    def last(self, name: str) -> str:
        """The text of the last instruction of a name; it must be there."""
        return [instruction.text for instruction in self.instructions if instruction.name == name][-1]


def read_dockerfile(path: Path) -> list[Stage]:
    """Read the stages of a Dockerfile, in order."""
    stages: list[Stage] = []
    for instruction in _instructions(path.read_text()):
        if instruction.name == "FROM":
            match instruction.words():
                case [base]:
                    stages.append(Stage(base, "", ()))
                case [base, separator, name] if separator.upper() == "AS":
                    stages.append(Stage(base, name, ()))
                case _:
                    raise NotUnderstood(f"FROM {instruction.text}")
        else:
            last = stages[-1]
            stages[-1] = Stage(last.base, last.name, (*last.instructions, instruction))
    return stages


def _instructions(text: str) -> Iterator[Instruction]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\n", "", "\n".join(lines)).splitlines():
        if not line.strip():
            continue
        name, _, rest = line.strip().partition(" ")
        if name.upper() not in KNOWN or "<<" in rest:
            raise NotUnderstood(line)
        yield Instruction(name.upper(), rest.strip())


@dataclass(frozen=True)
class Ignore:
    """The patterns of a .dockerignore; of those that match a path or one of its parents, the last one decides."""

    patterns: tuple[tuple[re.Pattern[str], bool], ...]

    @classmethod
    def read(cls, path: Path) -> "Ignore":
        """Read a .dockerignore."""
        lines = (line.strip() for line in path.read_text().splitlines())
        return cls(
            tuple(
                (re.compile(_expression(line.removeprefix("!"))), not line.startswith("!"))
                for line in lines
                if line and not line.startswith("#")
            )
        )

    def excludes(self, path: str) -> bool:
        """Whether a file, named relative to the context, stays out of the build."""
        names = [path, *(str(parent) for parent in PurePosixPath(path).parents if str(parent) != ".")]
        verdict = False
        for pattern, excluded in self.patterns:
            if any(pattern.fullmatch(name) for name in names):
                verdict = excluded
        return verdict


def _expression(pattern: str) -> str:
    parts = re.split(r"(\*\*/|\*|\[[^]]+])", pattern.strip("/"))
    special = {"**/": "(?:.*/)?", "*": "[^/]*"}
    return "".join(
        special.get(part, part if part.startswith("[") and part.endswith("]") else re.escape(part)) for part in parts
    )
