"""Partitions are chosen by the capacity that their GPU loses: from the counters of slices as from tables of MIG."""

from itertools import combinations
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from topo_scheduler.scheduling.devices.device_order import _laid_out_losses, _losses
from topo_scheduler.scheduling.devices.mig_slots import MigSlots, SplitGpu, slice_bits
from topo_scheduler.state.devices.inventory import DevicesInUse
from topo_scheduler.state.devices.mig import GIB, geometry_of
from topo_scheduler.state.devices.pool_layout import layout_of
from topo_scheduler.state.devices.pools import DeviceId, DeviceKind, NodeScope, Pool, PublishedDevice

GPUS = 2
MODELS = [("NVIDIA H100 80GB HBM3", 80), ("NVIDIA A100-SXM4-40GB", 40), ("NVIDIA A30", 24)]


def pool_of(model: str, gib: int) -> tuple[Pool, MigSlots, dict[tuple[int, str, int], PublishedDevice]]:
    """Return a pool as NVIDIA's driver publishes it, tables of the same GPUs, and the device of each place."""
    geometry = geometry_of(model, gib * GIB)
    assert geometry is not None
    places = {}
    for gpu in range(GPUS):
        for profile in geometry.profiles:
            for start in profile.starts:
                taken = {
                    (f"gpu-{gpu}", f"memory-slice-{number}"): 1
                    for number in range(start, start + profile.memory_slices)
                }
                counters = {**taken, (f"gpu-{gpu}", "multiprocessors"): profile.compute_slices}
                if "+" in profile.name:
                    counters[f"gpu-{gpu}", "engines"] = 1
                id_ = ("gpu.nvidia.com", "n", f"gpu-{gpu}-{profile.name}-{start}")
                places[gpu, profile.name, start] = PublishedDevice(
                    id_,
                    DeviceKind(
                        counters=counters,
                        counter_sets=frozenset((f"gpu-{gpu}",)),
                        consumption=tuple(sorted(counters.items())),
                    ),
                    {},
                    NodeScope(node="n"),
                )
    every = {
        (f"gpu-{gpu}", name): amount
        for gpu in range(GPUS)
        for name, amount in [
            *((f"memory-slice-{number}", 1) for number in range(geometry.memory_slices)),
            ("multiprocessors", geometry.compute_slices),
            ("engines", 100),
        ]
    }
    return Pool(("gpu.nvidia.com", "n"), tuple(places.values()), counters=every), MigSlots(geometry), places


def test_losses_from_counters_are_those_of_the_tables_of_mig() -> None:
    for model, gib in MODELS:
        _check(model, gib)


def _check(model: str, gib: int) -> None:
    pool, slots, places = pool_of(model, gib)
    layout = layout_of(pool)
    assert len({counter_set.form for counter_set in layout.sets}) == 1 and len(layout.sets) == GPUS

    @settings(max_examples=40, deadline=None)
    @given(st.lists(st.sampled_from(sorted(places)), max_size=8))
    def holds(wanted: list[tuple[int, str, int]]) -> None:
        gpus, used = [SplitGpu()] * GPUS, DevicesInUse()
        for gpu, name, start in wanted:
            profile = slots.geometry.profile(name)
            assert profile is not None
            if start in slots.starts(gpus[gpu], profile):
                gpus[gpu] = gpus[gpu].with_instance(profile, start)
                used.whole.add(places[gpu, name, start].id)
        losses = _losses(pool, used)
        assert _laid_out_losses(pool, layout, used) == losses, "GPUs in the same use share what was computed"
        by_tables: dict[DeviceId, tuple[int, int]] = {}
        for (gpu, name, start), device in places.items():
            profile = slots.geometry.profile(name)
            assert profile is not None
            room = not gpus[gpu].memory & slice_bits(profile, start)
            if not room or gpus[gpu].compute + profile.compute_slices > slots.geometry.compute_slices:
                assert device.id not in losses
                continue
            loss = slots.loss(gpus[gpu], profile, start)
            by_tables[device.id] = loss, -gpus[gpu].instances
            assert losses[device.id].thousandths == 1_000 * loss // slots.capacity(SplitGpu())
        for device_id, other in combinations(by_tables, 2):
            assert _order(losses[device_id].rank, losses[other].rank) == _order(by_tables[device_id], by_tables[other])

    holds()


def _order(rank: Any, other: Any) -> int:
    return int(rank > other) - int(rank < other)
