"""Build HTML and SVG: `tag` writes an element and escapes text that is not markup already."""

from html import escape
from typing import Final

_EMPTY: Final = frozenset(("br", "circle", "col", "input", "line", "link", "meta", "path", "polygon", "rect"))


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


Child = str | None
"""Markup is kept, other text is escaped, None is left out."""


def tag(name: str, *children: Child, **attributes: str | float | bool | None) -> Markup:
    """Return an element.

    Args:
        name: name of the tag.
        children: its content, in order.
        attributes: its attributes. A trailing underscore of a name is dropped, other underscores become dashes. Numbers
            are rounded to hundredths. True writes an attribute without a value; False and None leave it out.
    """
    attribute_text = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _EMPTY and not children:
        return Markup(f"<{name}{attribute_text}/>")
    return Markup(f"<{name}{attribute_text}>{join(*children)}</{name}>")


def join(*children: Child) -> Markup:
    """Return the children joined as markup."""
    return Markup(
        "".join(child if isinstance(child, Markup) else escape(child) for child in children if child is not None)
    )


def number(value: float) -> str:
    """Return a number rounded to hundredths, without trailing zeros."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _attribute(key: str, value: str | float | bool | None) -> str:
    name = key.rstrip("_").replace("_", "-") if key != "viewBox" else key
    if value is None or value is False:
        return ""
    if value is True:
        return f" {name}"
    return f' {name}="{escape(value) if isinstance(value, str) else number(value)}"'
