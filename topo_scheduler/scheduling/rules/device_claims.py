"""Filter for claims of devices, as the plugin DynamicResources of kube-scheduler 1.36."""

from collections.abc import Iterator

import numpy as np

from topo_scheduler.api.reasons import NodeReason
from topo_scheduler.scheduling.devices.claim_query import ClaimQueryError
from topo_scheduler.scheduling.rules.filters import Bool
from topo_scheduler.scheduling.rules.interpod_filters import FilterContext
from topo_scheduler.scheduling.rules.volume_limits import ClaimError
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.pods.classes import PodClass


def device_limits(context: FilterContext, cls: PodClass, rows: Int64, *, empty: bool) -> Int64:
    """Return how many pods of a class the devices of each row allow; with ``empty``, if all of them were free."""
    limits = np.zeros(len(rows), np.int64)
    if context.devices is None:
        return limits
    try:
        for index, row in enumerate(rows.tolist()):
            fit = context.devices.fit(cls.claims, row)
            limits[index] = fit.empty if empty else fit.now
    except ClaimQueryError:
        limits[:] = 0
    return limits


def device_rejections(context: FilterContext, cls: PodClass, rows: Int64) -> Iterator[tuple[str, Bool]]:
    """Yield reasons, and the rows that each rejects.

    Raises:
        ClaimError: a claim excludes all nodes.
    """
    if not cls.claims or context.devices is None:
        return
    try:
        fits = [context.devices.fit(cls.claims, row) for row in rows.tolist()]
    except ClaimQueryError as error:
        raise ClaimError(f"resource claim: {error}") from error
    yield NodeReason.CLAIM_ELSEWHERE, np.array([fit.elsewhere for fit in fits], np.bool_)
    reasons = [fit.reason or fit.shortage for fit in fits]
    for reason in sorted(set(filter(None, reasons))):
        yield f"{NodeReason.DEVICES}: {reason}", np.array([other == reason for other in reasons], np.bool_)
    yield NodeReason.DEVICES, np.array([not fit.now for fit in fits], np.bool_)
