"""Helpers for the text of messages."""

import difflib
from collections.abc import Iterable, Sequence
from typing import Final

QUOTED_CHARACTERS: Final = 64
"""Maximum characters of a value that a message quotes."""


def few_of(names: Sequence[str], limit: int = 4) -> str:
    """Return the first names of a list, and the number of the others."""
    suffix = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + suffix


def few_for(names: Sequence[str], reader: str, kind: str, limit: int = 4) -> str:
    """Return the first names of objects that a reader may see, and the number of the others.

    Args:
        names: names of the objects, as ``namespace/name``.
        reader: the namespace whose users read the text; objects of other namespaces are only counted. Empty: all names
            may be seen.
        kind: the kind of the objects, for those that are only counted.
        limit: maximum number of names.
    """
    own = [name for name in names if not reader or name.startswith(f"{reader}/")]
    others = len(names) - len(own)
    if not others:
        return few_of(names, limit)
    hidden = f"a {kind} of another namespace" if others == 1 else f"{others} {kind}s of other namespaces"
    return f"{few_of(own, limit)} and {hidden}" if own else hidden


def one_for(name: str, reader: str, kind: str) -> str:
    """Return how a text refers to one object, with its kind. Arguments are as for `few_for`."""
    shortened = few_for([name], reader, kind)
    return f"{kind} {name}" if shortened == name else shortened


def counted(number: int, noun: str, singular: str = "", plural: str = "") -> str:
    """Return a number with its noun, and with the words that follow one or several of them: ``1 pod is gone``."""
    text, words = (f"{number} {noun}", singular) if number == 1 else (f"{number} {noun}s", plural or singular)
    return f"{text} {words}" if words else text


def clipped(text: str, limit: int) -> str:
    """Return the first ``limit`` characters of a text, with three dots if it is longer."""
    return text if len(text) <= limit else f"{text[:limit]}..."


def quoted(value: object) -> str:
    """Return a value as quoted in a message, cut so that the remedy still fits."""
    if isinstance(value, str):
        return repr(clipped(value, QUOTED_CHARACTERS))
    return clipped(repr(value), QUOTED_CHARACTERS)


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "", likeness: float = 0.6) -> str:
    """Return a suggestion of the most similar known name, or another hint if none is similar.

    Args:
        name: the unknown name.
        known: the known names.
        otherwise: hint that is returned if no known name is similar.
        likeness: minimum similarity, from 0 to 1 (equal).
    """
    similar = difflib.get_close_matches(name, list(known), 1, likeness)
    return f"did you mean {similar[0]}?" if similar else otherwise


def plural(level: str) -> str:
    """Return the plural of a level's name, or of ``node``."""
    return "leaves" if level == "leaf" else f"{level}s"


def lacking_labels(nodes: Sequence[str], total: int) -> str:
    """Return a sentence on nodes without labels of their position, out of ``total``; empty if there are none."""
    if not nodes:
        return ""
    return (
        f"{len(nodes)} of {total} nodes have no labels that give their position in the fabric ({few_of(nodes, 5)}):"
        " they share domains called unlabelled, and gangs there are placed without topology."
    )
