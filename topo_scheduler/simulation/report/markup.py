"""HTML and SVG as values: one function that writes a tag, and escapes whatever is not markup already."""

from html import escape
from typing import Final

_EMPTY: Final = frozenset(("br", "circle", "col", "input", "line", "link", "meta", "path", "polygon", "rect"))


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


Child = str | None
"""Markup stays as it is, text is escaped, None is nothing."""


def tag(name: str, *children: Child, **attributes: str | float | bool | None) -> Markup:
    """Return an element.

    Args:
        name: of the tag.
        children: what is inside, in order.
        attributes: a trailing underscore is dropped, others become dashes; numbers are rounded to hundredths; True is
            an attribute without a value, False and None leave it out.
    """
    told = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _EMPTY and not children:
        return Markup(f"<{name}{told}/>")
    return Markup(f"<{name}{told}>{join(*children)}</{name}>")


def join(*children: Child) -> Markup:
    """Return markup of what follows each other."""
    return Markup("".join(one if isinstance(one, Markup) else escape(one) for one in children if one is not None))


def number(value: float) -> str:
    """Return a number as short as hundredths can be written."""
    told = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if told == "-0" else told


def _attribute(key: str, value: str | float | bool | None) -> str:
    name = key.rstrip("_").replace("_", "-") if key != "viewBox" else key
    if value is None or value is False:
        return ""
    if value is True:
        return f" {name}"
    return f' {name}="{escape(value) if isinstance(value, str) else number(value)}"'
