"""What all tests share."""

import asyncio
import gc
import os
import signal
import ssl
from collections.abc import Generator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xdist.remote import Producer
from xdist.scheduler.loadscope import LoadScopeScheduling

from tests.internal_errors import internal_errors
from tests.recording import kept

# CI tries the same examples every time: red must mean that the change broke something. Elsewhere they are random.
settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("local", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "local")


# Else the first call for "the current loop" makes one that is never closed, and a warning comes up in another test.
asyncio.set_event_loop(None)

# What is started in the background of a shell ignores Ctrl-C, and so does all that it starts. Tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test talks to a server that a public authority vouches for, and reading their certificates takes each client 50 ms.
ssl.SSLContext.load_default_certs = lambda *_: None  # type: ignore[method-assign]


PROPERTY_SECONDS = 900
"""A property is tried on hundreds of examples: on a busy machine that takes minutes and is not yet a hang."""
ON_ONE_WORKER = ("tests/ship/test_image.py",)
"""Files whose tests share what takes a minute to build."""


@settings(max_examples=1, database=None)
@given(st.none())
def _first_property(_: None) -> None:
    """Hold for everything."""


def pytest_collection_finish() -> None:
    """Spare the garbage collector what lives until the end: with it, a third of the CPU time of properties is its."""
    _first_property()  # hypothesis registers generators of random numbers, and looks for who refers to them
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is replayed instead, and give properties and state machines more time than other tests."""
    if kept.REPLAY in os.environ:
        replayed = {item: None for item in items if kept.is_replayed(item.nodeid)}
        config.hook.pytest_deselected(items=list(replayed))
        items[:] = [item for item in items if item not in replayed]
    for item in items:
        if item.get_closest_marker("hypothesis") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(PROPERTY_SECONDS))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Keep records of what the test does to its engines, if that is wanted."""
    if kept.KEEP not in os.environ:
        return (yield)
    kept.begin_test(suspended=item.get_closest_marker("unrecorded") is not None)
    try:
        return (yield)
    finally:
        kept.end_test(item.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test in which the daemon went on after an internal error."""
    if item.get_closest_marker("internal_errors"):
        return (yield)
    with internal_errors() as errors:
        result = yield
    assert not errors.texts
    return result


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling | None:
    """Run the tests of a file that builds something for all of them on one worker, with ``--dist loadgroup``.

    pytest-xdist 3.8 would group by a marker, but pytest 9.2 leaves out the names of groups.
    """
    return _ByFile(config, log) if config.getoption("dist") == "loadgroup" else None


class _ByFile(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return path if path in ON_ONE_WORKER else nodeid


def pytest_addoption(parser: pytest.Parser) -> None:
    """Which API server the contract is checked on."""
    parser.addoption("--apiserver", choices=("embedded", "real", "oldest"), default="embedded")
