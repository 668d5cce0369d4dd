"""Tokens of those who read metrics, as the API server answers for them."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from tests.kube.stub import status, stubbed
from topo_scheduler.kube.reading import token_review
from topo_scheduler.kube.reading.token_review import Access, TokenReviewer

TOKENS = {"prometheus": "system:serviceaccount:monitoring:prometheus", "tenant": "system:serviceaccount:a:default"}


class Api:
    """An API server that knows two tokens, of which one may read metrics."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.answer: Callable[[], web.Response] | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        body = json.loads(await request.read())
        self.asked.append(body)
        await self.gate.wait()
        if self.answer is not None:
            return self.answer()
        if body["kind"] == "TokenReview":
            assert request.path == token_review.TOKEN_REVIEWS
            user = TOKENS.get(body["spec"]["token"])
            user_info = {"username": user, "uid": "7", "groups": ["g"], "extra": {"k": ["v"]}}
            return web.json_response(body | {"status": {"authenticated": True, "user": user_info} if user else {}})
        assert request.path == token_review.ACCESS_REVIEWS
        spec = body["spec"]
        assert spec["nonResourceAttributes"] == {"path": "/metrics", "verb": "get"}
        assert (spec["uid"], spec["groups"], spec["extra"]) == ("7", ["g"], {"k": ["v"]})
        return web.json_response(body | {"status": {"allowed": spec["user"] == TOKENS["prometheus"]}})


@pytest.fixture
def api() -> Api:
    return Api()


@asynccontextmanager
async def reviewing(api: Api, clock: Callable[[], float] = lambda: 0.0) -> AsyncIterator[TokenReviewer]:
    async with stubbed(api) as client:
        yield TokenReviewer(client, clock=clock)


async def test_read_access_is_what_the_api_server_says(api: Api) -> None:
    async with reviewing(api) as reviewer:
        assert await reviewer.access("prometheus") is Access.ALLOWED
        assert await reviewer.access("tenant") is Access.FORBIDDEN
        assert await reviewer.access("made up") is Access.UNAUTHENTICATED


async def test_answers_are_remembered_for_a_while_a_no_for_a_shorter_one(api: Api) -> None:
    now = 0.0
    async with reviewing(api, lambda: now) as reviewer:
        for token, seconds in (("prometheus", token_review.ALLOWED_SECONDS), ("made up", token_review.REFUSED_SECONDS)):
            first = await reviewer.access(token)
            asked = len(api.asked)
            now += seconds - 1
            assert await reviewer.access(token) is first
            assert len(api.asked) == asked
            now += 2
            assert await reviewer.access(token) is first
            assert len(api.asked) > asked


async def test_made_up_tokens_are_neither_kept_nor_asked_about_without_end(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_review, "REMEMBERED_TOKENS", 10)
    monkeypatch.setattr(token_review, "REVIEWS_AT_ONCE", 100)
    async with reviewing(api) as reviewer:
        for number in range(50):
            await reviewer.access(f"made up {number}")
        assert len(reviewer._refused) == 10
        assert not any(b"made up" in key for key in reviewer._refused)
        api.gate.clear()
        asking = [asyncio.create_task(reviewer.access(f"another {number}")) for number in range(40)]
        done, _ = await asyncio.wait(asking, timeout=0.5)
        assert len(done) == 40 - token_review.REVIEWS_IN_FLIGHT
        assert {task.result() for task in done} == {Access.UNKNOWN}
        api.gate.set()
        assert {await task for task in asking} == {Access.UNKNOWN, Access.UNAUTHENTICATED}


async def test_made_up_tokens_keep_no_approved_one_out_and_cost_few_reviews(api: Api) -> None:
    now = 0.0
    async with reviewing(api, lambda: now) as reviewer:
        assert await reviewer.access("prometheus") is Access.ALLOWED
        api.asked.clear()
        for number in range(2 * token_review.REMEMBERED_TOKENS):
            await reviewer.access(f"made up {number}")
        assert len(api.asked) == token_review.REVIEWS_AT_ONCE - 1
        now += 1
        for number in range(20):
            await reviewer.access(f"another {number}")
        assert len(api.asked) == token_review.REVIEWS_AT_ONCE - 1 + token_review.REVIEWS_PER_SECOND
        assert await reviewer.access("prometheus") is Access.ALLOWED
        now += token_review.ALLOWED_SECONDS
        api.gate.clear()
        made_up = [asyncio.create_task(reviewer.access(f"new {number}")) for number in range(10)]
        await asyncio.sleep(0)
        again = asyncio.create_task(reviewer.access("prometheus"))
        await asyncio.sleep(0)
        api.gate.set()
        assert await again is Access.ALLOWED
        await asyncio.gather(*made_up)


@pytest.mark.parametrize(
    "answer",
    [
        lambda: status(403, "Forbidden", "may not create tokenreviews"),
        lambda: status(500, "InternalError"),
        lambda: web.Response(text="{"),
        lambda: web.json_response({"status": {"authenticated": "yes"}}),
        lambda: web.json_response({}),
    ],
)
async def test_an_answer_that_is_none_is_no_yes_and_is_asked_for_again(
    api: Api, answer: Callable[[], web.Response], caplog: pytest.LogCaptureFixture
) -> None:
    async with reviewing(api) as reviewer:
        api.answer = answer
        assert await reviewer.access("prometheus") is Access.UNKNOWN
        assert await reviewer.access("prometheus") is Access.UNKNOWN
        assert sum("could not be reviewed" in text for text in caplog.messages) == 1
        assert "prometheus" not in caplog.text
        api.answer = None
        assert await reviewer.access("prometheus") is Access.ALLOWED
