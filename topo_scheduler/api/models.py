"""What the models of the configuration have in common."""

import re
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer
from pydantic.alias_generators import to_camel

_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?(?:(\d+)ms)?")


def parse_duration(value: object) -> object:
    """Turn a duration such as ``15s``, ``1m30s`` or ``500ms`` into seconds; numbers pass."""
    if not isinstance(value, str):
        return value
    match = _DURATION.fullmatch(value.strip())
    if match is None or not any(match.groups()):
        raise ValueError(f"{value!r} is not a duration such as 15s, 1m30s or 500ms")
    hours, minutes, seconds, millis = (float(group or 0) for group in match.groups())
    return hours * 3600 + minutes * 60 + seconds + millis / 1000


Seconds = Annotated[
    float,
    BeforeValidator(parse_duration),
    PlainSerializer(lambda value: f"{value:g}s"),
    Field(gt=0, le=86400),
]
"""Seconds, written as a duration (``15s``) or a number."""
Share = Annotated[float, Field(ge=0, le=1)]


class Model(BaseModel):
    """Common rules: camelCase keys, nothing unknown, frozen once read."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
    )
