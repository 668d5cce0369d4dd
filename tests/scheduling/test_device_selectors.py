"""Selectors of devices: what they may take and keep, as tenants write them."""

import pytest

from tests.scheduling.device_driver import DRIVER, slice_of
from topo_scheduler.scheduling.devices import selectors as module
from topo_scheduler.scheduling.devices.allocator import SelectorFailure
from topo_scheduler.scheduling.devices.selectors import Selectors
from topo_scheduler.state.devices.pools import PublishedDevice
from topo_scheduler.state.devices.slice_reader import read_slice
from topo_scheduler.state.operation_budget import OperationBudget, OverBudgetError, limited

NUMBERS = str(list(range(20)))
EXPENSIVE = f"{NUMBERS}.all(a, {NUMBERS}.all(b, device.attributes['{DRIVER}'].index != a + b + 100))"
TOO_EXPENSIVE = EXPENSIVE.replace("device.", f"{NUMBERS}.all(c, device.").replace("100)", "c + 100))")


def devices(count: int) -> list[PublishedDevice]:
    item = slice_of("n", count)
    for number, entry in enumerate(item.spec.devices):
        entry.attributes["index"] = type(entry.attributes["numa"])(int_=number)
    return list(read_slice(item).devices)


def test_a_selector_of_many_steps_is_charged_for_them() -> None:
    selectors = Selectors()
    with limited(OperationBudget(100_000)), pytest.raises(OverBudgetError):
        for device in devices(100):
            selectors.matches(EXPENSIVE, device)


def test_a_single_step_beyond_all_limits_is_a_failure_of_the_selector_and_not_of_the_attempt() -> None:
    with limited(OperationBudget(1_000_000)), pytest.raises(SelectorFailure, match=r"takes more than 50,000 steps"):
        Selectors().matches("[1].flatten(9223372036854775807) == [1]", devices(1)[0])


def test_a_selector_of_too_many_steps_is_evaluated_once() -> None:
    selectors, budget = Selectors(), OperationBudget(10_000_000)
    with limited(budget):
        for device in devices(100):
            with pytest.raises(SelectorFailure, match=r"takes more than 50,000 steps"):
                selectors.matches(TOO_EXPENSIVE, device)
    assert budget.spent < 100_000


@pytest.mark.parametrize(
    "expression",
    [
        f"{{'x': true}}['{'a' * 100}'.replace('a', '{'b' * 1_000}') + string(device.attributes['{DRIVER}'].index)]",
        f"device.attributes['{DRIVER}'].index < 0 || device.attributes['{DRIVER}']['{'a' * 9_000}']",
        f"'{'a' * 9_000}'",
    ],
)
def test_reasons_are_short_as_one_for_each_device_is_kept(expression: str) -> None:
    for device in devices(3):
        with pytest.raises(SelectorFailure) as failure:
            Selectors().matches(expression, device)
        assert len(str(failure.value)) < 500


def test_results_of_all_expressions_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_RESULTS", 100)
    selectors = Selectors()
    for number in range(30):
        for device in devices(20):
            assert selectors.matches(f"device.attributes['{DRIVER}'].index != {number + 100}", device)
        assert sum(len(compiled.answers) for compiled in selectors._compiled.values()) <= 100
