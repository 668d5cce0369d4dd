"""Words that messages share."""

import difflib
from collections.abc import Iterable, Sequence
from typing import Final

QUOTED_CHARACTERS: Final = 64
"""Characters of a value that a message quotes."""


def few_of(names: Sequence[str], most: int = 4) -> str:
    """Return the first names of a list, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def few_for(names: Sequence[str], reader: str, what: str, most: int = 4) -> str:
    """Return the first of some objects named ``namespace/name`` as far as a reader may see names, and how many others.

    Args:
        names: the objects.
        reader: the namespace whose users read it; names of other namespaces are only counted. Empty: all are named.
        what: the kind of the objects, for those that are not named.
        most: how many are named at most.
    """
    own = [name for name in names if not reader or name.startswith(f"{reader}/")]
    others = len(names) - len(own)
    if not others:
        return few_of(names, most)
    hidden = f"a {what} of another namespace" if others == 1 else f"{others} {what}s of other namespaces"
    return f"{few_of(own, most)} and {hidden}" if own else hidden


def clipped(text: str, most: int) -> str:
    """Return a text of at most so many characters, and three dots where it was longer."""
    return text if len(text) <= most else f"{text[:most]}..."


def quoted(value: object) -> str:
    """Return a value as it stands in a message, cut so that the remedy still fits behind it."""
    if isinstance(value, str):
        return repr(clipped(value, QUOTED_CHARACTERS))
    return clipped(repr(value), QUOTED_CHARACTERS)


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "", likeness: float = 0.6) -> str:
    """Return the question whether a known name was meant; where none is near, another hint.

    Args:
        name: what was written.
        known: the names there are.
        otherwise: what is returned where none of them is near.
        likeness: how near it has to be, from 0 to 1 (the same).
    """
    near = difflib.get_close_matches(name, list(known), 1, likeness)
    return f"did you mean {near[0]}?" if near else otherwise


def plural(level: str) -> str:
    """Return the name of several domains of a level, or of several nodes."""
    return "leaves" if level == "leaf" else f"{level}s"


def lacking_labels(nodes: Sequence[str], of: int) -> str:
    """Return a sentence on nodes that do not tell their place, of so many; empty when all do."""
    if not nodes:
        return ""
    return (
        f"{len(nodes)} of {of} nodes have no labels that tell their place in the fabric ({few_of(nodes, 5)}):"
        " they share domains called unlabelled, and gangs there are placed without topology."
    )
