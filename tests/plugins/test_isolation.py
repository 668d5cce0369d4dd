"""Plugins that raise, answer wrongly, are slow or never end: what they can do to the thread that asks them."""

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial

import pytest

from topo_scheduler.plugins.isolation import FIRST_PAUSE_SECONDS, LOG_INTERVAL_SECONDS, Isolated
from topo_scheduler.scheduling.extensions.extension import PluginError


class Counting:
    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.seconds = 0.0
        """Duration of all calls."""
        self.failures: Counter[tuple[str, str, str]] = Counter()

    def plugin_called(self, plugin: str, point: str, seconds: float) -> None:
        self.calls[plugin] += 1
        self.seconds += seconds

    def plugin_failed(self, plugin: str, point: str, reason: str) -> None:
        self.failures[plugin, point, reason] += 1


class Clock:
    """The real one, and what is added to it."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


@pytest.fixture
def counting() -> Counting:
    return Counting()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def isolated(counting: Counting, clock: Clock) -> Isolated:
    return Isolated(0.3, counting, clock)


def loop_for_ever() -> None:
    while True:
        pass


def ended(isolated: Isolated) -> bool:
    """Wait until no abandoned thread is left."""
    for _ in range(500):
        if not isolated.lost_threads:
            return True
        time.sleep(0.01)
    return False


@pytest.fixture
def stuck() -> Iterator[threading.Event]:
    """Something to wait for in a way that nothing interrupts; set at the end."""
    event = threading.Event()
    yield event
    event.set()


def test_what_is_asked_is_answered(isolated: Isolated, counting: Counting) -> None:
    assert [isolated.call("good", "filter", partial(pow, n, 2)) for n in range(5)] == [0, 1, 4, 9, 16]
    assert (counting.calls["good"], counting.failures.total()) == (5, 0)


def test_calls_are_counted_with_their_durations(counting: Counting, clock: Clock) -> None:
    isolated = Isolated(60.0, counting, clock)

    def wait(seconds: float) -> None:
        clock.ahead += seconds

    for seconds in (4.0, 8.0):
        isolated.call("good", "filter", partial(wait, seconds))
    assert 12.0 <= counting.seconds < 16.0


def test_it_runs_in_another_thread_and_the_same_one_again(isolated: Isolated) -> None:
    threads = {isolated.call("good", "filter", threading.get_ident) for _ in range(20)}
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_one_that_raises_is_named_and_asked_again(
    isolated: Isolated, counting: Counting, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        with pytest.raises(PluginError, match=r"plugin bad failed: score: ZeroDivisionError: .*by zero"):
            isolated.call("bad", "score", lambda: 1 // 0)
    assert counting.failures == {("bad", "score", "raised"): 3}
    assert isolated.disabled() == {}
    assert len([line for line in caplog.messages if "plugin bad failed" in line]) == 1, "not a line a pod"


def test_the_same_failure_is_logged_again_after_a_while(
    isolated: Isolated, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(4):
        with pytest.raises(PluginError):
            isolated.call("bad", "score", lambda: 1 // 0)
    clock.ahead += LOG_INTERVAL_SECONDS + 1
    with pytest.raises(PluginError):
        isolated.call("bad", "score", lambda: 1 // 0)
    assert "3 more times" in caplog.messages[-1]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()], ids=repr)
def test_not_even_an_exit_gets_out(isolated: Isolated, error: BaseException) -> None:
    def work() -> None:
        raise error

    with pytest.raises(PluginError, match=type(error).__name__):
        isolated.call("bad", "filter", work)
    assert isolated.call("bad", "filter", lambda: "well") == "well"


def test_a_plugin_that_loops_for_ever_is_ended_and_disabled(
    isolated: Isolated, counting: Counting, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(PluginError, match=r"plugin loop failed: filter: it took longer than 0\.3 s and is disabled"):
        isolated.call("loop", "filter", loop_for_ever)
    assert counting.failures == {("loop", "filter", "slow"): 1}
    assert any("plugin loop" in line for line in caplog.messages)
    assert ended(isolated), "a thread that runs Python can be ended"
    asked = []
    with pytest.raises(PluginError, match="is disabled"):
        isolated.call("loop", "filter", lambda: asked.append(1))
    assert asked == []
    with pytest.raises(PluginError, match=r"plugin loop failed: filter: it used up the 0\.3 s of this decision"):
        isolated.call("other", "filter", lambda: asked.append(1))
    assert asked == [], "no plugin is called when the time of a decision is up"
    isolated.begin()
    assert isolated.call("other", "filter", lambda: "well") == "well"


def test_it_is_asked_again_after_a_pause_that_doubles(isolated: Isolated, clock: Clock) -> None:
    for pause in (FIRST_PAUSE_SECONDS, 2 * FIRST_PAUSE_SECONDS):
        isolated.begin()
        with pytest.raises(PluginError, match="is disabled"):
            isolated.call("loop", "filter", loop_for_ever)
        assert ended(isolated)
        clock.ahead += pause - 5
        with pytest.raises(PluginError, match="is disabled"):
            isolated.call("loop", "filter", lambda: "too soon")
        clock.ahead += 10
    isolated.begin()
    assert isolated.call("loop", "filter", lambda: "well") == "well"
    assert isolated.disabled() == {}


def test_a_changed_configuration_pardons(isolated: Isolated) -> None:
    with pytest.raises(PluginError):
        isolated.call("loop", "filter", loop_for_ever)
    assert ended(isolated)
    isolated.pardon()
    isolated.begin()
    assert isolated.call("loop", "filter", lambda: "well") == "well"


def test_one_that_can_not_be_ended_is_never_asked_again_while_it_hangs(
    isolated: Isolated, clock: Clock, stuck: threading.Event
) -> None:
    with pytest.raises(PluginError):
        isolated.call("stuck", "filter", stuck.wait)
    isolated.pardon()
    clock.ahead += 1e6
    assert isolated.lost_threads == 1
    with pytest.raises(PluginError, match="is disabled"):
        isolated.call("stuck", "filter", lambda: "well")
    stuck.set()
    assert ended(isolated)
    isolated.begin()
    assert isolated.call("stuck", "filter", lambda: "well") == "well"


def test_all_plugins_of_a_decision_share_its_time_and_the_slowest_is_disabled(isolated: Isolated) -> None:
    isolated.begin()
    isolated.call("slow", "filter", lambda: time.sleep(0.25))
    with pytest.raises(PluginError, match="plugin slow failed"):
        isolated.call("quick", "score", lambda: time.sleep(0.15))
    assert set(isolated.disabled()) >= {"slow"}
    assert ended(isolated)
    isolated.begin()
    assert isolated.call("quick", "score", lambda: "well") == "well"
    assert set(isolated.disabled()) == {"slow"}


def test_many_quick_calls_of_one_decision_do_not_disable_a_plugin_for_all(isolated: Isolated) -> None:
    isolated.begin()
    with pytest.raises(PluginError, match=r"plugin quick failed: filter: it used up the 0\.3 s"):
        for _ in range(40):
            isolated.call("quick", "filter", lambda: time.sleep(0.02))
    assert ended(isolated)
    assert isolated.disabled() == {}
    isolated.begin()
    assert isolated.call("quick", "filter", lambda: "well") == "well"


def test_a_call_that_begins_late_in_a_decision_and_never_ends_keeps_its_plugin_disabled(
    isolated: Isolated, stuck: threading.Event
) -> None:
    isolated.begin()
    for _ in range(10):
        isolated.call("stuck", "filter", lambda: time.sleep(0.02))
    with pytest.raises(PluginError, match="it used up"):
        isolated.call("stuck", "filter", stuck.wait)
    isolated.begin()
    with pytest.raises(PluginError, match="is disabled"):
        isolated.call("stuck", "filter", lambda: "well")


async def test_asked_beside_the_loop_it_does_not_hold_the_loop_up(isolated: Isolated, counting: Counting) -> None:
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.01)

    task = asyncio.create_task(turn())
    assert await isolated.call_async("good", "bind", lambda: 7) == 7
    with pytest.raises(PluginError, match="plugin bad failed: bind: ValueError: no"):
        await isolated.call_async(
            "bad", "bind", lambda: int("no") if False else (_ for _ in ()).throw(ValueError("no"))
        )
    with pytest.raises(PluginError, match="is disabled"):
        await isolated.call_async("loop", "bind", loop_for_ever)
    task.cancel()
    assert turns > 3, "the loop turned while the plugin looped"
    assert counting.failures == {("bad", "bind", "raised"): 1, ("loop", "bind", "slow"): 1}
    assert await asyncio.to_thread(ended, isolated)


async def test_a_call_that_its_caller_cancelled_is_ended(isolated: Isolated) -> None:
    before = threading.active_count()
    task = asyncio.create_task(isolated.call_async("loop", "bind", loop_for_ever))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for _ in range(500):
        if threading.active_count() <= before:
            break
        await asyncio.sleep(0.01)
    assert threading.active_count() <= before


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
