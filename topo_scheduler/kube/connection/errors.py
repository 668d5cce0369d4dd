"""Errors of requests to the API server, and which of them are temporary.

::

    KubeError
    ├── Misconfigured        kubeconfig or service account cannot be used
    ├── Unreachable          no answer: refused, reset, timed out
    │   └── Misanswered      an answer of something else, such as a proxy
    ├── Fenced               not sent: this process may not write any more
    ├── Withdrawn            not sent: the write is no longer correct
    ├── Altered              written, but not as requested
    ├── Undecodable          an answer that is not the expected JSON
    ├── TooLarge             an answer of more bytes than the caller accepts
    └── ApiError             an answer that refuses the request
        ├── Unauthorized     401
        ├── Forbidden        403
        ├── NotFound         404
        ├── Conflict         409
        ├── Gone             410, also as an ERROR event of a watch
        ├── TooManyRequests  429
        └── ServerError      5xx

Only errors that some caller catches have their own class; the original error is always the cause. The message of an
answer may come from a webhook and be megabytes long: the first `MAX_CHARACTERS` are kept.
"""

import random
import re
from collections.abc import Mapping
from typing import Any, Final

from topo_scheduler.api.objects import Status
from topo_scheduler.api.printable import LONGEST_CHARACTERS
from topo_scheduler.api.text import clipped

MAX_CHARACTERS: Final = LONGEST_CHARACTERS
"""Characters kept of an answer's message."""
MAX_RETRY_AFTER_SECONDS: Final = 30.0
"""Longest pause that an answer may ask for. A load balancer's page may ask for an hour, and be gone in a second."""
_NO_DRY_RUN: Final = re.compile(r'admission webhook "[^\s"]+" does not support dry run')
"""The API server's message about a webhook with side effects. That of a denial contains a text of the webhook."""

_LACKS_RIGHTS: Final = re.compile(r'(?!admission webhook ")[^:]*\bforbidden: User "')
"""Begin of the API server's message about a missing right. That of a denial contains a text of others, but later."""
_MISSING_RIGHT: Final = re.compile(r' cannot (\w+) resource "([^"/]+)(/[^"]+)?" in API group "([^"]*)"')
_TOO_LARGE: Final = "etcdserver: request is too large"
"""End of the API server's message about it, with status 500; of a Binding with 409."""


class KubeError(Exception):
    """Any failure between this process and the API server."""


class Misconfigured(KubeError):
    """The kubeconfig or the service account cannot be used; waiting does not help."""


class Unreachable(KubeError):
    """No answer came. ``sent`` is False only if the request certainly never left."""

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class Misanswered(Unreachable):
    """An answer came, but not from the API server: a proxy or a load balancer answered in its place."""


class Fenced(KubeError):
    """Nothing was sent: the lease of this process has ended, or is about to."""


class Withdrawn(KubeError):
    """Nothing was sent: the write is no longer correct, and the message gives the reason."""


class Altered(KubeError):
    """The API server took a write, but stored something else."""

    def __init__(self) -> None:
        super().__init__("an admission webhook changed what was to be written")


class Undecodable(KubeError):
    """The answer is truncated, is not JSON, or is not of the expected type."""


class TooLarge(KubeError):
    """An answer has more bytes than the caller accepts; the client did not read the rest."""


class ApiError(KubeError):
    """The API server answered and refused the request."""

    def __init__(
        self,
        status: int,
        reason: str = "",
        message: str = "",
        retry_after: float | None = None,
        *,
        request: str = "",
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(status, reason, message)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        self.request = request
        self.details = details or {}

    def __str__(self) -> str:
        answer = f"{self.status} {self.reason}".rstrip()
        return ": ".join(part for part in (self.request, answer, self.message) if part)


class Unauthorized(ApiError):
    """401: the server does not, or no longer, accept the credentials."""


class Forbidden(ApiError):
    """403: RBAC or admission refuses."""


class NotFound(ApiError):
    """404: no such object, no such kind, or not an answer of the API server: see `is_missing`."""


class Conflict(ApiError):
    """409: the object exists, has changed, or is not the intended one."""


class Gone(ApiError):
    """410: the resourceVersion or the continue token is too old."""


class TooManyRequests(ApiError):
    """429: the server is busy, or a disruption budget is exhausted."""


class ServerError(ApiError):
    """5xx: the server failed; it is unknown whether it wrote anything."""


_CLASSES: dict[int, type[ApiError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    429: TooManyRequests,
}


def api_error(status: Status, *, request: str = "", retry_after: float | None = None) -> ApiError:
    """Return the error for a ``Status``, which is the body of an answer or the object of an ERROR event."""
    kind = _CLASSES.get(status.code) or (ServerError if status.code >= 500 else ApiError)
    if retry_after is None and status.details:
        seconds = status.details.get("retryAfterSeconds")
        retry_after = float(seconds) if isinstance(seconds, (int, float)) and seconds > 0 else None
    message = clipped(status.message, MAX_CHARACTERS)
    return kind(status.code, clipped(status.reason, 128), message, retry_after, request=request, details=status.details)


# ---------------------------------------------------------------- retries


def passes(error: BaseException) -> bool:
    """Return whether the same request may succeed a little later."""
    return isinstance(error, (TooManyRequests, ServerError, Unreachable, Unauthorized)) and not exceeds_storage(error)


def exceeds_storage(error: BaseException) -> bool:
    """Return whether etcd refused a write because the object would be larger than it stores.

    A tenant can create an object so close to that limit that not even its deletion can be recorded.
    """
    return isinstance(error, ApiError) and error.message.endswith(_TOO_LARGE)


def lacks_rights(error: BaseException) -> bool:
    """Return whether RBAC, not admission, refused.

    A server that has just started refuses until it has loaded its roles.
    """
    return isinstance(error, Forbidden) and _LACKS_RIGHTS.match(error.message) is not None


def remedy(error: BaseException) -> str:
    """Return which right to grant if RBAC refused, in parentheses after a space; otherwise an empty string."""
    named = _MISSING_RIGHT.search(error.message) if isinstance(error, ApiError) and lacks_rights(error) else None
    if named is None:
        return ""
    verb, plural, subresource, group = named.groups(default="")
    return f" (grant {verb} on {plural}{group and '.'}{group}{subresource})"


def with_remedy(error: BaseException) -> str:
    """Return the text of an error, and which right to grant if RBAC refused."""
    return f"{error}{remedy(error)}"


def lacks_dry_run(error: BaseException) -> bool:
    """Return whether a dry run was refused only because a webhook does not support dry runs."""
    return isinstance(error, ApiError) and _NO_DRY_RUN.fullmatch(error.message) is not None


def is_missing(error: BaseException, name: str) -> bool:
    """Return whether an answer to a GET proves that the object of this name does not exist.

    Answers 404 for a kind that is not served, and those of a load balancer without a backend, do not name the object.
    An answer to a write proves nothing: an admission webhook writes its code and its details.
    """
    return isinstance(error, NotFound) and error.details.get("name") == name


def namespace_terminating(error: BaseException) -> bool:
    """Return whether nothing can be created in a namespace because it is being deleted."""
    causes = error.details.get("causes") if isinstance(error, Forbidden) else None
    return isinstance(causes, list) and any(
        isinstance(cause, Mapping) and cause.get("reason") == "NamespaceTerminating" for cause in causes
    )


def pause(attempt: int, error: BaseException | None, first: float, longest: float) -> float:
    """Return the seconds to wait after failure number ``attempt``.

    The delay is random within a window that doubles from ``first`` to ``longest`` (full jitter). It is added to the
    delay that the server requested, up to `MAX_RETRY_AFTER_SECONDS`.
    """
    asked = min(error.retry_after or 0.0, MAX_RETRY_AFTER_SECONDS) if isinstance(error, ApiError) else 0.0
    window = min(longest, first * 2 ** min(attempt - 1, 32))
    return asked + random.uniform(0.0, window)
