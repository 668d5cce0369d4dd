"""Where devices are in pools of identical hardware, computed once for all nodes that have it."""

from topo_scheduler.state.devices.pools import (
    Amounts,
    CounterSetForm,
    CounterSetLayout,
    Pool,
    PoolLayout,
    PublishedDevice,
    binds_later,
)


def layout_of(pool: Pool) -> PoolLayout:
    """Return the layout of a pool that one node alone can use."""
    positions = {device.id[2]: number for number, device in enumerate(pool.devices)}
    sets = _sets(pool)
    places = {
        position: (number, index)
        for number, counter_set in enumerate(sets)
        for index, position in enumerate(counter_set.positions)
    }
    return PoolLayout(pool.counters, positions, sets, places, binds_later(pool))


def _sets(pool: Pool) -> tuple[CounterSetLayout, ...]:
    of_set: dict[str, list[int]] = {}
    for number, device in enumerate(pool.devices):
        names = {name for name, _ in device.counters}
        if len(names) > 1 or names != device.counter_sets:
            return ()
        for name in names:
            of_set.setdefault(name, []).append(number)
    forms: dict[object, CounterSetForm] = {}
    layouts = []
    for name, positions in of_set.items():
        counters = tuple(sorted((counter, value) for (set_, counter), value in pool.counters.items() if set_ == name))
        devices = tuple(_amounts(pool.devices[number]) for number in positions)
        form = forms.setdefault((counters, devices), CounterSetForm(counters, devices))
        layouts.append(CounterSetLayout(form, tuple(positions)))
    return tuple(layouts)


def _amounts(device: PublishedDevice) -> Amounts:
    return tuple((counter, amount) for (_, counter), amount in device.consumption)
