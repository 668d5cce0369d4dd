"""Devices of a node as text and JSON: one row for devices that are alike, one for each GPU that is split."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final

from rich.text import Text

from topo_scheduler.api.text import few_of
from topo_scheduler.cli.device_views import HeldDevice, Holder, notable_partitions, physical, places
from topo_scheduler.state.devices.device_survey import DeviceState

_NUMBERED: Final = re.compile(r"(.*?)(0|[1-9]\d*)")

Colour = Callable[[str, str], str]
"""Returns the colour of a pod from its namespace and name."""


def rows(devices: Sequence[HeldDevice], colour: Colour) -> Iterator[Text]:
    """Yield a row for each group of devices that are alike, and for each GPU with partitions in use."""
    split = {view.device.board for view in notable_partitions(devices)}
    whole = [view for view in physical(devices) if view.device.board not in split or not view.device.board]
    groups: dict[tuple[object, ...], list[HeldDevice]] = {}
    for view in whole:
        groups.setdefault(_alike(view), []).append(view)
    for group in groups.values():
        yield _row(group, colour)
    for board in dict.fromkeys(view.device.board for view in devices if view.device.board in split):
        yield _split_row([view for view in devices if view.device.board == board], colour)


def _alike(view: HeldDevice) -> tuple[object, ...]:
    device = view.device
    facts = device.product, device.memory, device.pcie_root, device.numa_node, device.taints
    return device.state, device.id[0], *facts, view.holders


def _row(group: Sequence[HeldDevice], colour: Colour) -> Text:
    view = group[0]
    line = Text(ranges([member.device.id[2] for member in group]))
    line.append("  ")
    line.append_text(_use(view, colour))
    if facts := _facts(view):
        line.append(f"  {facts}", style="dim")
    return line


def _split_row(board: Sequence[HeldDevice], colour: Colour) -> Text:
    whole = physical(board)
    line = Text(ranges([view.device.id[2] for view in whole]) if whole else board[0].device.board)
    line.append("  ")
    used: dict[str, list[Text]] = {}
    for view in notable_partitions(board):
        used.setdefault(view.device.profile, []).append(_use(view, colour))
    by_profile = [Text.assemble(f"{profile} ", Text(", ").join(uses)) for profile, uses in used.items()]
    line.append_text(Text("; ").join(by_profile))
    if whole and (facts := _facts(whole[0])):
        line.append(f"  {facts}", style="dim")
    room = [f"{place.profile} x{place.free}" for place in places(board) if place.free]
    line.append(f"\nroom for {' or '.join(room)}" if room else "\nno room", style="dim")
    return line


def _use(view: HeldDevice, colour: Colour) -> Text:
    device = view.device
    text = Text()
    if view.holders:
        text.append_text(Text(", ").join(_holder(holder, colour) for holder in view.holders))
    elif view.holders is None and device.state is not DeviceState.UNAVAILABLE:
        text.append("holder unknown", style="dim")
    else:
        text.append(device.state.value, style="red" if device.state is DeviceState.UNAVAILABLE else "dim")
    for key, value, effect in device.taints:
        text.append(f"  {key}{f'={value}' if value else ''}:{effect}", style="red")
    return text


def _holder(holder: Holder, colour: Colour) -> Text:
    if not holder.pods:
        return Text(f"claim {_named(holder.namespace, holder.claim)}")
    name = _named(holder.namespace, few_of(holder.pods, 2))
    return Text(name, style=colour(holder.namespace, holder.pods[0]))


def _named(namespace: str, name: str) -> str:
    return name if namespace == "default" else f"{namespace}/{name}"


def _facts(view: HeldDevice) -> str:
    device = view.device
    numa = f"NUMA {device.numa_node}" if device.numa_node is not None else ""
    return ", ".join(filter(None, (device.product, numa, device.pcie_root)))


def ranges(names: Iterable[str]) -> str:
    """Return names with consecutive numbers at their ends as ranges: ``gpu-[0-3], gpu-6``."""
    parts = [_parts(name) for name in names]
    parts.sort(key=lambda part: (part[0], part[1] if part[1] is not None else -1))
    shown: list[str] = []
    for prefix, of_prefix in groupby(parts, key=lambda part: part[0]):
        run: list[int] = []
        for _, number in of_prefix:
            if number is None:
                shown.append(prefix)
            elif run and number == run[-1] + 1:
                run.append(number)
            else:
                shown += _run(prefix, run)
                run = [number]
        shown += _run(prefix, run)
    return ", ".join(shown)


def _parts(name: str) -> tuple[str, int | None]:
    match = _NUMBERED.fullmatch(name)
    return (match[1], int(match[2])) if match else (name, None)


def _run(prefix: str, numbers: Sequence[int]) -> list[str]:
    if len(numbers) < 3:
        return [f"{prefix}{number}" for number in numbers]
    return [f"{prefix}[{numbers[0]}-{numbers[-1]}]"]


# ---------------------------------------------------------------- JSON


def as_json(devices: Sequence[HeldDevice]) -> dict[str, Any]:
    """Return the devices of a node and the places for partitions, for JSON output; nothing without devices."""
    if not devices:
        return {}
    shown = [_device_json(view) for view in (*physical(devices), *notable_partitions(devices))]
    document: dict[str, Any] = {"devices": shown}
    if counted := places(devices):
        document["partitions"] = [
            {
                "driver": place.driver,
                "pool": place.pool,
                "board": place.board,
                "profile": place.profile,
                "total": place.total,
                "allocated": place.allocated,
                "free": place.free,
            }
            for place in counted
        ]
    return document


def _device_json(view: HeldDevice) -> dict[str, Any]:
    device = view.device
    driver, pool, name = device.id
    return {
        "driver": driver,
        "pool": pool,
        "name": name,
        "state": device.state.value,
        "profile": device.profile,
        "board": device.board or None,
        "product": device.product or None,
        "memory": device.memory or None,
        "pcieRoot": device.pcie_root or None,
        "numaNode": device.numa_node,
        "taints": [{"key": key, "value": value, "effect": effect} for key, value, effect in device.taints],
        "claims": None
        if view.holders is None
        else [
            {"namespace": holder.namespace, "name": holder.claim, "pods": list(holder.pods)} for holder in view.holders
        ],
    }
