"""Names of Migrations: the same whenever one is made for the same pods, so that it is made once."""

import hashlib
import re
from collections.abc import Sequence
from typing import Final

from topo_scheduler.recovery.seating import Leaver

_NAME: Final = re.compile(r"[^a-z0-9-]+")


def name_for(pods: Sequence[Leaver]) -> str:
    """Return the name of the Migration of these pods."""
    uids = sorted({one.member.uid for one in pods})
    digest = hashlib.sha256("\n".join(uids).encode()).hexdigest()[:10]
    workload = pods[0].workload
    plain = workload.name if workload.gang else workload.controller.rpartition(" ")[2]
    name = _NAME.sub("-", plain.lower()).strip("-")[:50].strip("-")
    return f"{name or 'pods'}-{digest}"
