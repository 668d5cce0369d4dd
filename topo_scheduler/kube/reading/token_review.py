"""Check whether the bearer of a token may read a path that is not a resource, such as ``/metrics``.

The API server answers both questions. A TokenReview returns the token's user, and a SubjectAccessReview returns
whether that user may read the path. The reviewer caches answers for a while and bounds concurrent reviews. Clients
with made-up tokens therefore cost the API server almost nothing.
"""

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from enum import Enum
from math import inf
from typing import Any, Final, TypeVar

import msgspec

from topo_scheduler.kube.connection.client import Client
from topo_scheduler.kube.connection.errors import KubeError, Undecodable
from topo_scheduler.kube.connection.fence import UNFENCED

log = logging.getLogger(__name__)

TOKEN_REVIEWS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"

ALLOWED_SECONDS: Final = 60.0
"""How long, in seconds, an approval is cached: a revoked token keeps working this long."""
REFUSED_SECONDS: Final = 10.0
"""How long, in seconds, a refusal is cached: a granted role takes effect after this time."""
REMEMBERED_TOKENS: Final = 256
"""Cached approvals, and as many refusals; the oldest are dropped first. Made-up tokens displace no approval."""
REVIEWS_IN_FLIGHT: Final = 4
"""Concurrent reviews of tokens without an earlier approval; further ones get `Access.UNKNOWN` at once."""
RENEWALS_IN_FLIGHT: Final = 4
"""Concurrent reviews of tokens that were approved before, beside those."""
REVIEWS_AT_ONCE: Final = 16
"""Tokens without an earlier approval that are reviewed at once after a rest; further ones get `Access.UNKNOWN`."""
REVIEWS_PER_SECOND: Final = 4
"""Such tokens that are reviewed in the long run."""
TIMEOUT_SECONDS: Final = 5.0
"""Timeout of one review, in seconds."""


T = TypeVar("T")


class Access(Enum):
    """The API server's answer about a token."""

    ALLOWED = "allowed"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    UNKNOWN = "unknown"
    """No answer came, or too many reviews are in flight: the caller may retry."""


class _TokenUser(msgspec.Struct):
    username: str = ""
    uid: str = ""
    groups: list[str] = []
    extra: dict[str, list[str]] = {}


class _TokenStatus(msgspec.Struct):
    authenticated: bool = False
    user: _TokenUser = msgspec.field(default_factory=_TokenUser)


class _AccessStatus(msgspec.Struct):
    allowed: bool = False
    denied: bool = False


class _TokenReview(msgspec.Struct):
    status: _TokenStatus


class _AccessReview(msgspec.Struct):
    status: _AccessStatus


class TokenReviewer:
    """Asks the API server about tokens.

    Args:
        client: of the API server; both replicas ask, so no lease is needed.
        path: the path to check for read access.
        clock: seconds.
    """

    def __init__(self, client: Client, path: str = "/metrics", clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client.fenced(UNFENCED)
        self._path = path
        self._clock = clock
        self._refused: OrderedDict[bytes, tuple[Access, float]] = OrderedDict()
        self._approved: OrderedDict[bytes, float] = OrderedDict()
        """When each approval ends. It is kept after that: the token is likely to be approved again."""
        self._in_flight = {True: 0, False: 0}
        """Reviews in flight, of tokens that were approved before and of others."""
        self._left, self._left_at = float(REVIEWS_AT_ONCE), clock()
        self._complained = False

    async def access(self, token: str) -> Access:
        """Return whether the bearer of a token may read the path."""
        # The token itself is not kept in memory.
        key = hashlib.sha256(token.encode()).digest()
        if self._approved.get(key, -inf) > self._clock():
            return Access.ALLOWED
        refused = self._refused.get(key)
        if refused is not None and refused[1] > self._clock():
            return refused[0]
        renews = key in self._approved
        if not self._may_review(renews=renews):
            return Access.UNKNOWN
        self._in_flight[renews] += 1
        try:
            async with asyncio.timeout(2 * TIMEOUT_SECONDS):
                answer = await self._review(token)
        except (KubeError, TimeoutError) as error:
            if not self._complained:
                log.warning("requests for %s are refused, as their tokens could not be reviewed: %s", self._path, error)
            self._complained = True
            return Access.UNKNOWN
        finally:
            self._in_flight[renews] -= 1
        self._complained = False
        if answer is Access.ALLOWED:
            self._approved[key] = self._clock() + ALLOWED_SECONDS
            self._approved.move_to_end(key)
        else:
            self._approved.pop(key, None)
            self._refused[key] = answer, self._clock() + REFUSED_SECONDS
            self._refused.move_to_end(key)
        for answers in (self._approved, self._refused):
            while len(answers) > REMEMBERED_TOKENS:
                answers.popitem(last=False)
        return answer

    def _may_review(self, *, renews: bool) -> bool:
        """Return whether a token may be reviewed now; ``renews``: it was approved before."""
        if renews:
            return self._in_flight[True] < RENEWALS_IN_FLIGHT
        if self._in_flight[False] >= REVIEWS_IN_FLIGHT:
            return False
        now = self._clock()
        self._left = min(REVIEWS_AT_ONCE, self._left + REVIEWS_PER_SECOND * (now - self._left_at))
        self._left_at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True

    async def _review(self, token: str) -> Access:
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
        review = await self._post(TOKEN_REVIEWS, body, _TokenReview)
        user = review.status.user
        if not review.status.authenticated or not user.username:
            return Access.UNAUTHENTICATED
        spec = {
            "user": user.username,
            "uid": user.uid,
            "groups": user.groups,
            "extra": user.extra,
            "nonResourceAttributes": {"path": self._path, "verb": "get"},
        }
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        answer = await self._post(ACCESS_REVIEWS, body, _AccessReview)
        return Access.ALLOWED if answer.status.allowed and not answer.status.denied else Access.FORBIDDEN

    async def _post(self, path: str, body: dict[str, Any], kind: type[T]) -> T:
        answer = await self._client.request("POST", path, body=msgspec.json.encode(body), timeout=TIMEOUT_SECONDS)
        try:
            return msgspec.json.decode(answer, type=kind)
        except msgspec.MsgspecError as error:
            raise Undecodable(f"POST {path}: {error}") from error
