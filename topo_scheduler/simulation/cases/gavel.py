"""Read Gavel's traces: jobs of a production cluster (Philly), one per line, with seven tab-separated fields.

The first field is the model that a job trains, the fifth its number of steps. The sixth is its arrival in seconds, the
last its number of GPUs. The trace has no durations: Gavel assigned models at random and converted each duration into
steps of its model. The rates below convert them back.

    Narayanan et al., Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads, OSDI 2020;
    https://github.com/stanford-futuredata/gavel
"""

import re
from math import isfinite
from pathlib import Path
from typing import Final

from topo_scheduler.simulation.cases.object_factory import MIN_SECONDS, TracedJob
from topo_scheduler.simulation.cases.tables import quoted, read_text, wrong

FIELD_COUNT: Final = 7
MAX_GPUS: Final = 100_000

STEPS_PER_SECOND: Final[dict[str, float]] = {
    "A3C": 8.2330333,
    "CycleGAN": 4.9184947,
    "LM (batch size 5)": 167.1228577,
    "LM (batch size 10)": 143.3605131,
    "LM (batch size 20)": 107.9508716,
    "LM (batch size 40)": 71.7230367,
    "LM (batch size 80)": 43.9036106,
    "Recommendation (batch size 512)": 0.331482,
    "Recommendation (batch size 1024)": 0.4799797,
    "Recommendation (batch size 2048)": 0.5675318,
    "Recommendation (batch size 4096)": 0.6244083,
    "Recommendation (batch size 8192)": 0.6023546,
    "ResNet-18 (batch size 16)": 77.317374,
    "ResNet-18 (batch size 32)": 65.805407,
    "ResNet-18 (batch size 64)": 48.8841805,
    "ResNet-18 (batch size 128)": 30.2875047,
    "ResNet-18 (batch size 256)": 16.9873711,
    "ResNet-50 (batch size 16)": 17.3743894,
    "ResNet-50 (batch size 32)": 9.9205834,
    "ResNet-50 (batch size 64)": 5.4576,
    "ResNet-50 (batch size 128)": 2.845981,
    "Transformer (batch size 16)": 12.8456524,
    "Transformer (batch size 32)": 12.4752777,
    "Transformer (batch size 64)": 9.5680238,
    "Transformer (batch size 128)": 5.7712108,
    "Transformer (batch size 256)": 1.70703,
}
"""Steps per second of each model, independent of the number of GPUs: training is data-parallel, all GPUs share a step.

Derived by joining the trace ``7f04ca`` with ``trace1.csv`` of Muri, which holds 968 of its jobs with their durations.
For each model, three jobs in four have exactly the largest quotient of steps by seconds, with any number of GPUs. The
other jobs ran for less time than Muri says."""


def read_gavel(path: Path) -> list[TracedJob]:
    """Return the jobs of a trace, in the order of the file.

    Raises:
        CaseError: a line can't be used.
    """
    jobs = []
    for line, text in enumerate(read_text(path).splitlines(), 1):
        if text.strip():
            jobs.append(_job(path, line, text.split("\t")))
    if not jobs:
        raise wrong(path, 0, "the file is empty", "give a stream of Gavel, one job a line")
    return jobs


def _job(path: Path, line: int, fields: list[str]) -> TracedJob:
    if len(fields) != FIELD_COUNT:
        remedy = "fetch it again, or delete the line"
        remedy = f"the file seems to be cut short; {remedy}" if len(fields) < FIELD_COUNT else remedy
        raise wrong(path, line, f"{len(fields)} of {FIELD_COUNT} fields between tabs", remedy)
    rate = STEPS_PER_SECOND.get(fields[0].strip())
    if rate is None:
        remedy = f"its steps can't be turned into seconds; known are {', '.join(sorted(STEPS_PER_SECOND)[:4])}, …"
        raise wrong(path, line, f"unknown model {quoted(fields[0])}", remedy)
    steps, gpus = _whole_number(path, line, "steps", fields[4]), _whole_number(path, line, "GPUs", fields[6])
    if gpus > MAX_GPUS:
        raise wrong(path, line, f"{gpus} GPUs", f"write at most {MAX_GPUS}")
    seconds = max(round(steps / rate, 3), MIN_SECONDS)
    stem = re.sub(r"[^a-z0-9]+", "-", path.stem.lower()).strip("-") or "job"
    return TracedJob(f"{stem}-{line}", _moment(path, line, fields[5]), seconds, gpus, source=f"{path}:{line}")


def _whole_number(path: Path, line: int, noun: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,15}", text.strip()) or int(text) < 1:
        raise wrong(path, line, f"{quoted(text)} is no number of {noun}", "write a whole number from 1 up")
    return int(text)


def _moment(path: Path, line: int, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = float("nan")
    if not isfinite(seconds) or seconds < 0:
        problem = "is negative" if seconds < 0 else "is no second"
        raise wrong(path, line, f"{quoted(text)} {problem}", "write the second at which the job arrives, from 0 up")
    return seconds
