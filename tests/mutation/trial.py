"""Tries mutants in one pytest process: each in a fork of it, which runs the tests that come by the changed line."""

import builtins
import json
import os
import resource
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import Phase, settings

from tests.mutation.loaded import SEEN, Change, Loaded, marked
from tests.mutation.score import Mutant
from tests.mutation.targets import ROOT

EXAMPLES: Final = 10
STEPS: Final = 20
PHASES: Final = (Phase.explicit, Phase.generate)
"""A failure is enough: no example of it has to be small."""
SECONDS: Final = 20.0
"""No further test is asked about a mutant once those before it take so much CPU without it."""
POLL_SECONDS: Final = 0.01
LONGEST: Final = 900
"""Seconds after which a trial that only waits is ended."""
SURVIVED, KILLED = 0, 1


class Trial:
    """A plugin of pytest that runs tests not once, but for each mutant."""

    def __init__(self, changes: Sequence[Change], folder: Path, jobs: int, tell: Callable[[Mutant], None]) -> None:
        self._changes = changes
        self._folder = folder
        self._jobs = jobs
        self._tell = tell
        self._failed: list[str] = []
        self._passed = False

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Bound the examples of properties and state machines."""
        for item in items:
            test = getattr(item, "obj", None)
            for owner, name in (
                (getattr(item, "cls", None), "settings"),
                (getattr(test, "__func__", test), "_hypothesis_internal_use_settings"),
            ):
                chosen = getattr(owner, name, None)
                if isinstance(chosen, settings):
                    setattr(owner, name, _few(chosen))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note how a test ended."""
        if report.failed:
            self._failed.append(report.nodeid)
        self._passed |= report.when == "call" and report.passed

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Record which test comes by which mutant, then try each."""
        self._loaded = Loaded()
        self._record(session.items)
        asked = self._asked({item.nodeid: item for item in session.items})

        def of(number: int) -> Callable[[], int]:
            return lambda: self._try(number, [item for _, item in asked[number]])

        limits = [10 + 5 * sum(seconds for seconds, _ in asked[number]) for number in range(len(self._changes))]
        for number, status in forked([of(number) for number in range(len(self._changes))], limits, self._jobs):
            self._tell(self._result(number, status, len(asked[number])))
        return True

    # ------------------------------------------------------------ which test comes by

    def _record(self, items: Sequence[pytest.Item]) -> None:
        modules = sorted({item.path for item in items})
        shards = [
            [item for item in items if modules.index(item.path) % self._jobs == shard] for shard in range(self._jobs)
        ]

        def of(shard: int) -> Callable[[], int]:
            return lambda: self._watch(shards[shard], self._folder / f"record-{shard}")

        for shard, status in forked([of(shard) for shard in range(self._jobs)], [36_000.0] * self._jobs, self._jobs):
            if status:
                raise RuntimeError(f"recording {shard} ended with {status}")

    def _watch(self, items: Sequence[pytest.Item], out: Path) -> int:
        seen: set[int] = set()
        setattr(builtins, SEEN, seen.add)
        for file in {change.file for change in self._changes}:
            lines = [(number, change.line) for number, change in enumerate(self._changes) if change.file == file]
            self._loaded.replace(ROOT / file, marked(ROOT / file, lines))
        with out.open("w") as lines_out:
            for item, after in pairwise([*items, None]):
                assert item is not None
                seen.clear()
                begun = time.process_time()
                passed = self._run(item, after)
                line = [item.nodeid, round(time.process_time() - begun, 3), sorted(seen) if passed else []]
                print(json.dumps(line), file=lines_out, flush=True)
        return 0

    def _asked(self, items: dict[str, pytest.Item]) -> list[list[tuple[float, pytest.Item]]]:
        """Return for each mutant its tests, fastest first, as far as time allows."""
        lines = [json.loads(line) for path in self._folder.glob("record-*") for line in path.read_text().splitlines()]
        tests_by_mutant: list[list[tuple[float, pytest.Item]]] = [[] for _ in self._changes]
        taken = [0.0] * len(tests_by_mutant)
        for test, seconds, seen in sorted(lines, key=lambda line: (line[1], line[0])):
            for number in seen:
                if taken[number] < SECONDS:
                    taken[number] += seconds
                    tests_by_mutant[number].append((seconds, items[test]))
        return tests_by_mutant

    # ------------------------------------------------------------ a mutant

    def _try(self, number: int, items: Sequence[pytest.Item]) -> int:
        change = self._changes[number]
        self._loaded.replace(ROOT / change.file, change.code)
        for item, after in pairwise([*items, None]):
            assert item is not None
            if not self._run(item, after):
                (self._folder / f"by-{number}").write_text(item.nodeid)
                return KILLED
        return SURVIVED

    def _run(self, item: pytest.Item, after: pytest.Item | None) -> bool:
        self._failed.clear()
        self._passed = False
        item.ihook.pytest_runtest_protocol(item=item, nextitem=after)
        return self._passed and not self._failed

    def _result(self, number: int, status: int, asked: int) -> Mutant:
        change = self._changes[number]
        by = self._folder / f"by-{number}"
        outcome = "survived" if status == SURVIVED else "killed" if by.exists() else "timeout"
        return Mutant(
            change.part,
            change.file.as_posix(),
            change.line,
            change.operator,
            outcome,
            change.diff,
            asked,
            by.read_text() if by.exists() else "",
        )


def _few(chosen: settings) -> settings:
    return settings(
        chosen,
        max_examples=min(EXAMPLES, chosen.max_examples),
        stateful_step_count=min(STEPS, chosen.stateful_step_count),
        phases=PHASES,
    )


def forked(tasks: Sequence[Callable[[], int]], limits: Sequence[float], jobs: int) -> Iterator[tuple[int, int]]:
    """Run each task in a fork of this process, as many at a time; yield its number and how it ended.

    Args:
        tasks: return what the fork is to end with.
        limits: seconds of CPU of each.
        jobs: forks at a time.
    """
    running: dict[int, int] = {}
    for number, (task, limit) in enumerate(zip(tasks, limits, strict=True)):
        if len(running) == jobs:
            pid, status = _first_to_end(running)
            yield running.pop(pid), status
        pid = os.fork()
        if not pid:
            _become(task, limit)
        running[pid] = number
    while running:
        pid, status = _first_to_end(running)
        yield running.pop(pid), status


def _first_to_end(running: Iterable[int]) -> tuple[int, int]:
    """Wait for one of these processes; return it with its status. Other children of this process are left alone."""
    while True:
        for pid in running:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return pid, status
        time.sleep(POLL_SECONDS)


def _become(task: Callable[[], int], limit: float) -> Any:
    status = 2
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit) + 1, int(limit) + 1))
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(LONGEST if limit < LONGEST else 0)
        status = task()
    finally:
        os._exit(status)
