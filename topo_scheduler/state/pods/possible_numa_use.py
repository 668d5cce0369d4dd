"""What pods leave free on each NUMA node when they end, before a report shows it.

No report says on which NUMA node a pod is. But under the policy ``single-numa-node`` each container is on one, and its
machine reports what is used of each NUMA node. So containers are assigned to NUMA nodes in every way that agrees with
the report. What is free after some pods ended is then one of a few possibilities, often a single one.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from topo_scheduler.state.nodes.numa_report import NumaAmounts, NumaPolicy, NumaReport, NumaScope
from topo_scheduler.state.operation_budget import charge
from topo_scheduler.state.pods.numa_request import ContainerKind, NumaRequest

FreeAmounts = tuple[tuple[int, ...], ...]
"""For each resource of a report, its amount by NUMA node."""
MAX_CONTAINERS: Final = 32
"""Containers of a machine that are assigned to NUMA nodes; nothing is known of a machine with more."""
MAX_ASSIGNMENTS: Final = 256
"""Different partial results; nothing is known of a machine with more."""
MAX_POSSIBLE: Final = 16


def possibly_free(
    report: NumaReport, pods: Mapping[NumaRequest, int], ended: Mapping[NumaRequest, int], missing: Mapping[str, int]
) -> tuple[FreeAmounts, ...]:
    """Return what may be free after some pods ended; empty if that is not known.

    Args:
        report: shows all these pods, and no others, as far as a resource is concerned that is not missing.
        pods: those that are still there.
        ended: those that ended.
        missing: resources of which pods may hold more than the report shows.
    """
    if report.policy is not NumaPolicy.SINGLE_NUMA_NODE or not ended:
        return ()
    known = [index for index, name in enumerate(report.resources) if _is_explained(report, index, name, pods, ended)]
    if not known or any(missing.get(name) for index, name in enumerate(report.resources) if index not in known):
        return ()
    kept, ended_containers = _containers(report, pods), _containers(report, ended)
    if kept is None or ended_containers is None or len(kept) + len(ended_containers) > MAX_CONTAINERS:
        return ()
    names, zones = [report.resources[index] for index in known], len(report.zones)
    used = tuple(
        report.allocatable[index][zone] - report.available[index][zone] for zone in range(zones) for index in known
    )
    # Pairs of what the remaining pods have, and what all have, of each resource of each NUMA node.
    nothing = (0,) * len(used)
    assignments = {(nothing, nothing)}
    for containers, stay in ((ended_containers, False), (kept, True)):
        for amounts in containers:
            wanted = [dict(amounts).get(name, 0) for name in names]
            if any(wanted):
                assignments = {
                    (_plus(rest, wanted, zone) if stay else rest, both)
                    for rest, all_ in assignments
                    for zone in range(zones)
                    if _is_within(both := _plus(all_, wanted, zone), used)
                }
            charge(3 * zones * len(assignments))
            if len(assignments) > MAX_ASSIGNMENTS:
                return ()
    left = sorted({rest for rest, all_ in assignments if all_ == used})
    if len(left) > MAX_POSSIBLE:
        return ()
    return tuple(_free(report, known, rest) for rest in left)


def _is_explained(
    report: NumaReport, index: int, name: str, pods: Mapping[NumaRequest, int], ended: Mapping[NumaRequest, int]
) -> bool:
    """Return whether exactly these pods have what the report shows as used of a resource."""
    held = sum(number * dict(request.total).get(name, 0) for each in (pods, ended) for request, number in each.items())
    return held == sum(report.allocatable[index]) - sum(report.available[index])


def _containers(report: NumaReport, pods: Mapping[NumaRequest, int]) -> list[NumaAmounts] | None:
    """Return what each container has that is on one NUMA node; None if it is not known what init containers left."""
    containers: list[NumaAmounts] = []
    for request, number in pods.items():
        if any(container.kind is not ContainerKind.MAIN for container in request.containers):
            return None
        scope_pod = report.scope is NumaScope.POD
        each = [request.total] if scope_pod else [container.amounts for container in request.containers]
        containers += number * each
    return sorted(containers)


def _plus(amounts: tuple[int, ...], wanted: list[int], zone: int) -> tuple[int, ...]:
    first = zone * len(wanted)
    changed = tuple(amounts[first + at] + amount for at, amount in enumerate(wanted))
    return amounts[:first] + changed + amounts[first + len(wanted) :]


def _is_within(amounts: tuple[int, ...], bounds: tuple[int, ...]) -> bool:
    return all(amount <= bound for amount, bound in zip(amounts, bounds, strict=True))


def _free(report: NumaReport, known: list[int], taken: tuple[int, ...]) -> FreeAmounts:
    """Return what is free if pods have ``taken``; of other resources what the report says."""

    def of_resources() -> Iterator[tuple[int, ...]]:
        for index, (available, all_) in enumerate(zip(report.available, report.allocatable, strict=True)):
            if index not in known:
                yield available
            else:
                at = known.index(index)
                yield tuple(amount - taken[zone * len(known) + at] for zone, amount in enumerate(all_))

    return tuple(of_resources())
