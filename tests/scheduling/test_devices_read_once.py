"""What the engine does with new slices of identical nodes: it checks them once, not once for each node."""

from collections import Counter

from tests.scheduling.device_driver import DeviceDriver, asking, driver, nodes_of, slice_of
from tests.scheduling.function_calls import calls_of

ONCE = ("_contradiction", "whole_gpus", "layout_of")
"""Functions whose work grows with the devices of a node."""


def calls_for_slices(d: DeviceDriver) -> Counter[str]:
    """Return how often each of these functions is called by the step that reads slices."""
    calls: Counter[str] = Counter()
    for name, number in calls_of(d.step).items():
        function = name.rpartition(":")[2]
        if "devices/" in name and function in ONCE:
            calls[function] += number
    return calls


def test_slices_of_identical_nodes_are_checked_once() -> None:
    nodes = 20
    d = driver({"s1/l1": nodes}, synced=False)
    d.sync()
    first = calls_for_slices(d)
    assert first["_contradiction"] == 1 and max(first.values()) < nodes
    d.slices(*(slice_of(f"s1-l1-{number}", generation=2) for number in range(1, nodes + 1)))
    assert calls_for_slices(d)["_contradiction"] == 0, "a new generation of the same hardware"
    pods = [d.pod(f"p{number}", asking(8)) for number in range(nodes)]
    d.run(*pods)
    assert len(nodes_of(pods)) == nodes
