"""Encode objects, lists and watch events in each form that a client can request.

Objects and their metadata are encoded once per version, and responses are assembled from these bytes. Tables are
encoded for each request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

import msgspec

from . import tables
from .kinds import ApiKind, View
from .log import ObjectVersion
from .objects import Json

Form = Literal["object", "metadata", "table"]
_JSON_TYPES: Final = frozenset({"application/json", "application/*", "*/*"})
encode: Final = msgspec.json.Encoder().encode
decode: Final = msgspec.json.Decoder().decode

METADATA: Final = View(
    "metadata",
    show=lambda obj: {
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj.get("metadata") or {},
    },
    store=lambda obj: obj,
)  # fmt: skip


def wanted_form(accept: str) -> Form:
    """Return the first supported form in an Accept header; ``object`` if there is none."""
    for offer in accept.split(","):
        media_type, *parameters = (part.strip() for part in offer.split(";"))
        if media_type not in _JSON_TYPES:
            continue
        target = next((parameter.removeprefix("as=") for parameter in parameters if parameter.startswith("as=")), "")
        if not target:
            return "object"
        if target == "Table":
            return "table"
        if target.startswith("PartialObjectMetadata"):
            return "metadata"
    return "object"


@dataclass(frozen=True, slots=True)
class Encoder:
    """Encodes objects of one kind in one form."""

    kind: ApiKind
    form: Form
    moment: datetime
    include: str = "Metadata"
    """The part of each object in rows of a table: ``None``, ``Metadata`` or ``Object``."""

    def encode_object(self, record: ObjectVersion) -> bytes:
        """Return a single object."""
        if self.form == "table":
            return encode(self._table([record], record["metadata"].get("resourceVersion", "")))
        return record.encoded(METADATA if self.form == "metadata" else self.kind.view)

    def encode_list(self, records: Sequence[ObjectVersion], metadata: Json) -> bytes:
        """Return a list."""
        if self.form == "table":
            return encode({**self._table(records, ""), "metadata": metadata})
        if self.form == "metadata":
            head: Json = {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}
        else:
            head = {"kind": f"{self.kind.kind}List", "apiVersion": self.kind.api_version, "metadata": metadata}
        return encode(head)[:-1] + b',"items":[' + b",".join(map(self._item(), records)) + b"]}"

    def _item(self) -> Callable[[ObjectVersion], bytes]:
        """Return an encoder of list items; a typed list does not repeat the type in its items, as on a real server."""
        if self.form == "metadata" or self.kind.custom:
            return self.encode_object
        view = self.kind.view
        skip = len(encode({"apiVersion": self.kind.api_version, "kind": self.kind.kind}))
        return lambda record: b"{" + record.encoded(view)[skip:]

    def event(self, kind: str, record: ObjectVersion) -> bytes:
        """Return a line of a watch stream."""
        return b'{"type":"' + kind.encode() + b'","object":' + self.encode_object(record) + b"}\n"

    def bookmark(self, revision: int, *, initial_end: bool = False) -> bytes:
        """Return a bookmark, which announces the current revision on a stream without events."""
        metadata: Json = {"resourceVersion": str(revision), "creationTimestamp": None}
        if initial_end:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        obj = {"kind": self.kind.kind, "apiVersion": self.kind.api_version, "metadata": metadata}
        if self.form == "metadata":
            obj = METADATA.show(obj)
        elif self.form == "table":
            obj = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "rows": []}
        return encode({"type": "BOOKMARK", "object": obj}) + b"\n"

    def _table(self, records: Sequence[ObjectVersion], revision: str) -> Json:
        columns = tables.columns(self.kind)
        return {
            "kind": "Table",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": {"resourceVersion": revision},
            "columnDefinitions": [column.definition() for column in columns],
            "rows": [self._row(columns, record) for record in records],
        }

    def _row(self, columns: Sequence[tables.Column], record: ObjectVersion) -> Json:
        row: Json = {"cells": [column.cell(record.obj, self.moment) for column in columns]}
        if self.include == "Object":
            view = self.kind.view
            row["object"] = view.show(record.obj) if view else record.obj
        elif self.include != "None":
            row["object"] = METADATA.show(record.obj)
        return row


def error_line(body: Json) -> bytes:
    """Return a watch event with an error."""
    return encode({"type": "ERROR", "object": body}) + b"\n"
