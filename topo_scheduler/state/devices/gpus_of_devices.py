"""How many GPUs a device stands for, in thousandths: quotas and shares count devices of claims as GPUs.

A device is a GPU, or a part of one, if its driver's name begins with ``gpu.``, as ``gpu.nvidia.com`` does. It also is
one if its attribute ``type`` is ``gpu``, ``mig`` or ``vgpu``. Only drivers publish devices: no tenant can change that.

- A whole device is one GPU.
- A partition that consumes shared counters is the largest part that it takes of any kind of counter of its set.
  Counters whose names differ only in a number at the end, such as memory slices, are of one kind. A kind of which
  there is just one says nothing about size: ``1g.10gb+me`` has the only OFA engine of an H100, and is 1/7 of it.
- A MIG instance without counters is as many sevenths of a GPU as its attribute ``profile`` says.
- A share of a device is the largest part of a capacity that it consumes. A share that consumes nothing is a whole
  device, as for ``ResourceQuota`` of Kubernetes, which counts each device of a request as one.
"""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from math import ceil
from typing import Final

from topo_scheduler.api.fractions import WHOLE_GPU
from topo_scheduler.state.devices.pools import Number, PublishedDevice

GPU_LABEL: Final = "gpu"
TYPES: Final = ("gpu", "mig", "vgpu")
COMPUTE_SLICES: Final = 7
"""Compute slices of a GPU with MIG."""

Counters = Mapping[tuple[str, str], Number]
"""Amounts by counter set and counter."""


def gpus_of_device(
    driver: str, device: PublishedDevice | None, consumed: Mapping[str, Number] | None, counters: Counters
) -> int:
    """Return how many GPUs a device of an allocation stands for, in thousandths; arguments as of the next function."""
    return thousandths_of_device(driver, device, consumed, counters) if is_gpu(driver, device) else 0


def is_gpu(driver: str, device: PublishedDevice | None) -> bool:
    """Return whether a device stands for a GPU or a part of one."""
    return driver.partition(".")[0] == GPU_LABEL or _text(device, f"{driver}/type") in TYPES


def thousandths_of_device(
    driver: str, device: PublishedDevice | None, consumed: Mapping[str, Number] | None, counters: Counters
) -> int:
    """Return how much of a whole device, of which it may be a partition, an allocation has, in thousandths.

    Args:
        driver: its driver.
        device: the device; None if no slice publishes it.
        consumed: amounts of its capacities that a share takes; None for the whole device.
        counters: all counters of the sets that it consumes, others do not matter.
    """
    if device is None:
        return WHOLE_GPU
    if consumed is None:
        return _partition_thousandths(device, driver, counters)
    parts = [
        Fraction(amount) / Fraction(device.capacity[name].total.value)
        for name, amount in consumed.items()
        if name in device.capacity and device.capacity[name].total.value
    ]
    largest = max(parts, default=Fraction(0)) or Fraction(1)  # else such shares would evade all quotas
    return ceil(_partition(device, driver, counters) * min(Fraction(1), largest) * WHOLE_GPU)


def _partition_thousandths(device: PublishedDevice, driver: str, counters: Counters) -> int:
    """Return `_partition` in thousandths. A device of one counter set, as most, needs no fractions."""
    if len({set_ for set_, _ in device.counters}) != 1:
        return ceil(_partition(device, driver, counters) * WHOLE_GPU)
    parts = (-(-amount * WHOLE_GPU // total) for _, amount, total in _kinds(device, counters))
    return int(max(parts, default=0)) or WHOLE_GPU


def _partition(device: PublishedDevice, driver: str, counters: Counters) -> Fraction:
    if device.counters:
        by_set: dict[str, Fraction] = {}
        for set_, amount, total in _kinds(device, counters):
            by_set[set_] = max(by_set.get(set_, Fraction(0)), Fraction(amount) / Fraction(total))
        return sum(by_set.values(), Fraction(0)) or Fraction(1)
    slices = _text(device, f"{driver}/profile").partition("g.")[0]
    if slices.isdecimal() and _text(device, f"{driver}/type") == "mig":
        return Fraction(min(int(slices), COMPUTE_SLICES), COMPUTE_SLICES)
    return Fraction(1)


def _kinds(device: PublishedDevice, counters: Counters) -> Iterator[tuple[str, Number, Number]]:
    """Yield the set of each kind of counter that says how large a device is, the amount that it takes, and all."""
    taken = _by_kind(device.counters)
    for kind, total in _by_kind({key: amount for key, amount in counters.items() if _kind(key) in taken}).items():
        if total > 1:
            yield kind[0], taken[kind], total


def _by_kind(counters: Counters) -> dict[tuple[str, str], Number]:
    kinds: dict[tuple[str, str], Number] = {}
    for key, amount in counters.items():
        kind = _kind(key)
        kinds[kind] = kinds.get(kind, 0) + amount
    return kinds


def _kind(counter: tuple[str, str]) -> tuple[str, str]:
    return counter[0], counter[1].rstrip("0123456789")


def _text(device: PublishedDevice | None, attribute: str) -> str:
    kind, value = device.attributes.get(attribute, ("", "")) if device is not None else ("", "")
    return str(value) if kind == "string" else ""
