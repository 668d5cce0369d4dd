"""What passes is tried again, within bounds and not before the server asked for it; the rest is raised at once."""

import pytest

from topo_scheduler.api.objects import Status
from topo_scheduler.kube.connection.errors import (
    MAX_CHARACTERS,
    ApiError,
    Forbidden,
    KubeError,
    NotFound,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Undecodable,
    Unreachable,
    api_error,
    pause,
)
from topo_scheduler.kube.connection.retry_policy import retrying
from topo_scheduler.kube.connection.retrying import retried

from .virtual import now, virtual_time

PASSING: list[KubeError] = [TooManyRequests(429), ServerError(503), Unreachable("away"), Unauthorized(401)]
TOO_LARGE = ServerError(500, "", "etcdserver: request is too large")
FINAL: list[KubeError] = [Forbidden(403), NotFound(404), ApiError(422), Undecodable("half"), TOO_LARGE]


class Call:
    """Fails with these, then succeeds."""

    def __init__(self, *failures: KubeError) -> None:
        self.failures = list(failures)
        self.times: list[float] = []

    async def __call__(self) -> str:
        self.times.append(now())
        if self.failures:
            raise self.failures.pop(0)
        return "done"


@pytest.mark.parametrize("error", PASSING, ids=repr)
@virtual_time
async def test_what_passes_is_tried_again(error: KubeError) -> None:
    call = Call(error, error)
    assert await retried(call, attempts=3) == "done"
    assert len(call.times) == 3


@pytest.mark.parametrize("error", FINAL, ids=repr)
@virtual_time
async def test_what_does_not_pass_is_raised_at_once(error: KubeError) -> None:
    call = Call(error)
    with pytest.raises(type(error)):
        await retried(call, attempts=3)
    assert len(call.times) == 1


@virtual_time
async def test_the_last_error_is_raised_when_the_attempts_are_used_up() -> None:
    call = Call(*[ServerError(500, "first")] * 2, ServerError(500, "last"), ServerError(500, "never"))
    with pytest.raises(ServerError, match="last"):
        await retried(call, attempts=3)


@virtual_time
async def test_no_attempt_begins_after_the_time_is_up() -> None:
    call = Call(*[Unreachable("away")] * 1_000)
    began = now()
    with pytest.raises(Unreachable):
        await retried(call, seconds=20.0, first=1.0, longest=4.0)
    assert 12 < now() - began < 20
    assert call.times[-1] - began < 20


@virtual_time
async def test_the_server_is_not_asked_again_before_it_said() -> None:
    call = Call(*[TooManyRequests(429, retry_after=7.0)] * 3)
    await retried(call, attempts=4, first=0.1, longest=1.0)
    gaps = [later - earlier for earlier, later in zip(call.times, call.times[1:], strict=False)]
    assert all(7 <= gap <= 8 for gap in gaps)


@virtual_time
async def test_a_policy_without_a_bound_is_refused() -> None:
    with pytest.raises(ValueError, match="attempts or seconds"):
        retrying()


def test_pauses_are_spread_over_a_window_that_doubles_up_to_its_bound() -> None:
    for attempt, window in [(1, 0.2), (2, 0.4), (5, 3.2), (9, 30.0), (5_000, 30.0)]:
        pauses = [pause(attempt, None, 0.2, 30.0) for _ in range(300)]
        assert max(pauses) <= window
        assert max(pauses) > window * 0.8
        assert min(pauses) < window * 0.2


def test_of_the_words_of_an_answer_few_are_kept() -> None:
    error = api_error(Status(403, "Forbidden" * 1_000, "no" * 1_000_000, {"causes": []}), request="POST /x")
    assert isinstance(error, Forbidden)
    assert len(error.message) <= MAX_CHARACTERS + 3
    assert len(str(error)) < MAX_CHARACTERS + 200
