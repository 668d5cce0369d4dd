"""Totals of devices for metrics, and problems in the log: once each, in bounded numbers."""

import asyncio
import logging
from collections.abc import Callable

import pytest

from tests.state.device_objects import (
    DRIVER,
    Json,
    claim,
    gpu,
    inventory_of,
    mig_counters,
    mig_gpu,
    mig_slices,
    put,
    slice_of,
)
from topo_scheduler.runtime import device_watch
from topo_scheduler.runtime.device_watch import MAX_PROFILES, OTHER, DeviceWatch, capped
from topo_scheduler.state.devices.device_survey import PoolSums, sums_of
from topo_scheduler.state.devices.inventory import DeviceInventory
from topo_scheduler.state.devices.pools import Pool

TAINT = {"taints": [{"key": "xid", "effect": "NoSchedule"}]}


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def watch(inventory: DeviceInventory, clock: Callable[[], float] | None = None) -> DeviceWatch:
    watching = DeviceWatch(lambda: inventory, clock or Clock())
    asyncio.run(watching.look())
    return watching


def test_devices_by_driver_profile_and_state() -> None:
    devices = [gpu(0), gpu(1), gpu(2, **TAINT), gpu(3, allowMultipleAllocations=True)]
    inventory = inventory_of(slice_of("n1", devices), claim("c", "n1", "gpu-0"))
    assert watch(inventory).totals.devices == {
        (DRIVER, "whole", "allocated"): 1,
        (DRIVER, "whole", "free"): 2,
        (DRIVER, "whole", "unavailable"): 1,
    }


def test_partitions_that_overlap_allocated_ones_are_blocked_and_slices_lost_to_a_profile_count() -> None:
    inventory = inventory_of(*mig_slices("n1"), claim("c", "n1", "gpu-0-mig-1g-10gb-2"))
    totals = watch(inventory).totals
    assert totals.devices[DRIVER, "1g.10gb", "allocated"] == 1
    assert totals.devices[DRIVER, "1g.10gb", "free"] == 6
    assert totals.devices[DRIVER, "2g.20gb", "free"] == 2, "0 and 4"
    assert totals.devices[DRIVER, "2g.20gb", "blocked"] == 1, "2"
    assert totals.devices[DRIVER, "3g.40gb", "free"] == 1, "4"
    assert totals.devices[DRIVER, "whole", "blocked"] == 1
    # Seven memory slices are free: 0, 1, 3 to 7.
    assert totals.fragmentation == pytest.approx(
        {(DRIVER, "1g.10gb"): 1 / 7, (DRIVER, "2g.20gb"): 3 / 7, (DRIVER, "3g.40gb"): 3 / 7}
    )


def test_a_profile_is_compared_with_the_boards_that_can_have_it() -> None:
    def other(device: Json) -> Json:
        profile = device["attributes"].get("profile", {}).get("string")
        return {**device, "attributes": {"profile": {"string": f"x{profile}"}}} if profile else device

    devices = [*mig_gpu(0), *(other(device) for device in mig_gpu(1))]
    inventory = inventory_of(
        slice_of("n1", devices, name="a", slices=2),
        slice_of("n1", counters=map(mig_counters, range(2)), name="b", slices=2),
    )
    assert watch(inventory).totals.fragmentation[DRIVER, "3g.40gb"] == 0
    assert watch(inventory).totals.fragmentation[DRIVER, "x1g.10gb"] == pytest.approx(1 / 8), "the last slice of one"


def test_totals_follow_changes() -> None:
    inventory = inventory_of(slice_of("n1", [gpu(0)]), slice_of("n2", [gpu(0)]))
    watching = watch(inventory)
    put(inventory, claim("c", "n1", "gpu-0"))
    asyncio.run(watching.look())
    assert watching.totals.devices == {(DRIVER, "whole", "allocated"): 1, (DRIVER, "whole", "free"): 1}
    inventory.drop(inventory.claims, ("default", "c"))
    inventory.drop(inventory.slices, f"n2-{DRIVER}")
    asyncio.run(watching.look())
    assert watching.totals.devices == {(DRIVER, "whole", "free"): 1}


def test_only_pools_that_changed_are_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    inventory = inventory_of(*(slice_of(f"n{number}", [gpu(0)]) for number in range(9)))
    watching = watch(inventory)
    looked: list[str] = []

    def look(pool: Pool, inventory: DeviceInventory) -> PoolSums:
        looked.append(pool.id[1])
        return sums_of(pool, inventory)

    monkeypatch.setattr(device_watch, "sums_of", look)
    put(inventory, claim("c", "n3", "gpu-0"), slice_of("n5", [gpu(0), gpu(1)]))
    asyncio.run(watching.look())
    assert looked == ["n3", "n5"]
    assert watching.totals.devices == {(DRIVER, "whole", "allocated"): 1, (DRIVER, "whole", "free"): 9}


def test_each_problem_is_logged_once_and_again_if_it_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    broken = slice_of("n1", [gpu(0), gpu(0)])
    inventory = inventory_of(broken)
    watching = watch(inventory)
    asyncio.run(watching.look())
    (message,) = caplog.messages
    assert message.startswith(f"devices: ResourceSlice n1-{DRIVER}: spec.devices[1].name: device gpu-0 exists")
    assert watching.totals.problems == {"duplicate": 1}
    inventory.drop(inventory.slices, f"n1-{DRIVER}")
    asyncio.run(watching.look())
    assert watching.totals.problems == {}
    put(inventory, broken)
    asyncio.run(watching.look())
    assert len(caplog.messages) == 2


def test_what_also_happens_during_an_update_is_logged_only_if_it_lasts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    clock = Clock()
    watching = watch(inventory_of(slice_of("n1", [gpu(0)], slices=2)), clock)
    clock.now = 59.0
    asyncio.run(watching.look())
    assert not caplog.messages and watching.totals.problems == {"incomplete": 1}
    clock.now = 60.0
    asyncio.run(watching.look())
    assert "has 1 of 2 slices" in caplog.text and len(caplog.messages) == 1


def test_a_device_that_two_claims_have_for_a_moment_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A process that was stopped reads the new claim before it reads that the old one is gone."""
    caplog.set_level(logging.WARNING)
    clock = Clock()
    inventory = inventory_of(slice_of("n1", [gpu(0)]), claim("old", "n1", "gpu-0"), claim("new", "n1", "gpu-0"))
    watching = watch(inventory, clock)
    assert not caplog.messages and watching.totals.problems == {"taken-twice": 1}
    inventory.drop(inventory.claims, ("default", "old"))
    clock.now = 60.0
    asyncio.run(watching.look())
    put(inventory, claim("old", "n1", "gpu-0"))
    asyncio.run(watching.look())
    clock.now = 119.0
    asyncio.run(watching.look())
    assert not caplog.messages
    clock.now = 120.0
    asyncio.run(watching.look())
    assert "allocated to 2 claims (default/new, default/old)" in caplog.text and len(caplog.messages) == 1


def test_a_thousand_broken_pools_do_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    watch(inventory_of(*(slice_of(f"n{number}", [gpu(0), gpu(0)]) for number in range(1000))))
    assert len(caplog.messages) == 51
    assert "950 more problems" in caplog.messages[-1]


def test_the_labels_of_metrics_are_bounded() -> None:
    devices = {("d", f"profile-{number}", "free"): number + 1 for number in range(1000)}
    shown = capped(devices)
    assert len({key[:2] for key in shown}) == MAX_PROFILES
    assert sum(shown.values()) == sum(devices.values())
    assert shown["d", "profile-999", "free"] == 1000
    assert shown[OTHER, OTHER, "free"] == sum(range(1, 1000 - MAX_PROFILES + 2))
    assert capped(dict(list(devices.items())[:MAX_PROFILES])) == dict(list(devices.items())[:MAX_PROFILES])


def test_a_look_lets_others_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_watch, "SLICE_SECONDS", 0.0)
    monkeypatch.setattr(device_watch, "PAUSE_SECONDS", 0.0)
    inventory = inventory_of(*(slice_of(f"n{number}", [gpu(0)]) for number in range(50)))
    watching = DeviceWatch(lambda: inventory, Clock())

    async def beside() -> int:
        look = asyncio.create_task(watching.look())
        turns = 0
        while not look.done():
            await asyncio.sleep(0)
            turns += 1
        return turns

    assert asyncio.run(beside()) >= 50


def test_a_fault_is_logged_and_ends_nothing(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    inventory = inventory_of(slice_of("n1", [gpu(0)]))
    watching = DeviceWatch(lambda: inventory, Clock())
    monkeypatch.setattr(inventory, "pools", lambda: 1 / 0)

    async def running() -> bool:
        task = asyncio.create_task(watching.run())
        await asyncio.sleep(0.01)
        alive = not task.done()
        task.cancel()
        return alive

    assert asyncio.run(running())
    assert "devices could not be surveyed" in caplog.text
