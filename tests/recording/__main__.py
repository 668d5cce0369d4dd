"""The long form: ``python -m tests.recording --decisions 100000`` records, replays elsewhere, and prints JSON.

The replay runs in a process of its own, with other hashes of strings. Exit code 1 if anything differs.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.recording.making import HeardDriver
from tests.recording.traffic import Traffic
from topo_scheduler.observability.segment_writer import SegmentLimits, SegmentWriter
from topo_scheduler.observability.segments import segments_of
from topo_scheduler.recording.recorder import Recorder


def main() -> int:
    """Record, replay, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.recording", description=__doc__)
    parser.add_argument("--decisions", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--segment-bytes", type=int, default=256 << 10)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        writer = SegmentWriter(directory, SegmentLimits(8 << 30, arguments.segment_bytes, 3600))
        recorder = Recorder(writer)
        began = time.perf_counter()
        traffic = Traffic(HeardDriver([recorder]), arguments.seed)
        traffic.run(arguments.decisions)
        recorder.ends()
        seconds = time.perf_counter() - began
        writer.close()
        command = [sys.executable, "-m", "topo_scheduler", "replay", folder, "-o", "json"]
        environment = {**os.environ, "PYTHONHASHSEED": "4711"}
        replayed = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        sizes = [file.size() for file in segments_of(directory)]
        print(
            json.dumps(
                {
                    "decisions": traffic.decisions,
                    "calls": writer.lines,
                    "seconds": round(seconds, 1),
                    "files": len(sizes),
                    "bytes": sum(sizes),
                    "bytes_of_checkpoints": sum(path.stat().st_size for path in directory.glob("*.checkpoint.zst")),
                    "stopped": writer.failed,
                    "replay": json.loads(replayed.stdout) if replayed.stdout else replayed.stderr,
                },
                indent=2,
            )
        )
    return replayed.returncode


sys.exit(main())
