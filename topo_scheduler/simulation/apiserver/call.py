"""The request and response types of handlers, which are independent of HTTP otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from . import protobuf
from .encoding import Encoder, decode, wanted_form
from .errors import StatusError, bad_request, no_such_path, unsupported_media_type
from .kinds import ApiKind
from .log import ObjectVersion
from .objects import Json
from .rbac import Tokens, User
from .requests import RequestInfo
from .selectors import EVERYTHING, Selection, select
from .store import Store

_READ: Final = ("application/json", "application/yaml", protobuf.MEDIA_TYPE, "")
"""Accepted media types of bodies; a body without a media type is JSON."""


@dataclass(frozen=True, slots=True)
class ServerResponse:
    """A complete response."""

    body: bytes
    code: int = 200
    media_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Call:
    """One request, and the state needed to answer it."""

    store: Store
    tokens: Tokens
    user: User
    info: RequestInfo
    query: Mapping[str, str]
    accept: str = ""
    content_type: str = ""
    body: bytes = b""
    bookmark_seconds: float = 60.0

    def kind(self) -> ApiKind:
        """Return the kind at the path of the request; raises 404 if there is none."""
        kind = self.store.kinds.at(self.info.group, self.info.version, self.info.resource)
        if kind is None or (self.info.subresource and self.info.subresource not in kind.subresources):
            raise no_such_path()
        return kind

    def place(self, kind: ApiKind) -> tuple[str, str]:
        """Return name and namespace; the namespace is empty for cluster-scoped kinds."""
        return self.info.name, self.info.namespace if kind.namespaced else ""

    def json(self) -> Any:
        """Return the decoded body."""
        media_type = self.content_type.partition(";")[0].strip()
        if media_type not in _READ:
            raise unsupported_media_type(media_type, _READ)
        try:
            if media_type == protobuf.MEDIA_TYPE:
                return protobuf.decode(self.body)
            if media_type == "application/yaml":
                return yaml.safe_load(self.body)
            return decode(self.body) if self.body else {}
        except protobuf.NotUnderstoodError as error:
            raise unsupported_media_type(str(error), ("application/json",)) from error
        except (ValueError, yaml.YAMLError) as error:
            raise bad_request(f"couldn't get version/kind; json parse error: {error}") from error

    def object(self) -> Json:
        """Return the decoded body, which must be an object."""
        body = self.json()
        if not isinstance(body, dict):
            raise bad_request("the body of the request is not an object")
        return body

    @property
    def dry_run(self) -> bool:
        """Whether the request is a dry run."""
        value = self.query.get("dryRun")
        if value not in (None, "", "All"):
            message = f'Invalid value: ["{value}"]: Unsupported value: "{value}": supported values: "All"'
            raise StatusError(422, "Invalid", f'CreateOptions.meta.k8s.io "" is invalid: dryRun: {message}')
        return value == "All"

    def encoder(self, kind: ApiKind) -> Encoder:
        """Return an encoder for the form that the client accepts."""
        return Encoder(
            kind, wanted_form(self.accept), self.store.clock(), self.query.get("includeObject") or "Metadata"
        )

    def selection(self, kind: ApiKind) -> Selection:
        """Return the selection of the request."""
        query = self.query
        selected = select(kind, self.place(kind)[1], query.get("labelSelector", ""), query.get("fieldSelector", ""))
        return EVERYTHING if selected == EVERYTHING else selected

    def answer(self, kind: ApiKind, record: ObjectVersion, code: int = 200) -> ServerResponse:
        """Return a response with an object, in the form that the client accepts."""
        return ServerResponse(self.encoder(kind).encode_object(record), code)
