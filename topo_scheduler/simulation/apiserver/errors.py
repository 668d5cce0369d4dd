"""API errors: one exception with the ``Status`` that a real server sends.

Codes, reasons and messages follow ``k8s.io/apimachinery/pkg/api/errors``, because clients read all three.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .objects import Json

if TYPE_CHECKING:
    from .kinds import ApiKind

MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


class StatusError(Exception):
    """An error response: ``body`` is the ``Status`` object, ``code`` the HTTP status."""

    def __init__(self, code: int, reason: str, message: str, *, retry_after: int | None = None, **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.retry_after = retry_after
        if retry_after:
            details["retryAfterSeconds"] = retry_after
        self.body: Json = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            **({"reason": reason} if reason else {}),
            **({"details": {name: value for name, value in details.items() if value}} if details else {}),
            "code": code,
        }


def success(**details: Any) -> Json:
    """Return the ``Status`` of a successful request that returns no object."""
    body: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    return {**body, "details": details} if details else body


def _about(kind: ApiKind, name: str) -> Json:
    return {"name": name, "group": kind.group, "kind": kind.plural}


def not_found(kind: ApiKind, name: str) -> StatusError:
    """Return the error 404 for an object."""
    return StatusError(404, "NotFound", f'{kind.id} "{name}" not found', **_about(kind, name))


def no_such_path() -> StatusError:
    """Return the error 404 for a resource that the server does not serve."""
    return StatusError(404, "NotFound", "the server could not find the requested resource")


def already_exists(kind: ApiKind, name: str, *, deleting: bool = False, generated: bool = False) -> StatusError:
    """Return the error 409 of a create."""
    message = f'{kind.id} "{name}" already exists'
    if generated:
        message += ", the server was not able to generate a unique name for the object"
    if deleting:
        message = f"object is being deleted: {message}"
    return StatusError(409, "AlreadyExists", message, **_about(kind, name))


def conflict(kind: ApiKind, name: str, reason: str = MODIFIED, *, subresource: str = "") -> StatusError:
    """Return the error 409 of a write whose precondition no longer holds."""
    resource = f"{kind.plural}/{subresource}" if subresource else kind.plural
    qualified = f"{resource}.{kind.group}" if kind.group else resource
    details = {**_about(kind, name), "kind": resource}
    return StatusError(409, "Conflict", f'Operation cannot be fulfilled on {qualified} "{name}": {reason}', **details)


def invalid(kind: ApiKind, name: str, problems: Sequence[tuple[str, str]]) -> StatusError:
    """Return the error 422 with one cause for each ``(field, problem)``."""
    qualified = f"{kind.kind}.{kind.group}" if kind.group else kind.kind
    texts = [f"{field}: {problem}" for field, problem in problems]
    text = texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"
    causes = [{"reason": _cause(problem), "message": problem, "field": field} for field, problem in problems]
    message = f'{qualified} "{name}" is invalid: {text}'
    return StatusError(422, "Invalid", message, name=name, group=kind.group, kind=kind.kind, causes=causes)


def _cause(problem: str) -> str:
    kinds = {"Required": "FieldValueRequired", "Forbidden": "FieldValueForbidden", "Duplicate": "FieldValueDuplicate"}
    return kinds.get(problem.split(" ", 1)[0].rstrip(":"), "FieldValueInvalid")


def bad_request(message: str) -> StatusError:
    """Return the error 400."""
    return StatusError(400, "BadRequest", message)


def expired(message: str) -> StatusError:
    """Return the error 410: the requested version was compacted."""
    return StatusError(410, "Expired", message)


def too_large_version(requested: int, current: int) -> StatusError:
    """Return the error 504: the requested version lies in the future."""
    causes = [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
    message = f"Timeout: Too large resource version: {requested}, current: {current}"
    return StatusError(504, "Timeout", message, retry_after=1, causes=causes)


def too_many_requests(message: str, *, retry_after: int | None = None, **details: Any) -> StatusError:
    """Return the error 429."""
    return StatusError(429, "TooManyRequests", message, retry_after=retry_after, **details)


def forbidden(resource: str, name: str, reason: str, **details: Any) -> StatusError:
    """Return the error 403."""
    subject = f'{resource} "{name}"' if name else resource
    return StatusError(403, "Forbidden", f"{subject} is forbidden: {reason}", name=name, **details)


def method_not_allowed(action: str, resource: str) -> StatusError:
    """Return the error 405."""
    return StatusError(405, "MethodNotAllowed", f'{action} is not supported on resources of kind "{resource}"')


def unsupported_media_type(given: str, accepted: Sequence[str]) -> StatusError:
    """Return the error 415."""
    message = f"the body of the request was in an unknown format - accepted media types include: {', '.join(accepted)}"
    return StatusError(415, "UnsupportedMediaType", message, causes=[{"message": given}] if given else None)


def internal(message: str) -> StatusError:
    """Return the error 500."""
    return StatusError(500, "InternalError", f"Internal error occurred: {message}", causes=[{"message": message}])
