"""Health and metrics over HTTP: /livez, /readyz, /healthz (the same as /livez) and /metrics.

Health needs no token, because the kubelet has none. Metrics may need one.
"""

from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from typing import Final

from aiohttp import web

Check = Callable[[], str]
"""Returns the problem, or an empty string."""


class ScrapeVerdict(Enum):
    """Whether a request for metrics is allowed, as an HTTP status."""

    ALLOWED = 200
    UNAUTHENTICATED = 401
    FORBIDDEN = 403
    UNAVAILABLE = 503


Authorize = Callable[[str], Awaitable[ScrapeVerdict]]
"""Returns whether the bearer of a token may read metrics."""

_REFUSALS: Final = {
    ScrapeVerdict.UNAUTHENTICATED: "a token is needed that the API server knows: Authorization: Bearer TOKEN",
    ScrapeVerdict.FORBIDDEN: "the owner of this token may not get /metrics; bind it to a ClusterRole with the verb get"
    " on nonResourceURLs /metrics",
    ScrapeVerdict.UNAVAILABLE: "the API server could not be asked about this token; try again later",
}


def application(
    live: Mapping[str, Check],
    ready: Mapping[str, Check],
    metrics: Callable[[], bytes],
    authorize: Authorize | None = None,
) -> Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]:
    """Return the handler of all requests. ``?verbose`` lists every check, as in the API server.

    ``authorize`` decides on requests for metrics. Without it every client of the port may read them.
    """
    checks = {"/livez": ("livez", live), "/healthz": ("healthz", live), "/readyz": ("readyz", ready)}

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        path = request.path
        if path != "/metrics" and path not in checks:
            return web.Response(status=404, text="404: Not Found")
        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405, text="405: Method Not Allowed", headers={"Allow": "GET, HEAD"})
        if path in checks:
            return _health(request, *checks[path])
        allowed = await _authorized(request, authorize) if authorize is not None else ScrapeVerdict.ALLOWED
        if allowed is not ScrapeVerdict.ALLOWED:
            challenge = {"WWW-Authenticate": "Bearer"} if allowed is ScrapeVerdict.UNAUTHENTICATED else {}
            return web.Response(status=allowed.value, text=_REFUSALS[allowed] + "\n", headers=challenge)
        return web.Response(body=metrics(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    return answer


async def _authorized(request: web.BaseRequest, authorize: Authorize) -> ScrapeVerdict:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        return ScrapeVerdict.UNAUTHENTICATED
    return await authorize(token.strip())


def _health(request: web.BaseRequest, name: str, checks: Mapping[str, Check]) -> web.Response:
    problems = {check: problem for check, run_check in checks.items() if (problem := run_check())}
    if not problems and "verbose" not in request.query:
        return web.Response(text="ok")
    lines = [f"[-]{check} failed: {problems[check]}" if check in problems else f"[+]{check} ok" for check in checks]
    lines.append(f"{name} check {'failed' if problems else 'passed'}")
    return web.Response(text="\n".join(lines) + "\n", status=500 if problems else 200)
