"""Messages about a refused configuration: the path of the field, what must stand there, and what was found."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel

from topo_scheduler.api.names import RULES
from topo_scheduler.api.text import clipped, did_you_mean

FOUND_CHARACTERS: Final = 80
"""Maximum characters of a refused value that a message shows."""

_EXPECTED: Final = {
    "missing": "a value is required",
    "dict_type": "expected a mapping",
    "model_type": "expected a mapping",
    "model_attributes_type": "expected a mapping",
    "tuple_type": "expected a list",
    "list_type": "expected a list",
    "string_type": "expected a text; put a number into quotes",
    "int_type": "expected a whole number",
    "int_parsing": "expected a whole number",
    "int_from_float": "expected a whole number",
    "int_parsing_size": "the number is too large",
    "float_type": "expected a number",
    "float_parsing": "expected a number",
    "finite_number": "expected a finite number",
    "bool_type": "expected true or false",
    "bool_parsing": "expected true or false",
    "invalid_key": "a key must be a text",
}
"""What must stand in a field, by pydantic's type of error."""


def problem(error: Mapping[str, Any]) -> str:
    """Return what is wrong with a value, from an entry of pydantic's ``ValidationError.errors()``."""
    kind, context = error["type"], error.get("ctx", {})
    match kind:
        case "value_error":
            return str(context["error"])
        case "greater_than_equal":
            return f"must be at least {context['ge']:.12g}"
        case "greater_than":
            return f"must be above {context['gt']:.12g}"
        case "less_than_equal":
            return f"must be at most {context['le']:.12g}"
        case "string_too_short" | "too_short":
            return "must not be empty"
        case "string_too_long":
            return f"must have at most {context['max_length']} characters"
        case "too_long":
            return f"must have at most {context['max_length']} entries"
        case "string_pattern_mismatch":
            pattern = context["pattern"]
            return f"write {RULES[pattern]}" if pattern in RULES else f"must match the pattern {pattern}"
        case "enum" | "literal_error":
            return f"write {context['expected']}"
    return _EXPECTED.get(kind, str(error["msg"]))


def with_found(error: Mapping[str, Any]) -> str:
    """Return the same as `problem`, with the value that was found.

    A rule over several fields names them itself: their mapping is not shown.
    """
    value = error["input"]
    if error["type"] == "missing" or (error["type"] == "value_error" and isinstance(value, dict | BaseModel)):
        return problem(error)
    shown = _AS_YAML.get(value) if value is None or isinstance(value, bool) else None
    return f"{problem(error)} (found {shown or clipped(repr(value), FOUND_CHARACTERS)})"


_AS_YAML: Final = {None: "null", True: "true", False: "false"}


def explained(model: type[BaseModel], error: Mapping[str, Any], kinds: Iterable[type[BaseModel]]) -> str:
    """Return the line on one error of a document: its path, and the problem.

    Args:
        model: the kind of the document.
        error: an entry of pydantic's ``ValidationError.errors()``.
        kinds: all kinds, one of which may have a key that is unknown where it was found.
    """
    location = error["loc"]
    prefix = f"{'.'.join(clipped(str(part), FOUND_CHARACTERS) for part in location)}: " if location else ""
    if error["type"] != "extra_forbidden":
        return prefix + with_found(error)
    known = aliases(model, location[:-1])
    return f"{prefix}unknown key; " + (
        _home(model, location, kinds) or did_you_mean(str(location[-1]), known, f"known here: {', '.join(known)}")
    )


def _home(model: type[BaseModel], location: tuple[Any, ...], kinds: Iterable[type[BaseModel]]) -> str:
    """Return where a known key belongs that was set in the wrong kind or place, or an empty string.

    A key that a kind has in several places, such as ``after``, has none. Nor has a key of an entry of a list.
    """
    if any(isinstance(part, int) for part in location):
        return ""

    def places(kind: type[BaseModel]) -> list[str]:
        return [".".join(path) for path in _paths(kind) if path[-1] == location[-1]]

    here = places(model)
    homes = [f"as {place}" if "." in place else f"beside {location[0]}, not in it" for place in here]
    for kind in kinds:
        other_places = [place for place in places(kind) if place not in here]
        homes += [f"in a document of kind {kind.__name__}, as {place}" for place in other_places]
    return f"write it {' or '.join(homes)}" if len(here) <= 1 and 1 <= len(homes) <= 2 else ""


def _paths(model: type[BaseModel], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of each key of a kind, without those of entries of lists."""
    for field_info in model.model_fields.values():
        path = (*above, field_info.alias or "")
        yield path
        if isinstance(inner := field_info.annotation, type) and issubclass(inner, BaseModel):
            yield from _paths(inner, path)


def aliases(model: type[BaseModel], location: Iterable[Any]) -> list[str]:
    """Return the keys that a configuration may have at a location."""
    current: type[BaseModel] | None = model
    for part in location:
        if current is None or isinstance(part, int):
            continue
        field_info = next(
            (field_info for field_info in current.model_fields.values() if field_info.alias == part), None
        )
        current = _inner_model(field_info.annotation) if field_info else None
    return [field_info.alias or "" for field_info in current.model_fields.values()] if current else []


def _inner_model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, (_inner_model(arg) for arg in getattr(annotation, "__args__", ()))), None)
