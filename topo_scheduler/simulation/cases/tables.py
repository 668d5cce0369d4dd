"""Read CSV files row by row, with messages that name the file, the line, and the remedy."""

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from topo_scheduler.api.text import clipped, did_you_mean
from topo_scheduler.simulation.cases.model import CaseError

_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,15}(?:\.0*)?", re.ASCII)
_DIGITS: Final = re.compile(r"\+?[0-9]+(?:\.0*)?", re.ASCII)
_MAX_SHOWN_CHARACTERS: Final = 40
"""Longest part of a value in a message, in characters."""


def wrong(path: Path, line: int, problem: str, remedy: str) -> CaseError:
    """Return the error for a line of a file; line 0 means the whole file."""
    where = f"{path}:{line}" if line else str(path)
    return CaseError(f"{where}: {problem}; {remedy}")


def quoted(value: str) -> str:
    """Return a value quoted for a message, and cut to leave room for the remedy."""
    return repr(clipped(value, _MAX_SHOWN_CHARACTERS))


def read_text(path: Path) -> str:
    """Return a file's text.

    Raises:
        CaseError: the file can't be read, or is not UTF-8.
    """
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise wrong(path, line, f"byte {error.start} is not UTF-8", "is it compressed, or a binary?") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise wrong(path, 0, f"can't be read: {reason}", "check the path") from error


@dataclass(slots=True)
class Row:
    """A line of a table: its number from 1, the header included, and its fields by column."""

    path: Path
    line: int
    fields: dict[str, str]

    @property
    def location(self) -> str:
        """File and line."""
        return f"{self.path}:{self.line}"

    def error(self, problem: str, remedy: str) -> CaseError:
        """Return the error for this line."""
        return wrong(self.path, self.line, problem, remedy)

    def once(self, seen: dict[str, int], key: str, described: str, remedy: str = "rename one, or delete it") -> None:
        """Add a key to those of earlier lines, or raise the error for one that is there already."""
        if key in seen:
            raise self.error(f"{described} is in line {seen[key]} already", remedy)
        seen[key] = self.line

    def text(self, column: str) -> str:
        """Return a field that must not be empty."""
        value = self.fields.get(column, "").strip()
        if not value:
            raise self.error(f"{column} is empty", f"give each line its {column}, or delete the line")
        return value

    def whole_number(self, column: str, low: int = 0, high: int = 2**53) -> int:
        """Return a whole number within bounds."""
        value = self.fields[column].strip()
        if not _WHOLE_NUMBER.fullmatch(value):
            if _DIGITS.fullmatch(value):
                raise self.error(f"{column} is {quoted(value)}", f"write at most {high}")
            raise self.error(f"{column} is {quoted(value)}", f"write a whole number from {low} up")
        number = int(value.partition(".")[0])
        if number < low:
            reason = "negative" if number < 0 <= low else f"less than {low}"
            raise self.error(f"{column} is {number}, which is {reason}", f"write a whole number from {low} up")
        if number > high:
            raise self.error(f"{column} is {number}", f"write at most {high}")
        return number

    def maybe(self, column: str) -> int | None:
        """Return a whole number, or None if the field is empty or the column is missing."""
        return self.whole_number(column) if self.fields.get(column, "").strip() else None


def header_of(text: str) -> list[str]:
    """Return the column names in the first line of a text; an empty list if it is no CSV."""
    try:
        return [name.strip() for name in next(csv.reader(text.splitlines()[:1]), [])]
    except csv.Error:  # a line longer than any header
        return []


def read_rows(path: Path, required: Sequence[str], optional: Sequence[str] = ()) -> Iterator[Row]:
    """Yield the rows of a CSV file whose first line names its columns; empty lines are skipped.

    Raises:
        CaseError: the file can't be read, columns are missing or unknown, or a line and the header differ in length.
    """
    text = read_text(path)
    reader = csv.reader(text.splitlines(keepends=True), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        _check_header(path, header, required, optional)
        for values in reader:
            if not any(map(str.strip, values)) and len(values) < 2:
                continue
            if len(values) != len(header):
                raise _uneven(path, reader.line_num, len(values), header)
            yield Row(path, reader.line_num, dict(zip(header, values, strict=True)))
    except csv.Error as error:
        raise wrong(path, max(reader.line_num, 1), f"not CSV: {error}", "fetch or write the file again") from error


def _check_header(path: Path, header: Sequence[str], required: Sequence[str], optional: Sequence[str]) -> None:
    known = [*required, *optional]
    if not header:
        raise wrong(path, 0, "the file is empty", f"its first line names the columns {','.join(required)}")
    if duplicate := next((name for name in header if header.count(name) > 1), None):
        raise wrong(path, 1, f"column {quoted(duplicate)} is there twice", "delete one")
    for name in header:
        if name not in known:
            missing_columns = [column for column in required if column not in header]
            lowercase = name.lower()
            fallback = did_you_mean(lowercase, known, f"known are {', '.join(known)}; delete it")
            remedy = did_you_mean(lowercase, missing_columns, fallback, 0.5)
            raise wrong(path, 1, f"unknown column {quoted(name)}", remedy)
    if missing := [name for name in required if name not in header]:
        raise wrong(path, 1, f"column {missing[0]} is missing", f"the columns {', '.join(required)} are needed")


def _uneven(path: Path, line: int, count: int, header: Sequence[str]) -> CaseError:
    if count < len(header):
        problem = f"{count} of {len(header)} fields, {header[count]} is missing"
        return wrong(path, line, problem, "the file seems to be cut short; fetch it again, or delete the line")
    return wrong(path, line, f"{count} fields for {len(header)} columns", "quote fields that contain commas")
