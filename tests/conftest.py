"""What all tests share."""

import asyncio
import os
import signal

import pytest
from hypothesis import settings

# CI tries the same examples every time: red must mean that the change broke something. Elsewhere they are random.
settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("local", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "local")


# Else the first who asks for "the current loop" makes one that nobody closes, and a warning comes up in another test.
asyncio.set_event_loop(None)

# What is started in the background of a shell ignores Ctrl-C, and so does all that it starts. Tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


PROPERTY_SECONDS = 900
"""A property is tried on hundreds of examples: on a busy machine that takes minutes and is not yet a hang."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give properties and state machines more time than other tests."""
    for item in items:
        if item.get_closest_marker("hypothesis") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(PROPERTY_SECONDS))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Which API server the contract is checked on."""
    parser.addoption("--apiserver", choices=("embedded", "real", "oldest"), default="embedded")
