"""Names of Migrations: equal whenever a Migration is created for the same pods, so that it is created once."""

import hashlib
import re
from collections.abc import Sequence
from typing import Final

from topo_scheduler.recovery.model.seating import MovingPod
from topo_scheduler.state.pods.workloads import Workload

_NAME: Final = re.compile(r"[^a-z0-9-]+")


def name_for(pods: Sequence[MovingPod], occasion: str = "") -> str:
    """Return the name of the Migration of these pods. ``occasion`` distinguishes it from others of the same pods."""
    uids = {pod.member.uid for pod in pods}
    return name_of(pods[0].workload, [*sorted(uids), *filter(None, [occasion])])


def name_of(workload: Workload, identity: Sequence[str]) -> str:
    """Return the name of a Migration for a workload. ``identity`` is what distinguishes it from others."""
    digest = hashlib.sha256("\n".join(identity).encode()).hexdigest()[:10]
    plain = workload.name if workload.gang else workload.controller.rpartition(" ")[2]
    name = _NAME.sub("-", plain.lower()).strip("-")[:50].strip("-")
    return f"{name or 'pods'}-{digest}"
