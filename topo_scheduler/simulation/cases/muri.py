"""Read Muri's traces: jobs of a production cluster (Philly) as CSV, with times in milliseconds.

A job arrives at ``submit_time`` and runs for ``duration``; ``priority`` becomes the priority of its pods.

    Zhao et al., Multi-Resource Interleaving for Deep Learning Training, SIGCOMM 2022;
    https://github.com/Rivendile/Muri
"""

import re
from pathlib import Path
from typing import Final

from topo_scheduler.simulation.cases.object_factory import MIN_SECONDS, TracedJob
from topo_scheduler.simulation.cases.tables import quoted, read_rows

COLUMNS: Final = ("job_id", "num_gpu", "submit_time", "duration")
OPTIONAL: Final = (
    "iterations",
    "model_name",
    "batch_size",
    "interval",
    "iteration_time",
    "resource_time_0",
    "resource_time_1",
    "resource_time_2",
    "priority",
)
MAX_GPUS: Final = 100_000


def read_muri(path: Path) -> list[TracedJob]:
    """Return the jobs of a trace, in the order of the file.

    Raises:
        CaseError: the trace can't be used.
    """
    jobs: list[TracedJob] = []
    seen: dict[str, int] = {}
    for row in read_rows(path, COLUMNS, OPTIONAL):
        job = row.text("job_id").lower()
        if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?", job):
            raise row.error(f"job_id {quoted(job)} can't be part of a name", "write letters, digits and dashes")
        row.once(seen, job, f"job_id {job}")
        gpus, at = row.whole_number("num_gpu", low=1, high=MAX_GPUS), row.whole_number("submit_time") / 1000
        seconds = max(row.whole_number("duration") / 1000, MIN_SECONDS)
        priority = row.whole_number("priority", high=1_000_000_000) if row.fields.get("priority", "").strip() else 0
        jobs.append(TracedJob(f"job-{job}", at, seconds, gpus, priority, row.location))
    return jobs
