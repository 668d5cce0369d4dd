"""What the models of the configuration have in common."""

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
from topo_scheduler.api.words import did_you_mean

_MOST: Final = 86_400
"""A day, in seconds."""


def _seconds(value: object) -> object:
    """Turn a duration such as ``15s``, ``1m30s`` or ``500ms`` into seconds; numbers pass."""
    return parse_duration(value, _MOST) if isinstance(value, str) else value


Seconds = Annotated[
    float,
    BeforeValidator(_seconds),
    PlainSerializer(written_duration),
    Field(gt=0, le=_MOST),
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
    """Refuse what no object has, as in all other places."""
    for key in value:
        if key not in _METADATA:
            hint = did_you_mean(key, _METADATA, f"known here: {', '.join(_METADATA[:4])}")
            raise ValueError(f"unknown key {key}; {hint}")
    return value


Metadata = Annotated[dict[str, Any], AfterValidator(_known_metadata)]
"""Metadata as objects of Kubernetes have it; none of it means anything here."""


class Model(BaseModel):
    """Common rules: camelCase keys, nothing unknown, frozen once read."""

    # A model builds its validator when it first reads something: most only ever do as part of another. The texts below
    # fields are for readers and for the generated reference, which reads them from the source. Both were half of the
    # time that importing these models took, before anything is asked.
    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        defer_build=True,
    )

    @classmethod
    def defaults(cls) -> Self:
        """Return one of which nothing is set, without building a validator for it alone."""
        return cls.model_construct()

    @field_validator("*", mode="before")
    @classmethod
    def _no_switch(cls, value: object, info: ValidationInfo) -> object:
        """Refuse a truth value where something else is meant: as a number it would be taken for 1 or 0."""
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation is not bool:
            raise ValueError("neither true nor false may stand here")
        return value
