"""Base class and field types of the configuration models."""

from functools import partial
from typing import Annotated, Any, Final, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationInfo,
    field_validator,
)
from pydantic.alias_generators import to_camel

from topo_scheduler.api.durations import parse_duration, written_duration
from topo_scheduler.api.text import QUOTED_CHARACTERS, clipped, did_you_mean

_MAX_SECONDS: Final = 86_400
"""A day, in seconds."""


def parsed_duration(value: object, max_seconds: int) -> object:
    """Return a duration in seconds, at most ``max_seconds``; a number is returned unchanged.

    Raises:
        ValueError: neither a duration nor a number.
    """
    if isinstance(value, str):
        return parse_duration(value, max_seconds)
    if isinstance(value, int | float):
        return value
    raise ValueError("expected a duration such as 15s or 1m30s, or a number of seconds")


Seconds = Annotated[
    float,
    BeforeValidator(partial(parsed_duration, max_seconds=_MAX_SECONDS)),
    PlainSerializer(written_duration),
    Field(gt=0, le=_MAX_SECONDS),
]
"""Seconds, written as a duration (``15s``) or a number."""
Share = Annotated[float, Field(ge=0, le=1)]


_METADATA: Final = (
    "name", "namespace", "labels", "annotations", "generateName", "uid", "resourceVersion", "generation", "selfLink",
    "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "managedFields", "ownerReferences",
    "finalizers",
)  # fmt: skip
"""Keys of Kubernetes' ObjectMeta."""


def _known_metadata(value: dict[str, Any]) -> dict[str, Any]:
    """Refuse keys that ObjectMeta does not have, like unknown keys everywhere else."""
    for key in value:
        if key not in _METADATA:
            hint = did_you_mean(key, _METADATA, f"known here: {', '.join(_METADATA[:4])}")
            raise ValueError(f"unknown key {clipped(key, QUOTED_CHARACTERS)}; {hint}")
    return value


Metadata = Annotated[dict[str, Any], AfterValidator(_known_metadata)]
"""Metadata of a Kubernetes object; the scheduler ignores it."""


class Model(BaseModel):
    """Common rules: camelCase keys, no unknown keys, immutable."""

    # A model builds its validator on first use, as most are only used as part of another model. The texts below fields
    # are for readers and for the generated reference, which reads them from the source. Building validators and
    # reading these texts at import took half of the import time of these models.
    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        defer_build=True,
    )

    @classmethod
    def defaults(cls) -> Self:
        """Return an instance with all defaults, without building a validator."""
        return cls.model_construct()

    @field_validator("*", mode="before")
    @classmethod
    def _no_switch(cls, value: object, info: ValidationInfo) -> object:
        """Refuse a boolean for other fields: pydantic would convert it into the number 1 or 0."""
        expected = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and isinstance(expected, type) and issubclass(expected, Model):
            raise ValueError("expected a mapping; write the fields of it below this key")
        if isinstance(value, bool) and expected is not bool:
            raise ValueError("neither true nor false may stand here")
        return value
