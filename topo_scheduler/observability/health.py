"""Health and metrics over HTTP: /livez, /readyz, /healthz (the same as /livez) and /metrics."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from aiohttp import web

Check = Callable[[], str]
"""Returns what is wrong, or an empty string."""


def application(live: Mapping[str, Check], ready: Mapping[str, Check], metrics: Callable[[], bytes]) -> web.Application:
    """Return the application; ``?verbose`` lists every check, as the API server does."""

    async def scrape(_: web.Request) -> web.Response:
        return web.Response(body=metrics(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    app = web.Application()
    app.router.add_get("/livez", _handler("livez", live))
    app.router.add_get("/healthz", _handler("healthz", live))
    app.router.add_get("/readyz", _handler("readyz", ready))
    app.router.add_get("/metrics", scrape)
    return app


def _handler(name: str, checks: Mapping[str, Check]) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(request: web.Request) -> web.Response:
        wrong = {check: problem for check, ask in checks.items() if (problem := ask())}
        if not wrong and "verbose" not in request.query:
            return web.Response(text="ok")
        lines = [f"[-]{check} failed: {wrong[check]}" if check in wrong else f"[+]{check} ok" for check in checks]
        lines.append(f"{name} check {'failed' if wrong else 'passed'}")
        return web.Response(text="\n".join(lines) + "\n", status=500 if wrong else 200)

    return answer


@asynccontextmanager
async def serving(app: web.Application, address: str, port: int) -> AsyncIterator[int]:
    """Serve while the context lasts; yields the port, which is a free one when 0 was asked for.

    Raises:
        OSError: the port is taken.
    """
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, address, port)
        await site.start()
        sockets = site._server.sockets if site._server is not None else []  # type: ignore[attr-defined]
        yield sockets[0].getsockname()[1] if sockets else port
    finally:
        await runner.cleanup()
